"""`penstock token`: makes a token for development, with the secret of the services."""

from __future__ import annotations

import re
import time
from collections.abc import Sequence
from functools import partial
from typing import Annotated, Any

import jwt
import typer

from penstock.settings import AuthSettings, ConfigurationError, read_settings
from penstock.web.auth import AuthConfig
from penstock.web.auth.grants import SCOPES
from penstock.web.auth.identity import ANONYMOUS_USER
from penstock_cli.commands.options import AsJson, configuration, parse_lifetime, parser
from penstock_cli.terminal.output import Output

MAX_LIFETIME_S = 30 * 86400


def make_token(
    user: Annotated[
        str, typer.Option(help="The user (`sub`) whose runs the token starts and reads.")
    ] = "me",
    scope: Annotated[
        list[str] | None,
        typer.Option(
            help="start, read, raw, decide, automate, workflow, erase, act-as, administer; several "
            "by commas. Without any: what the services give to a token that names none.",
        ),
    ] = None,
    role: Annotated[
        list[str] | None,
        typer.Option(help="A role of the user, for the policy of approvals; may be repeated."),
    ] = None,
    tenant: Annotated[
        str | None,
        typer.Option(help="The user's tenant, for services with PENSTOCK_AUTH_TENANT_CLAIM."),
    ] = None,
    lifetime: Annotated[
        Any,
        typer.Option(
            parser=parser(partial(parse_lifetime, MAX_LIFETIME_S)),
            metavar="TIME",
            help="How long the token is valid: 15m, 2h or 3d.",
        ),
    ] = "1d",
    as_json: AsJson = False,
) -> None:
    """Make a token for development, with PENSTOCK_AUTH_JWT_SECRET from the environment."""
    try:
        scopes = parse_scopes(scope or [])
    except ValueError as error:
        raise typer.BadParameter(str(error), param_hint="--scope") from None
    if user == ANONYMOUS_USER:
        raise typer.BadParameter("no service accepts this user in a token", param_hint="--user")
    output = Output(as_json)
    with configuration(output):
        _make(output, user, scopes, lifetime, role or [], tenant)


def parse_scopes(texts: Sequence[str]) -> list[str]:
    """Return the scopes in these texts, each once. Raises ValueError for an unknown scope."""
    scopes = list(dict.fromkeys(word for text in texts for word in re.findall(r"[^,\s]+", text)))
    if unknown := [scope for scope in scopes if scope not in SCOPES]:
        raise ValueError(f"{', '.join(unknown)}: none of {', '.join(sorted(SCOPES))}")
    return scopes


def _make(
    output: Output,
    user: str,
    scopes: Sequence[str],
    lifetime_s: int,
    roles: Sequence[str],
    tenant: str | None,
) -> None:
    """Write a token to stdout, and its limits to stderr. Raises ConfigurationError."""
    config = AuthConfig(**read_settings(AuthSettings).model_dump())
    if config.jwt_secret is None:
        raise ConfigurationError(_no_secret(config))
    now = int(time.time())
    claims: dict[str, Any] = {"sub": user, "iat": now, "exp": now + lifetime_s}
    if scopes:
        claims["scope"] = " ".join(scopes)
    if roles:
        claims |= _nested(config.roles_claim, list(roles))
    if tenant is not None:
        if config.tenant_claim is None:
            raise ConfigurationError("--tenant: PENSTOCK_AUTH_TENANT_CLAIM is not set")
        claims |= _nested(config.tenant_claim, tenant)
    if config.issuer is not None:
        claims["iss"] = config.issuer
    if config.audience is not None:
        claims["aud"] = config.audience
    token = jwt.encode(claims, config.jwt_secret, config.pinned[0])
    output.result({"token": token, "claims": claims}, token)
    may = ", ".join(scopes) if scopes else "those of a token that names none"
    output.notice(
        f"penstock: for development only: user {user}, scopes: {may}; expires in {lifetime_s} s, "
        "and cannot be revoked before. In production an identity provider makes the tokens"
    )
    if config.allow_unauthenticated_sse:
        output.notice(
            "penstock: ALLOW_UNAUTHENTICATED_SSE is set here: a service with it checks no token"
        )


def _no_secret(config: AuthConfig) -> str:
    if config.is_configured:
        return (
            "PENSTOCK_AUTH_JWKS_URL or PENSTOCK_OIDC_ISSUER is set: the services take the tokens "
            "of that issuer alone, so get one there"
        )
    return (
        "set PENSTOCK_AUTH_JWT_SECRET to the secret of the services (at least 32 bytes). "
        "Where they have none, they ask nobody for a token. To make a secret: openssl rand -hex 32"
    )


def _nested(path: str, value: object) -> dict[str, Any]:
    """Return claims with the value at a path, such as `realm_access.roles`."""
    name, _, rest = path.partition(".")
    return {name: _nested(rest, value) if rest else value}
