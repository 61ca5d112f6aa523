#!/bin/sh
# dist.sh PYTHON FOLDER MEMBER…: a wheel and an sdist of every MEMBER in FOLDER, and FOLDER/requirements.txt
# with all that is to be installed: the wheels and the lock of what they run on. PYTHON has the build
# backend; nothing is fetched. Where npm is, also the packages of the clients in JavaScript.
set -eu
python=$(cd "$(dirname "$1")" && pwd)/$(basename "$1")
rm -rf "$2"
mkdir -p "$2"
folder=$(cd "$2" && pwd)
shift 2

for member in "$@"; do
    said=$(cd "$member" && "$python" -m hatchling build -d "$folder" 2>&1) || {
        echo "$said" >&2
        exit 1
    }
done
if command -v npm >/dev/null; then
    npm pack --silent --pack-destination "$folder" ./clients/javascript ./clients/react ./clients/copilotkit >/dev/null
fi
# The wheels are named with their hashes, so that pip takes no other package of such a name. pip reads
# `--find-links .` as the folder of this file.
{
    echo "--find-links ."
    for wheel in "$folder"/*.whl; do
        name=$(basename "$wheel" | sed 's/-\([^-]*\)-py3-none-any.whl/==\1/; s/_/-/g')
        hash=$("$python" -c 'import hashlib, sys; print(hashlib.sha256(open(sys.argv[1], "rb").read()).hexdigest())' "$wheel")
        printf '%s \\\n    --hash=sha256:%s\n' "$name" "$hash"
    done
    cat deploy/requirements.txt
} >"$folder/requirements.txt"
