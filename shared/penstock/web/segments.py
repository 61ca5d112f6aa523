"""Ids with a slash in paths: `%2F` belongs to its segment.

uvicorn decodes a path before it is matched, so that `/sessions/a%2Fb/events` had a segment too many
and was 404. Here an encoded slash stays marked until the route has matched, and is a slash again in
the endpoint's parameters.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Final
from urllib.parse import unquote

from starlette.convertors import Convertor, PathConvertor, StringConvertor
from starlette.routing import BaseRoute, Route, WebSocketRoute
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


class _Segment(Convertor[str]):
    """One segment of a path, its encoded slashes as slashes."""

    regex = StringConvertor.regex

    def convert(self, value: str) -> str:
        return decoded(value)

    def to_string(self, value: str) -> str:
        raise NotImplementedError("paths are matched here, never made")


class _Segments(_Segment):
    """The rest of a path (`{name:path}`): whether a slash came encoded makes no difference."""

    regex = PathConvertor.regex


def take_encoded_slashes(routes: Iterable[BaseRoute]) -> None:
    """Let the parameters of these routes hold slashes; to be used with `keeping_segments`."""
    for route in routes:
        if isinstance(route, Route | WebSocketRoute):
            for name, convertor in route.param_convertors.items():
                if isinstance(convertor, StringConvertor):
                    route.param_convertors[name] = _Segment()
                elif isinstance(convertor, PathConvertor):
                    route.param_convertors[name] = _Segments()


def keeping_segments(app: ASGIApp) -> ASGIApp:
    """The application, given paths whose encoded slashes are no separators."""

    async def kept(scope: Scope, receive: Receive, send: Send) -> None:
        raw = scope.get("raw_path") or b""
        if b"%" in raw and _ENCODED.search(raw):
            marked = _ENCODED.sub(lambda match: _MARKS[match[0].lower()], raw)
            scope["path"] = unquote(marked.decode("ascii"))
        await app(scope, receive, send)

    return kept
