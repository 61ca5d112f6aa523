"""Headers that browsers need to be told to be careful."""

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
_HEADS: Final = frozenset({"http.response.start", "websocket.http.response.start"})


class SecurityHeaders:
    """Adds what a response does not say itself; JSON is `no-store`, for it is somebody's data."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """The ASGI application."""

        async def send_with_headers(message: Message) -> None:
            if message["type"] in _HEADS:
                headers = MutableHeaders(scope=message)
                for name, value in ALWAYS.items():
                    headers.setdefault(name, value)
                if "json" in headers.get("content-type", ""):
                    headers.setdefault("cache-control", "no-store")
            await send(message)

        await self._app(scope, receive, send_with_headers)
