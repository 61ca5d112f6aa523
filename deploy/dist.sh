#!/bin/sh
# dist.sh PYTHON FOLDER MEMBER…: a wheel and an sdist of every MEMBER in FOLDER, and the lock of what
# they run on as FOLDER/requirements.txt. PYTHON has the build backend; nothing is fetched.
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
cp deploy/requirements.txt "$folder/requirements.txt"
