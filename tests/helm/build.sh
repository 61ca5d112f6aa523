#!/bin/sh
# build.sh FOLDER [helm]: Helm, an API server, etcd, Prometheus and promtool in FOLDER/bin, built by Go
# from modules that tests/helm/go pins by hash. Takes about ten minutes once, Helm alone two; does
# nothing when they are current.
set -eu
mkdir -p "$1/bin"
folder=$(cd "$1" && pwd)
go=$(command -v go || echo /usr/local/go/bin/go)
[ -x "$go" ] || {
    echo "there is no Go toolchain: https://go.dev/doc/install (or put helm, kube-apiserver and" \
        "etcd into $folder/bin)" >&2
    exit 1
}
cd "$(dirname "$0")/go"
kubernetes=$(sed -n 's/^require k8s.io\/kubernetes v//p' apiserver/go.mod)
minor=$(echo "$kubernetes" | cut -d. -f2)
version=k8s.io/component-base/version
chart=helm.sh/helm/v3/pkg/chartutil
# Without these, the programs say that they are Kubernetes 0.0 and 1.20, which charts refuse.
flags="-s -w -X $version.gitVersion=v$kubernetes -X $version.gitMajor=1 -X $version.gitMinor=$minor"
flags="$flags -X $chart.k8sVersionMajor=1 -X $chart.k8sVersionMinor=$minor"
build() { # MODULE PACKAGE…
    module=$1
    shift
    wanted=$(cat "$module/go.mod" "$module/go.sum" ../build.sh && "$go" version)
    [ "$wanted" = "$(cat "$folder/$module.made-from" 2>/dev/null)" ] && return
    echo "building $*"
    (cd "$module" && GOFLAGS=-mod=readonly "$go" build -trimpath -ldflags "$flags" -o "$folder/bin/" "$@")
    printf '%s\n' "$wanted" >"$folder/$module.made-from"
}
build helm helm.sh/helm/v3/cmd/helm
[ "${2:-}" = helm ] && exit
build etcd .
build apiserver k8s.io/kubernetes/cmd/kube-apiserver
build prometheus github.com/prometheus/prometheus/cmd/prometheus \
    github.com/prometheus/prometheus/cmd/promtool
