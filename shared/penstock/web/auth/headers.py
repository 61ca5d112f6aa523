"""Add security headers for browsers to responses."""

from __future__ import annotations

from typing import Final

from starlette.datastructures import MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

ALWAYS: Final = {
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "content-security-policy": "frame-ancestors 'none'",
    "x-frame-options": "DENY",
}
NO_STORE: Final = {"cache-control": "no-store"}
_HEADS: Final = frozenset({"http.response.start", "websocket.http.response.start"})


class SecurityHeaders:
    """Adds the security headers that a response lacks.

    JSON contains data of users, so JSON gets `no-store`.

    An event stream gets no additional headers, because no browser renders an event stream.
    """

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one ASGI connection."""

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
