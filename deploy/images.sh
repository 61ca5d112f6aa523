#!/bin/sh
# images.sh [REGISTRY]: builds the images of this version with Docker, or else with buildah as root.
# With a registry, each image has the registry's name and is pushed.
set -eu
cd "$(dirname "$0")/.."
if docker info >/dev/null 2>&1; then
    builder=docker
elif command -v buildah >/dev/null; then
    builder=buildah
else
    echo "no images were built: there is neither a Docker daemon nor buildah" >&2
    [ -z "${1:-}" ] # to push was asked for, and is not done
    exit
fi
version=$(sed -n 's/^version = "\(.*\)"/\1/p' shared/pyproject.toml)
for target in penstock connector normalizer edge approvals automations workflows console; do
    name=penstock
    [ $target = penstock ] || name=penstock-$target
    image=${1:+$1/}$name:$version
    $builder build -f deploy/Dockerfile --target $target -t "$image" .
    [ -z "${1:-}" ] || $builder push "$image"
done
