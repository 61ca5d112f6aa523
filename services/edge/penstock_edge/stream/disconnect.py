"""Detects that a client has closed its connection."""

from __future__ import annotations

from starlette.types import Receive


async def until_closed(receive: Receive) -> None:
    """Wait until the client has closed the connection."""
    while (await receive())["type"] != "http.disconnect":
        pass
