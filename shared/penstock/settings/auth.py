"""Defines the settings of authentication."""

from __future__ import annotations

import json
import re
from typing import Annotated, Any, Literal
from urllib.parse import urlsplit

from pydantic import (
    BeforeValidator,
    Field,
    HttpUrl,
    TypeAdapter,
    field_validator,
    model_validator,
)
from pydantic_settings import NoDecode, SettingsConfigDict

from penstock.settings.environment import ConfigurationError, EnvironmentSettings


def _words(value: Any) -> Any:
    return re.findall(r"[^,\s]+", value) if isinstance(value, str) else value


def _flag(value: Any) -> bool:
    return value if isinstance(value, bool) else str(value).strip().lower() in _YES


_YES = frozenset({"true", "1", "yes", "on"})
# The least length of a secret, in bytes. RFC 7518 section 3.2 requires a secret that is at least as
# long as the hash.
_MIN_SECRET_BYTES = 32
_BY_SECRET = frozenset({"HS256", "HS384", "HS512"})
_BY_PUBLIC_KEY = frozenset(
    {"RS256", "RS384", "RS512", "PS256", "PS384", "PS512", "ES256", "ES384", "ES512", "EdDSA"}
)
_SCOPES = frozenset(
    {
        *("start", "read", "raw", "decide", "automate", "workflow", "erase", "pii"),
        *("act-as", "administer", "none"),
    }
)
Words = Annotated[tuple[str, ...], NoDecode, BeforeValidator(_words)]


def _json_object(value: Any) -> Any:
    if not isinstance(value, str):
        return value
    if not value:
        return {}
    try:
        found = json.loads(value)
    except ValueError:
        found = None
    # An empty object would count as no setting, with which everybody has the usual scopes.
    if not isinstance(found, dict) or not found:
        raise ValueError('must be JSON like {"leads": "read decide"}')
    return found


ScopesByRole = Annotated[dict[str, Words], NoDecode, BeforeValidator(_json_object)]


class AuthSettings(EnvironmentSettings):
    """The settings of authentication, read from the environment as `PENSTOCK_AUTH_<NAME>`.

    The items of a list are separated by commas. Without a secret, a JWKS URL and an OpenID
    Connect provider, callers are not authenticated.
    """

    model_config = SettingsConfigDict(
        env_prefix="PENSTOCK_AUTH_",
        extra="ignore",
        populate_by_name=True,
        # an error text must not show the wrong value, because the value may be a secret
        hide_input_in_errors=True,
    )

    jwt_secret: str | None = Field(
        None, repr=False, description="The secret of HS256 tokens, at least 32 bytes long."
    )
    jwks_url: str | None = Field(
        None, description="The URL at which the token issuer publishes its public keys."
    )
    algorithms: Words = Field(
        (),
        description="The only token algorithms that are accepted. Default: HS256 with a secret, "
        "RS256 and ES256 with a JWKS URL.",
    )
    issuer: str | None = Field(None, description="The value that the claim `iss` must have.")
    audience: str | None = Field(
        None,
        description="The value that the claim `aud` must contain. Without this setting a token "
        "that has an `aud` is refused.",
    )
    leeway_s: float = Field(
        30.0,
        ge=0,
        le=600,
        description="Seconds by which the clocks of the issuer and of this machine may differ.",
    )
    jwks_cache_s: float = Field(
        300.0,
        gt=0,
        description="Seconds for which the issuer's keys are used before they are read again.",
    )
    jwks_refetch_s: float = Field(
        10.0,
        ge=0,
        description="Seconds between two reads of the keys that unknown key ids can cause.",
    )
    jwks_timeout_s: float = Field(
        5.0, gt=0, description="Seconds that one read of the keys may take."
    )
    cookie_secure: bool = Field(
        True,
        description="Whether browsers send the cookies over TLS (and to localhost) only. `false` "
        "is for plain HTTP and takes `__Host-` off the cookie names.",
    )
    cookie_samesite: Literal["lax", "strict", "none"] = Field(
        "lax", description="The `SameSite` attribute of the cookies."
    )
    csrf_secret: str | None = Field(
        None,
        repr=False,
        description="The secret that signs CSRF tokens, at least 32 bytes long and the same in "
        "every process. Separate services need it with JWKS. Default: derived from the JWT secret; "
        "with JWKS, `penstock up` makes one at each start.",
    )
    cors_origins: Words = Field(
        (), description="Other origins whose pages may call the API. A wildcard is refused."
    )
    max_connections_per_user: int = Field(
        100,
        ge=0,
        description="The number of connections that one user may have open per process. 0 means "
        "no limit.",
    )
    max_streams_per_user: int = Field(
        80,
        ge=0,
        description="The number of event streams among these connections. The rest stays free for"
        " requests. 0 means no separate limit.",
    )
    max_requests_per_s: float = Field(
        100.0,
        ge=0,
        description="Requests per second of one user and process, on average. 0 means no limit.",
    )
    max_requests_burst: int = Field(
        500, ge=1, description="The number of requests that one user may send at once per process."
    )
    token_warning_s: float = Field(
        3600.0,
        gt=0,
        description="Seconds before a stream token expires at which its open streams get a "
        "warning.",
    )
    hosts: Words = Field(
        (),
        description="Host names, besides those of this machine, under which requests are answered"
        " when callers are not authenticated. `*` means any.",
    )
    default_scopes: Words = Field(
        (),
        description="The scopes of a token that names none: `start`, `read`, `raw`, `decide`, "
        "`automate`, `workflow`, `erase`, `pii`, `act-as`, `administer`, or `none`. Default: "
        "`start read raw decide`.",
    )
    roles_claim: str = Field(
        "roles",
        min_length=1,
        description="The claim with the caller's roles, a list of texts or one text. A path into "
        "nested claims has dots, as `realm_access.roles`.",
    )
    role_scopes: ScopesByRole = Field(
        {},
        description="The scopes that a role gives to a token that names no scope of ours, as JSON: "
        '`{"leads": "read decide"}`. Then the default of PENSTOCK_AUTH_DEFAULT_SCOPES is `none`. '
        "The same value for every service.",
    )
    tenant_claim: str | None = Field(
        None,
        description="The claim with the caller's tenant, a text of 1 to 128 characters; a path as "
        "that of the roles. Without it, and for tokens without this claim, there is one tenant. "
        "The same value for every service.",
    )
    tenant_limits: int = Field(
        20,
        ge=0,
        description="How many times the limits of one user (connections, streams, requests, open, "
        "queued and paused runs, rules, workflows) count for all users of a tenant together. 0 "
        "means no limit.",
    )
    oidc_issuer: str | None = Field(
        None,
        validation_alias="PENSTOCK_OIDC_ISSUER",
        description="The OpenID Connect provider at which people sign in, as its configuration "
        "names itself. Its keys are read, and its tokens accepted, without PENSTOCK_AUTH_JWKS_URL "
        "and PENSTOCK_AUTH_ISSUER. The same value for every service.",
    )
    oidc_client_id: str | None = Field(
        None,
        validation_alias="PENSTOCK_OIDC_CLIENT_ID",
        description="The client id at the provider. ID tokens for it are accepted. The same value "
        "for every service.",
    )
    oidc_client_secret: str | None = Field(
        None,
        repr=False,
        validation_alias="PENSTOCK_OIDC_CLIENT_SECRET",
        description="The client's secret, which the edge alone needs. A client without one is "
        "public.",
    )
    oidc_scopes: Words = Field(
        (),
        validation_alias="PENSTOCK_OIDC_SCOPES",
        description="The scopes that are asked of the provider. Default: `openid profile`.",
    )
    public_url: str | None = Field(
        None,
        validation_alias="PENSTOCK_PUBLIC_URL",
        pattern=r"^(https?://[^\s?#]+)?$",
        description="The address of Penstock for people, such as `https://penstock.example.com`. "
        "Without one, one-time links of approvals are paths without a host. The edge needs it with "
        "PENSTOCK_OIDC_ISSUER: register `<address>/v1/oidc/callback` at the provider.",
    )
    allow_unauthenticated_sse: Annotated[bool, BeforeValidator(_flag)] = Field(
        False,
        validation_alias="ALLOW_UNAUTHENTICATED_SSE",
        description="For development: every caller is `anonymous`, whatever else is configured.",
    )

    @property
    def requires_credentials(self) -> bool:
        configured = self.jwt_secret or self.jwks_url or self.oidc_issuer
        return configured is not None and not self.allow_unauthenticated_sse

    def check_shared(self) -> None:
        """Check the settings of a service that is one of several processes with an API. Raises
        ConfigurationError if the processes would not accept each other's CSRF tokens."""
        shared = self.csrf_secret is not None or self.jwt_secret is not None
        if self.requires_credentials and not shared:
            raise ConfigurationError(
                "Callers have tokens of an issuer: set PENSTOCK_AUTH_CSRF_SECRET, too, to the same "
                "value for edge, approvals, automations and workflows (openssl rand -hex 32). "
                "Without it, a signed-in browser could neither decide nor change anything"
            )

    @field_validator(
        "jwt_secret",
        "jwks_url",
        "issuer",
        "audience",
        "csrf_secret",
        "tenant_claim",
        "oidc_issuer",
        "oidc_client_id",
        "oidc_client_secret",
        "public_url",
    )
    @classmethod
    def _empty_is_unset(cls, value: str | None) -> str | None:
        return value or None  # Compose files and charts write an unset variable as an empty text

    @field_validator("jwt_secret", "csrf_secret")
    @classmethod
    def _long_enough(cls, value: str | None) -> str | None:
        if value is not None and len(value.encode()) < _MIN_SECRET_BYTES:
            raise ValueError(f"must have at least {_MIN_SECRET_BYTES} bytes")
        return value

    @field_validator("jwks_url", "oidc_issuer")
    @classmethod
    def _is_url(cls, value: str | None) -> str | None:
        if value is not None:
            TypeAdapter(HttpUrl).validate_python(value)
        return value

    @field_validator("cors_origins")
    @classmethod
    def _are_origins(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        for origin in value:
            parts = urlsplit(origin)
            if origin != f"{parts.scheme}://{parts.netloc}" or not parts.netloc or "*" in origin:
                raise ValueError(f"{origin} is no origin like https://app.example.com")
        return value

    @field_validator("hosts")
    @classmethod
    def _are_hosts(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        for host in value:
            if host != "*" and not re.fullmatch(r"\[[0-9A-Fa-f:.]+\]|[A-Za-z0-9._-]+", host):
                raise ValueError(f"{host} is no host name: write it without scheme, port and path")
        return value

    @field_validator("default_scopes")
    @classmethod
    def _are_scopes(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        if unknown := set(value) - _SCOPES:
            raise ValueError(f"{', '.join(sorted(unknown))}: none of {', '.join(sorted(_SCOPES))}")
        if "none" in value and len(value) > 1:
            raise ValueError("none stands alone")
        return value

    @field_validator("role_scopes")
    @classmethod
    def _give_scopes(cls, value: dict[str, tuple[str, ...]]) -> dict[str, tuple[str, ...]]:
        known = _SCOPES - {"none"}
        for role, scopes in value.items():
            if not scopes or not known.issuperset(scopes):
                raise ValueError(f"{role}: name one or more of {', '.join(sorted(known))}")
        return value

    @model_validator(mode="after")
    def _consistent(self) -> AuthSettings:
        if self.jwt_secret is not None and self.jwks_url is not None:
            raise ValueError("PENSTOCK_AUTH_JWT_SECRET and PENSTOCK_AUTH_JWKS_URL: set one of them")
        # Algorithms with a secret and algorithms with a public key are never accepted together.
        # Otherwise an attacker could use the public key as an HMAC secret.
        accepted = _BY_SECRET if self.jwt_secret is not None else _BY_PUBLIC_KEY
        if strangers := set(self.algorithms) - accepted:
            raise ValueError(
                f"PENSTOCK_AUTH_ALGORITHMS: {', '.join(sorted(strangers))} is none of "
                f"{', '.join(sorted(accepted))}"
            )
        if self.cookie_samesite == "none" and not self.cookie_secure:
            raise ValueError("PENSTOCK_AUTH_COOKIE_SAMESITE=none needs secure cookies")
        if self.oidc_issuer is not None:
            self._check_oidc(self.oidc_issuer)
        return self

    def _check_oidc(self, oidc_issuer: str) -> None:
        if self.oidc_client_id is None:
            raise ValueError("PENSTOCK_OIDC_ISSUER is set: set PENSTOCK_OIDC_CLIENT_ID, too")
        if self.jwt_secret is not None:
            raise ValueError(
                "PENSTOCK_AUTH_JWT_SECRET and PENSTOCK_OIDC_ISSUER: set one of them, since the "
                "cookie of a sign-in has a token of the issuer"
            )
        if self.issuer not in (None, oidc_issuer):
            raise ValueError(
                "PENSTOCK_AUTH_ISSUER must be PENSTOCK_OIDC_ISSUER, or not be set: tokens of one "
                "issuer are accepted"
            )
        if self.oidc_scopes and "openid" not in self.oidc_scopes:
            raise ValueError("PENSTOCK_OIDC_SCOPES must have openid: else there is no ID token")
