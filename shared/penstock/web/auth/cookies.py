"""Set and remove the credential's cookie, the CSRF cookie and that of a sign-in under way.

Scripts can read only the CSRF cookie.
"""

from __future__ import annotations

import math
import time
from typing import Final

from starlette.responses import Response

from penstock.web.auth.config import AuthConfig

# The greatest size in bytes of a cookie's name, value and attributes together (RFC 6265 section
# 6.1).
MAX_COOKIE_BYTES: Final = 4096
_ATTRIBUTES_BYTES: Final = 128


def credential_cookie(config: AuthConfig) -> str:
    return _prefixed(config, "penstock_token")


def csrf_cookie(config: AuthConfig) -> str:
    """Return the name of the CSRF cookie. The header X-CSRF-Token must have the same value as this
    cookie."""
    return _prefixed(config, "penstock_csrf")


def fits_in_cookie(config: AuthConfig, token: str) -> bool:
    return len(credential_cookie(config)) + len(token) <= MAX_COOKIE_BYTES - _ATTRIBUTES_BYTES


def set_credential(response: Response, config: AuthConfig, token: str, expires_at: float) -> None:
    _set(response, config, credential_cookie(config), token, expires_at, httponly=True)


def set_csrf(
    response: Response, config: AuthConfig, token: str, expires_at: float | None = None
) -> None:
    _set(response, config, csrf_cookie(config), token, expires_at, httponly=False)


def clear(response: Response, config: AuthConfig) -> None:
    for name in (credential_cookie(config), csrf_cookie(config)):
        response.delete_cookie(
            name, secure=config.cookie_secure, httponly=True, samesite=config.cookie_samesite
        )


def sign_in_cookie(config: AuthConfig) -> str:
    return _prefixed(config, "penstock_sign_in")


def set_sign_in(response: Response, config: AuthConfig, sealed: str, lifetime_s: float) -> None:
    # The browser must send it when it comes back from the provider, which is another site.
    response.set_cookie(
        sign_in_cookie(config),
        sealed,
        max_age=math.floor(lifetime_s),
        secure=config.cookie_secure,
        httponly=True,
        samesite="lax",
    )


def clear_sign_in(response: Response, config: AuthConfig) -> None:
    response.delete_cookie(
        sign_in_cookie(config), secure=config.cookie_secure, httponly=True, samesite="lax"
    )


def _prefixed(config: AuthConfig, name: str) -> str:
    return f"__Host-{name}" if config.cookie_secure else name


def _set(
    response: Response,
    config: AuthConfig,
    name: str,
    value: str,
    expires_at: float | None,
    *,
    httponly: bool,
) -> None:
    response.set_cookie(
        name,
        value,
        max_age=None if expires_at is None else max(0, math.floor(expires_at - time.time())),
        secure=config.cookie_secure,
        httponly=httponly,
        samesite=config.cookie_samesite,
    )
