"""Ids with a slash in paths: `%2F` belongs to its segment.

uvicorn decodes a path before it is matched, so that `/sessions/a%2Fb/events` had a segment too many
and was 404. Here an encoded slash stays marked until the route has matched, and is a slash again in
the endpoint's parameters.
"""

from __future__ import annotations

import re
from typing import Final
from urllib.parse import unquote

from starlette.types import ASGIApp, Receive, Scope, Send

# The mark is a control character that no parser lets through unencoded; encoded, it is marked too.
_MARK: Final = "\x1a"
_ENCODED: Final = re.compile(rb"%2[Ff]|%1[Aa]")
_MARKED: Final = re.compile(f"{_MARK}(.)")
_MARKS: Final = {b"%2f": b"%1As", b"%1a": b"%1Am"}
_MEANT: Final = {"s": "/", "m": _MARK}


def decoded(value: str) -> str:
    """The value of a path's parameter, its encoded slashes as slashes."""
    return _MARKED.sub(lambda match: _MEANT[match[1]], value) if _MARK in value else value


def keeping_segments(app: ASGIApp) -> ASGIApp:
    """The application, given paths whose encoded slashes are no separators."""

    async def kept(scope: Scope, receive: Receive, send: Send) -> None:
        raw = scope.get("raw_path") or b""
        if b"%" in raw and _ENCODED.search(raw):
            marked = _ENCODED.sub(lambda match: _MARKS[match[0].lower()], raw)
            scope["path"] = unquote(marked.decode("ascii"))
        await app(scope, receive, send)

    return kept
