#!/bin/sh
# Print a password for every NATS user, as docker-compose.yml reads them: sh passwords.sh >> .env
set -eu
for user in OPERATOR CONNECTOR NORMALIZER EDGE APPROVALS AUTOMATIONS WORKFLOWS SUBSCRIBER; do
  # a letter first: NATS takes what looks like a number for one
  printf 'PENSTOCK_NATS_PASSWORD_%s=p%s\n' "$user" "$(od -An -N32 -tx1 /dev/urandom | tr -d ' \n')"
done
