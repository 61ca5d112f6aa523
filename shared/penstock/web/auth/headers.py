"""Add headers for browsers to responses: security headers, and those of CORS.

CORS names the origins whose pages may call the API, and the headers that these pages may send and
read.
"""

from __future__ import annotations

from typing import Final

from starlette.datastructures import MutableHeaders
from starlette.middleware import Middleware
from starlette.middleware.cors import CORSMiddleware
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from penstock.web.auth.config import AuthConfig

ALWAYS: Final = {
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "content-security-policy": "frame-ancestors 'none'",
    "x-frame-options": "DENY",
}
NO_STORE: Final = {"cache-control": "no-store"}
_REQUEST_HEADERS: Final = (
    "accept",
    "authorization",
    "content-type",
    "idempotency-key",
    "last-event-id",
    "x-csrf-token",
)
_RESPONSE_HEADERS: Final = ("location", "penstock-run-id", "retry-after", "www-authenticate")
_HEADS: Final = frozenset({"http.response.start", "websocket.http.response.start"})


class SecurityHeaders:
    """Adds the security headers that a response lacks.

    JSON contains data of users, so JSON gets `no-store`.

    An event stream gets no additional headers, because no browser renders an event stream.
    """

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async def send_with_headers(message: Message) -> None:
            if message["type"] in _HEADS:
                headers = MutableHeaders(scope=message)
                media_type = headers.get("content-type", "")
                for name, value in _for(media_type).items():
                    headers.setdefault(name, value)
            await send(message)

        await self._app(scope, receive, send_with_headers)


def _for(media_type: str) -> dict[str, str]:
    if media_type.startswith("text/event-stream"):
        return {}
    return ALWAYS | NO_STORE if "json" in media_type else ALWAYS


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
