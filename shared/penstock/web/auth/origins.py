"""Check which page sent a request, and tell browsers what pages may do: by CORS and other headers.

The check is needed because a browser adds cookies to the requests of any page.
"""

from __future__ import annotations

import contextlib
import ipaddress
from collections.abc import Collection, Mapping
from typing import Any, Final
from urllib.parse import SplitResult, urlsplit

from starlette.datastructures import MutableHeaders
from starlette.middleware import Middleware
from starlette.middleware.cors import CORSMiddleware
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from penstock.web.auth.config import AuthConfig
from penstock.web.auth.credentials import header_of, headers_of

_FORWARDED: Final = (b"forwarded", b"x-forwarded-for", b"x-real-ip")


def is_loopback(host: str | None) -> bool:
    if host == "localhost":
        return True
    with contextlib.suppress(ValueError):
        address = ipaddress.ip_address(host or "")
        # A socket for IPv4 and IPv6 shows an IPv4 peer as ::ffff:127.0.0.1.
        return (getattr(address, "ipv4_mapped", None) or address).is_loopback
    return False


def is_local(scope: Mapping[str, Any]) -> bool:
    """Return whether the caller is on this machine.

    The caller chooses the header Host, so this function checks the address of the connection's peer
    instead. If a loopback peer sends a header such as X-Forwarded-For, the peer is a proxy. The
    callers of a proxy may be on other machines, so the result for a proxy is False.
    """
    client = scope.get("client")
    if client is None or not is_loopback(client[0]):
        return False
    return not any(headers_of(scope, name) for name in _FORWARDED)


def is_allowed_origin(scope: Mapping[str, Any], listed: Collection[str]) -> bool:
    """Return whether the request comes from no page, from a page of this server, or from a listed
    origin.

    A page is a page of this server if the page's Origin is equal to the header Host. If the peer is
    on this machine, the page's name must be any loopback name, with the same port. The port is
    compared because another program on this machine may serve pages of strangers. The name is
    compared because a foreign name that resolves to 127.0.0.1 (DNS rebinding) would otherwise count
    as this server, because Origin and Host would be equal.
    """
    origins = headers_of(scope, b"origin")
    if not origins:
        return _comes_from_no_page(scope)
    if len(origins) > 1:
        return False
    if origins[0] in listed:
        return True
    host = header_of(scope, b"host") or ""
    try:
        page, own = urlsplit(origins[0]), urlsplit(f"{urlsplit(origins[0]).scheme}://{host}")
        if is_local(scope):
            return is_loopback(page.hostname) and _port(page) == _port(own)
    except ValueError:
        return False
    return bool(page.netloc) and page.netloc == host


def _comes_from_no_page(scope: Mapping[str, Any]) -> bool:
    """Return whether a request without the header Origin comes from no foreign page.

    Browsers send Origin with WebSockets and unsafe requests, and `Sec-Fetch-Site` besides. A
    browser that sends neither is so old that nobody knows which page has sent the request. Other
    clients have no pages.
    """
    site = header_of(scope, b"sec-fetch-site")
    if site is not None:
        return site in ("same-origin", "none")
    return not (header_of(scope, b"user-agent") or "").startswith("Mozilla/")


def _port(address: SplitResult) -> int | None:
    return address.port or {"http": 80, "https": 443}.get(address.scheme)


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
