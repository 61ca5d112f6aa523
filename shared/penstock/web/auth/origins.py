"""The pages whose requests are accepted with what a browser adds by itself, such as a cookie."""

from __future__ import annotations

import contextlib
import ipaddress
from collections.abc import Collection, Mapping
from typing import Any, Final
from urllib.parse import urlsplit

from penstock.web.auth.credentials import header_of, headers_of

_FORWARDED: Final = (b"forwarded", b"x-forwarded-for", b"x-real-ip")


def is_loopback(host: str | None) -> bool:
    """Whether this address or name means this machine only."""
    if host == "localhost":
        return True
    with contextlib.suppress(ValueError):
        address = ipaddress.ip_address(host or "")
        # A socket for both families shows IPv4 peers as ::ffff:127.0.0.1.
        return (getattr(address, "ipv4_mapped", None) or address).is_loopback
    return False


def is_local(scope: Mapping[str, Any]) -> bool:
    """Whether the peer is on this machine. The header Host does not count: the caller writes it.

    A loopback peer that says that it forwards is a proxy: its callers are somewhere else.
    """
    client = scope.get("client")
    if client is None or not is_loopback(client[0]):
        return False
    return not any(headers_of(scope, name) for name in _FORWARDED)


def check_origin(scope: Mapping[str, Any], listed: Collection[str]) -> bool:
    """Whether the page that sent this, if one did, is ours or listed.

    Browsers always say an Origin on WebSockets and unsafe requests; other clients need none. On
    this machine only pages of this machine are ours: a foreign name that resolves to 127.0.0.1
    (DNS rebinding) has an Origin equal to its Host.
    """
    origins = headers_of(scope, b"origin")
    if not origins:
        return True
    if len(origins) > 1:
        return False
    if origins[0] in listed:
        return True
    try:
        page = urlsplit(origins[0])
        hostname = page.hostname
    except ValueError:
        return False
    if is_local(scope):
        return is_loopback(hostname)
    return bool(page.netloc) and page.netloc == header_of(scope, b"host")
