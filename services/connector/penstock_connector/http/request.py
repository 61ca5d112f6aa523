"""Writes an HTTP/1.1 request. Pure."""

from __future__ import annotations

import re
from typing import Final

import httpx

_TOKEN: Final = re.compile(rb"[!#$%&'*+\-.^_`|~0-9A-Za-z]+")
_TARGET: Final = re.compile(rb"[\x21-\x7e]+")
_VALUE: Final = re.compile(rb"(?:[^\x00-\x20\x7f](?:[^\x00-\x08\x0a-\x1f\x7f]*[^\x00-\x20\x7f])?)?")


def request_bytes(request: httpx.Request, content: bytes) -> bytes:
    """Return the bytes of the request with its body.

    The request has the header `Connection: close`, because no other request follows on the
    connection.

    Raises:
        httpx.LocalProtocolError: the method, the URL or a header has a line end or another control
            character. With such a character, the server could read a different request.
    """
    method, target = request.method.encode("ascii", "replace"), request.url.raw_path
    if not _TOKEN.fullmatch(method) or not _TARGET.fullmatch(target):
        raise httpx.LocalProtocolError(f"the request {method!r} {target!r} cannot be sent")
    lines = [b"%b %b HTTP/1.1\r\n" % (method, target)]
    for name, value in request.headers.raw:
        if not _TOKEN.fullmatch(name) or not _VALUE.fullmatch(value):
            raise httpx.LocalProtocolError(f"the header {name!r} cannot be sent: its value is bad")
        if name.lower() == b"transfer-encoding":
            content = (
                b"%x\r\n%b\r\n0\r\n\r\n" % (len(content), content) if content else b"0\r\n\r\n"
            )
        if name.lower() != b"connection":
            lines.append(b"%b: %b\r\n" % (name, value))
    return b"".join((*lines, b"Connection: close\r\n\r\n", content))


def _chunk(content: bytes) -> bytes:
    return b"%x\r\n%b\r\n" % (len(content), content) if content else b""
