"""Serves GET /v1/events: events of all runs, after a cursor or from a time on."""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from http import HTTPStatus
from typing import Any, Final

from starlette.requests import HTTPConnection, Request
from starlette.types import ASGIApp

from penstock import sse
from penstock.bus import Bus
from penstock.bus.streams import events_of
from penstock.events.catalogue import CATALOGUE
from penstock.web.auth import Identity, identity_of
from penstock.web.operation import TEXT, Operation, Parameter, a_list, serves
from penstock.web.problems import Problem
from penstock_edge.edge import Edge
from penstock_edge.sources.locate import (
    StartPosition,
    start_after,
    start_from_now,
    start_since,
    with_live_marker,
)
from penstock_edge.stream.all_shards import AllShards
from penstock_edge.stream.client import Client
from penstock_edge.stream.responses.event_stream import EventStream, Prefaced
from penstock_edge.stream.responses.pages import MAX_PAGE, page
from penstock_edge.stream.saved_cursors import Position, SavedCursor
from penstock_edge.surfaces import parameters as by
from penstock_edge.surfaces.bodies import json_response
from penstock_edge.surfaces.errors import shortened
from penstock_edge.surfaces.query import (
    cursor_of,
    listed,
    number,
    parsed_cursor,
    switch,
    time_of,
    wants_page,
)
from penstock_edge.surfaces.surface import Handlers
from penstock_edge.views.audience import seen_by
from penstock_edge.views.cursor import BEFORE_ALL, Cursor, ShardCursor
from penstock_edge.views.framing import PageItems, Sse

log = logging.getLogger(__name__)

SUBJECTS: Final = Parameter(
    "subjects",
    "Only events of these types `category.action`, separated by commas; `*` stands for any "
    "category or action",
    a_list(TEXT),
)
EVERYTHING: Final = "*.*"


@dataclass(frozen=True, slots=True)
class Asked:
    """What a request asks for: the events, and where the client begins to read."""

    who: Identity
    types: list[str]
    owners: frozenset[str] | None
    since: datetime | None
    after: ShardCursor | None
    saved: SavedCursor | None

    @property
    def resumed(self) -> Position | None:
        """Return the saved position, unless the request has a cursor, which is newer."""
        return self.saved.found if self.saved is not None and self.after is None else None

    def complete_until(self, now: datetime) -> float | None:
        if self.after is not None:
            return None
        if self.resumed is not None:
            return self.resumed.complete_until
        return (self.since or now).timestamp()

    async def start(self, bus: Bus, shard: int, now: StartPosition) -> StartPosition:
        if self.after is not None:
            return await _start_after(bus, self.after.of(shard), shard)
        if self.resumed is not None:
            return await _resumed(bus, self.resumed, shard)
        return now if self.since is None else await start_since(bus, self.since, shard)


class EventsOfAllRuns(Handlers):
    """Has the handler of /v1/events."""

    @serves(
        Operation(
            method="GET",
            path="/v1/events",
            summary="The events of all runs",
            tag="events",
            answers=by.STREAM_OR_PAGE,
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
        """Without a cursor or a time, begin now. A page has `next`, and ignores a saved cursor's
        name."""
        edge, bus = self._edge, self._edge.bus
        shards = range(bus.shards.made)
        asked = await self._asked(request)
        if asked.after is not None and len(asked.after.positions) > len(shards):
            raise _too_many_shards()
        now = await asyncio.gather(*(start_from_now(bus, shard) for shard in shards))
        starts = await asyncio.gather(*(asked.start(bus, shard, now[shard]) for shard in shards))
        if wants_page(request):
            return json_response(await self._page(request, asked, starts, now))
        edge.streams.require_room(request.scope)
        framing = Sse(switch(request, "names", default=True))
        if switch(request, "markers", default=False):
            patterns = edge.many.types(asked.types, asked.owners, lambda batch: None).patterns()
            starts = [
                await with_live_marker(bus, events_of(shard), patterns, start)
                for shard, start in enumerate(starts)
            ]
        if len(shards) == 1:
            return await self._of_one_shard(asked, starts[0], framing)
        return await self._of_all_shards(asked, starts, framing)

    async def _asked(self, request: Request) -> Asked:
        caller = identity_of(request.scope)
        subjects = subjects_of(request)
        if caller.grant is not None:
            caller.grant.check_subjects(subjects)
        since = time_of(request, "since")
        if self._edge.bus.shards.made > 1:
            after = parsed_cursor(request, ShardCursor.parse)
        else:
            cursor = cursor_of(request)
            after = None if cursor is None else ShardCursor([cursor])
        name, saved = request.query_params.get("cursor"), None
        if name is not None and not wants_page(request):
            saved = await self._edge.cursors.open(caller, name)
        return Asked(caller, subjects or [EVERYTHING], caller.owners, since, after, saved)

    async def _of_one_shard(self, asked: Asked, start: StartPosition, framing: Sse) -> ASGIApp:
        await self._begin(asked, str(start.after or ""))
        [client] = await self._join(asked, [start], framing)
        if asked.saved is not None:
            asked.saved.follow([client], lambda: str(client.cursor or "") or None)
        # The stream begins with the present cursor. If the client loses its connection before the
        # first event, the client reconnects with this cursor. Without a cursor, the client would
        # miss the events that come before it has reconnected.
        begins_now = asked.after is None and asked.since is None
        needs_cursor = start.after is not None and (begins_now or asked.resumed is not None)
        return Prefaced(EventStream(client), sse.at(str(start.after)) if needs_cursor else b"")

    async def _of_all_shards(
        self, asked: Asked, starts: Sequence[StartPosition], framing: Sse
    ) -> ASGIApp:
        cursor = _cursor_at(starts)
        await self._begin(asked, str(cursor))
        clients = await self._join(asked, starts, framing)
        if asked.saved is not None:
            asked.saved.follow(clients, lambda: str(cursor))
        preface = sse.at(str(cursor)) if asked.after is None else b""
        bus = self._edge.bus  # its `shards` is another object after each change
        return Prefaced(AllShards(clients, cursor, lambda: bus.shards.made), preface)

    async def _begin(self, asked: Asked, cursor: str) -> None:
        if asked.saved is not None:
            now = self._edge.bus.clock.now()
            await asked.saved.begin(cursor, asked.complete_until(now))

    async def _join(
        self, asked: Asked, starts: Sequence[StartPosition], framing: Sse
    ) -> list[Client]:
        """Leave no client behind if one cannot be made."""
        clients: list[Client] = []
        try:
            for shard, start in enumerate(starts):
                view = self._edge.many.of_types(asked.types, asked.owners, framing, shard)
                clients.append(await self._edge.hubs.join(view, start, asked.who))
        except BaseException:
            for client in clients:
                client.leave()
            raise
        return clients

    async def _page(
        self,
        request: Request,
        asked: Asked,
        starts: Sequence[StartPosition],
        now: Sequence[StartPosition],
    ) -> dict[str, Any]:
        """Read the shards in random order. In a fixed order, small pages could have only events of
        the first shards, however many pages a client reads."""
        edge, query = self._edge, request.query_params
        limit = number(query.get("limit"), "limit", MAX_PAGE, MAX_PAGE)
        allowance, turn = edge.allowance(), edge.turns.for_caller(asked.who)

        async def of_shard(shard: int, limit: int) -> dict[str, Any]:
            view = edge.many.of_types(asked.types, asked.owners, PageItems(), shard)
            view = seen_by(asked.who, view)
            source = edge.many.types(asked.types, asked.owners, lambda batch: None, shard)
            start, end = starts[shard], now[shard].start
            return await page(edge.bus, view, start, limit, allowance, turn, source=source, end=end)

        if len(starts) == 1:
            return await of_shard(0, limit)
        cursor = _cursor_at(starts)
        events: list[Any] = []
        order = random.sample(range(len(starts)), len(starts))
        for done, shard in enumerate(order):
            # an equal share of the remaining limit, rounded up
            share = -(-(limit - len(events)) // (len(order) - done))
            if share == 0:
                break
            one = await of_shard(shard, share)
            events += one["events"]
            if one["next"] is not None:
                cursor.positions[shard] = Cursor.parse(one["next"])
        begun = any(position != BEFORE_ALL for position in cursor.positions)
        return {"events": events, "next": str(cursor) if begun else None}


def _cursor_at(starts: Sequence[StartPosition]) -> ShardCursor:
    return ShardCursor([start.after or BEFORE_ALL for start in starts])


async def _start_after(bus: Bus, after: Cursor, shard: int) -> StartPosition:
    if after != BEFORE_ALL:
        return await start_after(bus, after, shard=shard)
    state = (await bus.api(f"STREAM.INFO.{events_of(shard)}"))["state"]
    first = max(int(state["first_seq"]), 1)
    return StartPosition(first, first, truncated=first > 1)


async def _resumed(bus: Bus, saved: Position, shard: int) -> StartPosition:
    """Return where a client with a saved cursor continues. If events after it have expired or are
    lost, it is the saved time, before which it has all events; some may then come twice."""
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
    subjects = listed(request, "subjects")
    for subject in subjects:
        if not any(_matches(subject, event_type) for event_type in CATALOGUE):
            raise Problem(
                422,
                f"subjects: {shortened(subject)!r} is no event: give category.action as in the "
                "catalogue, where * stands for any category or any action",
            )
    return subjects


def _matches(pattern: str, event_type: str) -> bool:
    wanted, parts = pattern.split("."), event_type.split(".")
    return len(wanted) == len(parts) and all(
        each in ("*", part) for each, part in zip(wanted, parts, strict=True)
    )


async def position_of(edge: Edge, request: HTTPConnection, shard: int = 0) -> StartPosition | None:
    """Return the position that the request names, if any. A cursor counts more than a time: an
    EventSource that reconnects sends the time of its first URL and a newer cursor."""
    since = time_of(request, "since")
    after = cursor_of(request)
    if after is not None:
        return await start_after(edge.bus, after, shard=shard)
    return None if since is None else await start_since(edge.bus, since, shard)
