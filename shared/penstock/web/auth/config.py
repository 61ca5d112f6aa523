"""The configuration of authentication, as plain data."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

SameSite = Literal["lax", "strict", "none"]


@dataclass(frozen=True, slots=True, kw_only=True)
class AuthConfig:
    """The configuration of authentication. `AuthSettings` describes the fields.

    `AuthSettings` has checked the values. This class exists so that `penstock.web` and
    `penstock.settings` need not import each other.
    """

    jwt_secret: str | None = field(default=None, repr=False)
    jwks_url: str | None = None
    algorithms: tuple[str, ...] = ()
    issuer: str | None = None
    audience: str | None = None
    leeway_s: float = 30.0
    jwks_cache_s: float = 300.0
    jwks_refetch_s: float = 10.0
    jwks_timeout_s: float = 5.0
    cookie_secure: bool = True
    cookie_samesite: SameSite = "lax"
    csrf_secret: str | None = field(default=None, repr=False)
    cors_origins: tuple[str, ...] = ()
    max_connections_per_user: int = 100
    max_streams_per_user: int = 80
    max_requests_per_s: float = 100.0
    max_requests_burst: int = 500
    token_warning_s: float = 3600.0
    allow_unauthenticated_sse: bool = False
    hosts: tuple[str, ...] = ()
    default_scopes: tuple[str, ...] = ()
    roles_claim: str = "roles"
    role_scopes: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    tenant_claim: str | None = None
    tenant_limits: int = 20
    oidc_issuer: str | None = None
    oidc_client_id: str | None = None
    oidc_client_secret: str | None = field(default=None, repr=False)
    oidc_scopes: tuple[str, ...] = ()
    public_url: str | None = None

    @property
    def is_configured(self) -> bool:
        return (self.jwt_secret or self.jwks_url or self.oidc_issuer) is not None

    @property
    def audiences(self) -> list[str]:
        """The audiences of tokens that are accepted: an ID token is for the client."""
        return [each for each in (self.audience, self.oidc_client_id) if each is not None]

    @property
    def requires_credentials(self) -> bool:
        return self.is_configured and not self.allow_unauthenticated_sse

    @property
    def pinned(self) -> tuple[str, ...]:
        return self.algorithms or (("HS256",) if self.jwt_secret else ("RS256", "ES256"))
