"""Serves GET /v1/events: events of all runs, after a cursor or from a time on."""

from __future__ import annotations

import asyncio
import logging
import random
import re
from collections.abc import Sequence
from datetime import UTC, datetime
from http import HTTPStatus
from typing import Any, Final

from starlette.requests import HTTPConnection, Request
from starlette.types import ASGIApp

from penstock import sse
from penstock.bus import Bus
from penstock.bus.streams import EVENTS, events_of
from penstock.events.catalogue import CATALOGUE
from penstock.web.auth import identity_of
from penstock.web.operation import Operation, Parameter, serves
from penstock.web.problems import Problem
from penstock_edge.edge import Edge
from penstock_edge.sources.locate import (
    StartPosition,
    start_after,
    start_from_now,
    start_since,
    with_live_marker,
)
from penstock_edge.sources.read_run import Allowance
from penstock_edge.stream.all_shards import AllShards
from penstock_edge.stream.client import Client
from penstock_edge.stream.responses.event_stream import EventStream, Prefaced
from penstock_edge.stream.responses.pages import MAX_PAGE, page
from penstock_edge.stream.saved_cursors import Position, SavedCursor
from penstock_edge.surfaces import parameters as by
from penstock_edge.surfaces.errors import shortened
from penstock_edge.surfaces.parameters import STREAM_OR_PAGE
from penstock_edge.surfaces.query import (
    cursor_of,
    cursor_text,
    listed,
    number,
    parsed_cursor,
    switch,
    wants_page,
)
from penstock_edge.surfaces.responses import json_response
from penstock_edge.views.cursor import BEFORE_ALL, Cursor, ShardCursor
from penstock_edge.views.framing import PageItems, Sse

log = logging.getLogger(__name__)

SUBJECTS: Final = Parameter(
    "subjects",
    "Only events of these types `category.action`, separated by commas; `*` stands for any "
    "category or action",
)
EVERYTHING: Final = "*.*"

_RFC_3339: Final = re.compile(
    r"\d{4}-\d\d-\d\d[Tt]\d\d:\d\d:\d\d(\.\d{1,9})?([Zz]|[+-]\d\d:\d\d)", re.ASCII
)


class EventsOfAllRuns:
    """Has the handler of /v1/events."""

    def __init__(self, edge: Edge) -> None:
        self._edge = edge

    @serves(
        Operation(
            method="GET",
            path="/v1/events",
            summary="The events of all runs",
            tag="events",
            answers=STREAM_OR_PAGE,
            scopes=("read",),
            parameters=(
                SUBJECTS,
                by.NAMES,
                by.MARKERS,
                *by.CURSOR,
                by.SAVED_CURSOR,
                by.SINCE,
                by.limit(MAX_PAGE),
            ),
            refusals=(409, 410),
        )
    )
    async def events(self, request: Request) -> ASGIApp:
        """Respond with the stream, or with one page if the request accepts JSON.

        If the request has neither a cursor nor a time, the stream begins now. A page ignores the
        name of a saved cursor, because a page has `next`.
        """
        many, bus = self._edge.many, self._edge.bus
        caller = identity_of(request.scope)
        subjects = subjects_of(request)
        if caller.grant is not None:
            caller.grant.check_subjects(subjects)
        chosen, owners = subjects or [EVERYTHING], caller.owners
        if bus.shards.made > 1:
            return await self._of_all_shards(request, chosen, owners)
        now = await start_from_now(bus)
        saved = await self._saved(request)
        asked = await position_of(self._edge, request)
        position = asked or now
        if saved is not None and saved.found is not None and not cursor_text(request):
            asked, position = None, await _resumed(bus, saved.found, 0)
        if wants_page(request):
            return json_response(await self._page(request, chosen, owners, position, now.start))
        self._edge.streams.require_room(request.scope)
        if switch(request, "markers", default=False):
            source = many.types(chosen, owners, lambda batch: None)
            position = await with_live_marker(bus, EVENTS, source.patterns(), position)
        framing = Sse(switch(request, "names", default=True))
        if saved is not None:
            await saved.begin(str(position.after or ""), self._complete_until(request, saved))
        client = await self._edge.hubs.join(many.of_types(chosen, owners, framing), position)
        if saved is not None:
            saved.follow([client], lambda: str(client.cursor or "") or None)
        # The stream begins with the present cursor. If the client loses its connection before the
        # first event, the client reconnects with this cursor. Without a cursor, the client would
        # miss the events that come before it has reconnected.
        cursor = sse.at(str(position.after)) if asked is None and position.after else b""
        return Prefaced(EventStream(client), cursor)

    async def _saved(self, request: Request) -> SavedCursor | None:
        """Return the saved cursor that the request names; None if there is no name, or for a page.

        Raises:
            Problem: 422 for an invalid name, 409 if there are too many cursors.
            BusError: the cursor cannot be read now.
        """
        name = request.query_params.get("cursor")
        if name is None or wants_page(request):
            return None
        return await self._edge.cursors.open(identity_of(request.scope), name)

    def _complete_until(self, request: Request, saved: SavedCursor) -> float | None:
        """Return the Unix time before which the client has got all events; None if it is
        unknown."""
        if cursor_text(request):
            return None
        if saved.found is not None:
            return saved.found.complete_until
        since = _time(request)
        return (since or self._edge.bus.clock.now()).timestamp()

    async def _page(
        self,
        request: Request,
        chosen: list[str],
        owners: frozenset[str] | None,
        position: StartPosition,
        end: int,
        *,
        shard: int = 0,
        limit: int | None = None,
        allowance: Allowance | None = None,
    ) -> dict[str, Any]:
        """Return a page of a shard's events before the stream sequence `end`."""
        edge = self._edge
        return await page(
            edge.bus,
            edge.many.of_types(chosen, owners, PageItems(), shard),
            position,
            limit or _limit(request),
            allowance or edge.allowance(),
            edge.turns.for_caller(identity_of(request.scope)),
            source=edge.many.types(chosen, owners, lambda batch: None, shard),
            end=end,
        )

    async def _of_all_shards(
        self, request: Request, chosen: list[str], owners: frozenset[str] | None
    ) -> ASGIApp:
        """Respond with the events of all shards; the cursor has a position for each shard."""
        edge, shards = self._edge, range(self._edge.bus.shards.made)
        saved = await self._saved(request)
        after = parsed_cursor(request, ShardCursor.parse)
        if after is not None and len(after.positions) > len(shards):
            raise _too_many_shards()
        since = _time(request)
        now = await asyncio.gather(*(start_from_now(edge.bus, shard) for shard in shards))
        if after is not None:
            starts = await asyncio.gather(
                *(_start_after(edge.bus, after.of(shard), shard) for shard in shards)
            )
        elif saved is not None and saved.found is not None:
            found = saved.found
            starts = await asyncio.gather(*(_resumed(edge.bus, found, shard) for shard in shards))
        elif since is not None:
            starts = await asyncio.gather(
                *(start_since(edge.bus, since, shard) for shard in shards)
            )
        else:
            starts = now
        cursor = ShardCursor([start.after or BEFORE_ALL for start in starts])
        if wants_page(request):
            return json_response(await self._page_of_all(request, chosen, owners, starts, now))
        edge.streams.require_room(request.scope)
        if switch(request, "markers", default=False):
            source = edge.many.types(chosen, owners, lambda batch: None)
            starts = [
                await with_live_marker(edge.bus, events_of(shard), source.patterns(), start)
                for shard, start in enumerate(starts)
            ]
        framing = Sse(switch(request, "names", default=True))
        if saved is not None:
            await saved.begin(str(cursor), self._complete_until(request, saved))
        clients: list[Client] = []
        try:
            for shard, start in enumerate(starts):
                view = edge.many.of_types(chosen, owners, framing, shard)
                clients.append(await edge.hubs.join(view, start))
        except BaseException:
            for client in clients:
                client.leave()
            raise
        if saved is not None:
            saved.follow(clients, lambda: str(cursor))
        preface = sse.at(str(cursor)) if after is None else b""
        return Prefaced(AllShards(clients, cursor, lambda: edge.bus.shards.made), preface)

    async def _page_of_all(
        self,
        request: Request,
        chosen: list[str],
        owners: frozenset[str] | None,
        starts: Sequence[StartPosition],
        now: Sequence[StartPosition],
    ) -> dict[str, Any]:
        """Return a page with events of each shard.

        The shards are read in random order. In a fixed order, small pages could have only events of
        the first shards, however many pages a client reads.
        """
        cursor = ShardCursor([start.after or BEFORE_ALL for start in starts])
        events: list[Any] = []
        allowance = self._edge.allowance()
        left = _limit(request)
        order = random.sample(range(len(starts)), len(starts))
        for done, shard in enumerate(order):
            # an equal share of the remaining limit, rounded up
            limit = -(-left // (len(order) - done))
            if limit == 0:
                break
            end = now[shard].start
            one = await self._page(
                *(request, chosen, owners, starts[shard], end),
                shard=shard,
                limit=limit,
                allowance=allowance,
            )
            events += one["events"]
            left -= len(one["events"])
            if one["next"] is not None:
                cursor.positions[shard] = Cursor.parse(one["next"])
        begun = any(position != BEFORE_ALL for position in cursor.positions)
        return {"events": events, "next": str(cursor) if begun else None}


def _limit(request: HTTPConnection) -> int:
    return number(request.query_params.get("limit"), "limit", MAX_PAGE, MAX_PAGE)


async def _start_after(bus: Bus, after: Cursor, shard: int) -> StartPosition:
    """Return the position in a shard after this cursor; the shard's beginning for `BEFORE_ALL`.

    Raises:
        Problem: 410 if NATS has lost the cursor's message.
        BusError: the stream cannot be read now.
    """
    if after != BEFORE_ALL:
        return await start_after(bus, after, shard=shard)
    state = (await bus.api(f"STREAM.INFO.{events_of(shard)}"))["state"]
    first = max(int(state["first_seq"]), 1)
    return StartPosition(first, first, truncated=first > 1)


async def _resumed(bus: Bus, saved: Position, shard: int) -> StartPosition:
    """Return the position in a shard at which a client with a saved cursor continues.

    Events after the saved position may have expired or may be lost. In this case the client
    continues at the saved time, before which the client has all events. The client may then get
    some events twice.

    Raises:
        Problem: 503 if this edge does not know all shards of the cursor.
        BusError: the stream cannot be read now.
    """
    time = saved.time or datetime.fromtimestamp(0, UTC)
    if not saved.cursor:
        return await start_since(bus, time, shard)
    try:
        after = ShardCursor.parse(saved.cursor)
    except ValueError:  # the saved text is a position before all events, or is not a cursor
        return await start_since(bus, time, shard)
    if len(after.positions) > bus.shards.made:
        raise _too_many_shards()
    try:
        position = await _start_after(bus, after.of(shard), shard)
    except Problem as problem:
        if problem.status != HTTPStatus.GONE:
            raise
        log.warning(
            "NATS has lost the events of a saved cursor; its client continues at the saved time"
        )
        return await start_since(bus, time, shard)
    if position.truncated and saved.time is not None:
        return await start_since(bus, time, shard)
    return position


def _too_many_shards() -> Problem:
    return Problem(503, "this edge does not know all shards of the cursor yet; try again")


def subjects_of(request: HTTPConnection) -> list[str]:
    """Return the request's patterns `category.action`; an empty list if the request has none.

    Raises:
        Problem: 422 if a pattern matches no type of the event catalogue.
    """
    subjects = listed(request, "subjects")
    for subject in subjects:
        if not any(_matches(subject, type) for type in CATALOGUE):
            raise Problem(
                422,
                f"subjects: {shortened(subject)!r} is no event: give category.action as in the "
                "catalogue, where * stands for any category or any action",
            )
    return subjects


def _matches(pattern: str, type: str) -> bool:
    wanted, parts = pattern.split("."), type.split(".")
    return len(wanted) == len(parts) and all(
        each in ("*", part) for each, part in zip(wanted, parts, strict=True)
    )


async def position_of(edge: Edge, request: HTTPConnection, shard: int = 0) -> StartPosition | None:
    """Return the position in a shard that the request names by a cursor or a time.

    If the request has neither, the result is None. If the request has both, the cursor counts,
    because an EventSource that reconnects sends the time of its first URL and a newer cursor.

    Raises:
        Problem: 400 for a malformed cursor, 410 for a cursor that NATS has lost, 422 for a
            malformed time.
    """
    since = _time(request)
    after = cursor_of(request)
    if after is not None:
        return await start_after(edge.bus, after, shard=shard)
    return None if since is None else await start_since(edge.bus, since, shard)


def _time(request: HTTPConnection) -> datetime | None:
    text = request.query_params.get("since")
    if not text:
        return None
    # In a URL, a plus sign that is not escaped is read as a space. Accepted times contain no space,
    # so each space is turned back into a plus sign.
    text = text.strip().replace(" ", "+")
    if _RFC_3339.fullmatch(text):
        try:
            return datetime.fromisoformat(text.upper())
        except ValueError:
            pass
    raise Problem(422, "since: must be a time as RFC 3339 has it: 2026-01-31T12:00:00Z")
