"""Configures CORS: the origins whose pages may call the API, and the headers that these pages may
send and read."""

from __future__ import annotations

from typing import Final

from starlette.middleware import Middleware
from starlette.middleware.cors import CORSMiddleware

from penstock.web.auth.config import AuthConfig

_REQUEST_HEADERS: Final = (
    "accept",
    "authorization",
    "content-type",
    "idempotency-key",
    "last-event-id",
    "x-csrf-token",
)
_RESPONSE_HEADERS: Final = ("location", "penstock-run-id", "retry-after", "www-authenticate")


def cors(config: AuthConfig) -> list[Middleware]:
    """Return the CORS middleware; an empty list if no other origin may call the API."""
    if not config.cors_origins:
        return []
    return [
        Middleware(
            CORSMiddleware,
            allow_origins=config.cors_origins,
            allow_methods=("GET", "POST", "PUT", "PATCH", "DELETE"),
            allow_headers=_REQUEST_HEADERS,
            allow_credentials=True,
            expose_headers=_RESPONSE_HEADERS,
        )
    ]
