"""Makes what checks JWTs, for a process with configured keys. Any other process imports none of
this, nor `jwt`, `cryptography` and `httpx`."""

from __future__ import annotations

from typing import Any

from penstock.web.auth.config import AuthConfig
from penstock.web.auth.csrf import Csrf
from penstock.web.auth.grants import DEFAULT
from penstock.web.auth.jwks import Jwks
from penstock.web.auth.jwt import Secret, Verifier
from penstock.web.auth.oidc import Discovery, SignIn


def verifier_and_sign_in(config: AuthConfig, csrf: Csrf) -> tuple[Verifier, SignIn | None]:
    """Return what checks tokens, and what signs people in; None without a provider."""
    discovery = Discovery(config.oidc_issuer) if config.oidc_issuer is not None else None
    verifier = _verifier(config, discovery)
    # Another service than the edge needs no address, to which people would come back.
    if discovery is None or config.public_url is None:
        return verifier, None
    return verifier, SignIn(config, discovery, verifier, csrf)


def _verifier(config: AuthConfig, discovery: Discovery | None) -> Verifier:
    # Where roles give scopes, a person without such a role may do nothing.
    usual = () if config.role_scopes else DEFAULT
    rules: dict[str, Any] = {
        "issuer": config.issuer or config.oidc_issuer,
        "audience": config.audiences,
        "leeway_s": config.leeway_s,
        "default_scopes": frozenset(config.default_scopes or usual) - {"none"},
        "roles_claim": config.roles_claim,
        "role_scopes": config.role_scopes,
        "tenant_claim": config.tenant_claim,
    }
    if config.jwt_secret is not None:
        return Verifier(Secret(config.jwt_secret), config.pinned, **rules)
    url = config.jwks_url or (discovery.jwks_url if discovery is not None else None)
    assert url is not None, "is_configured"
    jwks = Jwks(
        url,
        config.pinned,
        cache_s=config.jwks_cache_s,
        refetch_s=config.jwks_refetch_s,
        timeout_s=config.jwks_timeout_s,
    )
    return Verifier(jwks, config.pinned, **rules)
