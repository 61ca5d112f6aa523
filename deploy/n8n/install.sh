#!/bin/sh
# install.sh FOLDER: the n8n of package.json in FOLDER. Does nothing when it is there.
# (xlsx comes from the npm registry: n8n names a server that not everybody can reach.)
set -eu
folder=$1
source=$(dirname "$0")/package.json

if ! command -v npm >/dev/null; then
    echo "n8n needs Node 20.19 or later with npm on the PATH" >&2
    exit 1
fi
if cmp -s "$source" "$folder/made-from"; then
    exit 0
fi
echo "Installing n8n into $folder: about 2,000 packages"
mkdir -p "$folder"
cp "$source" "$folder/package.json"
(cd "$folder" && npm install --no-audit --no-fund --loglevel error)
cp "$source" "$folder/made-from"
