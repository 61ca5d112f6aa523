#!/bin/sh
# node.sh FOLDER SOURCE: the npm packages that SOURCE/package-lock.json pins, in FOLDER. Does nothing
# when FOLDER was made from the same, or when there is no Node: the tests then say what they skip.
set -eu
folder=$1
source=$2

if ! command -v npm >/dev/null; then
    echo "No npm on the PATH: what needs the packages of $source is skipped"
    exit 0
fi

wanted=$(cat "$source/package-lock.json")
if [ "$wanted" = "$(cat "$folder/made-from" 2>/dev/null)" ]; then
    exit 0
fi

echo "Setting up $folder from $source/package-lock.json"
rm -rf "$folder"
mkdir -p "$folder"
cp "$source/package.json" "$source/package-lock.json" "$folder"
(cd "$folder" && npm ci --ignore-scripts --no-audit --no-fund --loglevel error)
printf '%s\n' "$wanted" >"$folder/made-from"
