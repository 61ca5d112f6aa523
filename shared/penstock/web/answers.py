"""Write JSON answers, and times as texts; stop work for clients that have left."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from datetime import UTC, datetime
from typing import Any, Final, TypeVar

import orjson
from starlette.responses import Response
from starlette.types import Receive

DAY_S: Final = 24 * 3600.0
MAX_LIFETIME_S: Final = 366 * DAY_S
LAST_S: Final = datetime(9999, 12, 31, tzinfo=UTC).timestamp()


def time_text(at_s: float | None) -> str | None:
    """Return a time in Unix seconds as ISO 8601 in UTC. A time after the year 9999 becomes
    `LAST_S`."""
    if at_s is None:
        return None
    at = datetime.fromtimestamp(min(at_s, LAST_S), UTC)
    return at.isoformat(timespec="milliseconds").replace("+00:00", "Z")


def json_answer(body: Any, status: int = 200, **headers: str) -> Response:
    return Response(orjson.dumps(body), status, headers, "application/json")


T = TypeVar("T")


async def while_connected(receive: Receive, answer: Coroutine[Any, Any, T]) -> T | None:
    """Return the result of `answer`. If the client disconnects first, cancel the work and return
    None."""
    answering, leaving = asyncio.create_task(answer), asyncio.create_task(until_closed(receive))
    try:
        await asyncio.wait({answering, leaving}, return_when=asyncio.FIRST_COMPLETED)
        return answering.result() if answering.done() else None
    finally:
        leaving.cancel()
        if not answering.done():
            answering.cancel()
            await asyncio.wait({answering})


async def until_closed(receive: Receive) -> None:
    """Wait until the client has closed the connection."""
    while (await receive())["type"] != "http.disconnect":
        pass
