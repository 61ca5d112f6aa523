#!/bin/sh
# start.sh FOLDER: n8n on port 5678 with its data in FOLDER/data. The first start imports the
# workflows beside this script; they are inactive until you give them credentials.
set -eu
folder=$1
here=$(cd "$(dirname "$0")" && pwd)
export N8N_USER_FOLDER="$folder/data" N8N_LISTEN_ADDRESS=127.0.0.1 N8N_HOST=127.0.0.1
export N8N_DIAGNOSTICS_ENABLED=false N8N_VERSION_NOTIFICATIONS_ENABLED=false
# With SQLite, Remove Duplicates fails when several executions run at once.
export N8N_CONCURRENCY_PRODUCTION_LIMIT=1

if [ ! -e "$N8N_USER_FOLDER/imported" ]; then
    mkdir -p "$N8N_USER_FOLDER"
    for file in "$here"/*.json; do
        case $file in */package.json) continue ;; esac
        "$folder/node_modules/.bin/n8n" import:workflow --input="$file"
    done
    touch "$N8N_USER_FOLDER/imported"
fi
exec "$folder/node_modules/.bin/n8n" start
