"""Detects that a client has closed its connection."""

from __future__ import annotations

from starlette.types import Receive


async def until_closed(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
