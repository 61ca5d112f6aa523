"""If callers are not authenticated, check the header Host of each request.

A foreign host name can resolve to this machine (DNS rebinding). A page with such a name could read
every answer, because its browser would think that the page came from this server. Only the header
Host shows the foreign name, and a page cannot change this header.
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Collection
from typing import Final

from starlette.types import ASGIApp, Receive, Scope, Send

from penstock.web.auth.credentials import headers_of
from penstock.web.auth.origins import is_loopback
from penstock.web.problems import PROBLEM, Problem
from penstock.web.router import refuse

ANY: Final = "*"
_HOST = re.compile(r"(?:\[([0-9A-Fa-f:.]{2,45})\]|([A-Za-z0-9._-]{1,255}))(?::[0-9]{1,5})?")


def host_name_of(header: str) -> str | None:
    """Return the name or address of a Host header in lower case; None for an invalid header."""
    match = _HOST.fullmatch(header)
    if match is None:
        return None
    return (match[1] or match[2]).lower().removesuffix(".") or None


class HostCheck:
    """Answers only requests whose header Host has a loopback name or one of `names`.

    With `addresses`, requests whose Host is an IP address are answered, too. Such requests are
    safe, because a page with a foreign name cannot send them. If `names` contains `*`, every
    request is answered.
    """

    def __init__(
        self, app: ASGIApp, names: Collection[str] = (), *, addresses: bool = False
    ) -> None:
        self._app = app
        self._names = frozenset(host_name_of(name) or name for name in names)
        self._addresses = addresses

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        problem = self._problem(scope) if scope["type"] in ("http", "websocket") else None
        if problem is None:
            await self._app(scope, receive, send)
            return
        await refuse(problem, PROBLEM, scope, receive, send)

    def _problem(self, scope: Scope) -> Problem | None:
        if ANY in self._names:
            return None
        headers = headers_of(scope, b"host")
        if len(headers) != 1:
            return Problem(400, "a request must have one Host header")
        name = host_name_of(headers[0])
        if name is None:
            return Problem(400, "the Host header is no host name or address")
        if is_loopback(name) or name in self._names or (self._addresses and _is_address(name)):
            return None
        return Problem(
            421,
            f"nobody is asked who they are here, so only requests for this machine (localhost, "
            f"127.0.0.1) are answered, and {name} is another name. If it is right, add it to "
            "PENSTOCK_AUTH_HOSTS, or ask callers who they are: PENSTOCK_AUTH_JWT_SECRET or "
            "PENSTOCK_AUTH_JWKS_URL",
        )


def _is_address(name: str) -> bool:
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True
