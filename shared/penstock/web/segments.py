"""Keep an encoded slash (`%2F`) of an id within its segment of the path.

uvicorn decodes a path before the router matches the path. So `/sessions/a%2Fb/events` would have
one segment too many, and the answer would be 404. To prevent this, this module replaces each
encoded slash with a mark before the route is looked up. In the parameters of the path, each mark
becomes a slash again.
"""

from __future__ import annotations

import re
from typing import Final
from urllib.parse import unquote

from starlette.types import ASGIApp, Receive, Scope, Send

# The control character with which each mark begins. A client cannot send a mark, because no HTTP
# parser accepts this character unencoded, and the encoded character (`%1A`) is itself replaced with
# a different mark.
_MARK: Final = "\x1a"
_ENCODED: Final = re.compile(rb"%2[Ff]|%1[Aa]")
_MARKED: Final = re.compile(f"{_MARK}(.)")
_MARKS: Final = {b"%2f": b"%1As", b"%1a": b"%1Am"}
_MEANT: Final = {"s": "/", "m": _MARK}


def decoded(value: str) -> str:
    """Return the value of a path parameter, in which each mark has become its character again."""
    return _MARKED.sub(lambda match: _MEANT[match[1]], value) if _MARK in value else value


def keeping_segments(app: ASGIApp) -> ASGIApp:
    """Wrap an app so that marks replace the encoded slashes in paths."""

    async def marking(scope: Scope, receive: Receive, send: Send) -> None:
        raw = scope.get("raw_path") or b""
        if b"%" in raw and _ENCODED.search(raw):
            marked = _ENCODED.sub(lambda match: _MARKS[match[0].lower()], raw)
            scope["path"] = unquote(marked.decode("ascii"))
        await app(scope, receive, send)

    return marking
