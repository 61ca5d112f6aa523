"""Keep an encoded slash (`%2F`) of an id within its segment of the path.

uvicorn decodes a path before the router matches the path. So `/sessions/a%2Fb/events` would have
one segment too many, and the answer would be 404. This module replaces an encoded slash by a mark
until the route is found. In the parameters of the path, the mark becomes a slash again.
"""

from __future__ import annotations

import re
from typing import Final
from urllib.parse import unquote

from starlette.types import ASGIApp, Receive, Scope, Send

# The control character with which each mark begins. No HTTP parser accepts this character
# unencoded, and a different mark replaces the encoded character (`%1A`). So a client cannot send a
# mark.
_MARK: Final = "\x1a"
_ENCODED: Final = re.compile(rb"%2[Ff]|%1[Aa]")
_MARKED: Final = re.compile(f"{_MARK}(.)")
_MARKS: Final = {b"%2f": b"%1As", b"%1a": b"%1Am"}
_MEANT: Final = {"s": "/", "m": _MARK}


def decoded(value: str) -> str:
    """Return the value of a path parameter, with the marks replaced by the characters that they
    encode."""
    return _MARKED.sub(lambda match: _MEANT[match[1]], value) if _MARK in value else value


def keeping_segments(app: ASGIApp) -> ASGIApp:
    """Wrap the app so that encoded slashes of a path are replaced by marks."""

    async def kept(scope: Scope, receive: Receive, send: Send) -> None:
        raw = scope.get("raw_path") or b""
        if b"%" in raw and _ENCODED.search(raw):
            marked = _ENCODED.sub(lambda match: _MARKS[match[0].lower()], raw)
            scope["path"] = unquote(marked.decode("ascii"))
        await app(scope, receive, send)

    return kept
