"""Write JSON answers, times and cursors as texts; stop work for clients that have left."""

from __future__ import annotations

import asyncio
import base64
import binascii
from bisect import bisect_right
from collections.abc import Callable, Coroutine
from datetime import UTC, datetime
from typing import Any, Final, TypeVar

import orjson
from starlette.responses import Response
from starlette.types import Receive

from penstock.web.problems import Problem

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


def page_after(
    found: list[T], after: Any, limit: int, place: Callable[[T], Any]
) -> tuple[list[T], bool]:
    """Return up to `limit` items of a list that is sorted by `place`: those whose place comes after
    `after` (None: the first ones). Also returns whether more items follow."""
    begin = bisect_right(found, after, key=place) if after is not None else 0
    return found[begin : begin + limit], len(found) > begin + limit


def cursor_of(*parts: Any) -> str:
    """Return the text by which a client names the place after a page, made of these parts."""
    return base64.urlsafe_b64encode(orjson.dumps(parts)).decode().rstrip("=")


def cursor_parts(cursor: str, *types: type) -> tuple[Any, ...]:
    """Return the parts of a cursor. Raises Problem 422 if they do not have these types."""
    try:
        parts = orjson.loads(base64.urlsafe_b64decode(cursor + "=" * (-len(cursor) % 4)))
        is_place = isinstance(parts, list) and list(map(type, parts)) == list(types)
        if not is_place or any(type(each) is int and abs(each) > 2**62 for each in parts):
            raise ValueError("not a cursor")
    except (ValueError, binascii.Error) as error:
        text = "after: must be `next` of an earlier page; leave it out for the first page"
        raise Problem(422, text) from error
    return tuple(parts)
