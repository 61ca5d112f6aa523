#!/bin/sh
# image-files.sh FOLDER: what each image has beyond the packages of the lock, in FOLDER/<target>, which
# is copied over /opt/penstock: the wheels of its members, installed, and share/sbom.cdx.json, the
# CycloneDX list of all Python packages of the image. Runs in the stage `build` of deploy/Dockerfile.
set -eu
out=$1
tools=/opt/tools/bin
python=/opt/penstock/bin/python

for member in shared clients/python services/*; do
    "$tools/python" -m pip wheel --no-deps --no-build-isolation --wheel-dir /wheels "./$member"
done

# files TARGET DISTRIBUTION…
files() {
    target=$1
    shift
    "$tools/pip" --python "$python" install --no-deps --no-index --find-links /wheels \
        --prefix "$out/$target" "$@"
    mkdir -p "$out/$target/share"
    packages=$(echo "$out/$target"/lib/python3*/site-packages)
    PYTHONPATH=$packages "$tools/cyclonedx-py" environment --output-reproducible \
        --output-format JSON --output-file "$out/$target/share/sbom.cdx.json" "$python"
}

all="penstock penstock-client"
for folder in services/*; do
    name=${folder#services/}
    all="$all penstock-$name"
    [ "$name" = cli ] || files "$name" penstock "penstock-$name"
done
# shellcheck disable=SC2086 # names of distributions, without blanks
files penstock $all
