#!/bin/sh
# env.sh [FILE]: write the passwords and keys that docker-compose.yml needs into FILE (.env). What
# FILE has already stays as it is, so that a new version may be run over an old file.
set -eu
umask 077
file=${1:-.env}
touch "$file"
for name in \
    NATS_PASSWORD_OPERATOR NATS_PASSWORD_CONNECTOR NATS_PASSWORD_NORMALIZER NATS_PASSWORD_EDGE \
    NATS_PASSWORD_APPROVALS NATS_PASSWORD_AUTOMATIONS NATS_PASSWORD_WORKFLOWS \
    NATS_PASSWORD_CONSOLE NATS_PASSWORD_SUBSCRIBER AUTH_CSRF_SECRET AUTH_JWT_SECRET RULE_KEYS; do
    grep -q "^PENSTOCK_$name=" "$file" && continue
    # Tokens of an issuer are checked instead of those that a secret signs.
    [ "$name" = AUTH_JWT_SECRET ] &&
        grep -Eq '^PENSTOCK_(AUTH_JWKS_URL|OIDC_ISSUER)=.' "$file" && continue
    # A letter first: NATS takes what looks like a number for one.
    printf 'PENSTOCK_%s=p%s\n' "$name" "$(od -An -N32 -tx1 /dev/urandom | tr -d ' \n')" >>"$file"
    echo "made PENSTOCK_$name in $file"
done
