"""GET /v1/events: the events of all runs, or of chosen types, after a cursor or from a time."""

from __future__ import annotations

import re
from datetime import datetime
from typing import Final

from starlette.requests import HTTPConnection, Request
from starlette.types import ASGIApp

from penstock import sse
from penstock.bus.streams import EVENTS
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
from penstock_edge.stream.pages import MAX_PAGE, page
from penstock_edge.stream.response import Prefaced
from penstock_edge.surfaces import parameters as by
from penstock_edge.surfaces.described import STREAM_OR_PAGE
from penstock_edge.surfaces.errors import shortened
from penstock_edge.surfaces.query import cursor_of, listed, number, switch, wants_page
from penstock_edge.surfaces.responses import json_response
from penstock_edge.views.framing import PageItems, Sse

SUBJECTS: Final = Parameter(
    "subjects",
    "Only events of these subjects `category.action`, where `*` is any, separated by commas",
)
EVERYTHING: Final = "*.*"

_RFC_3339: Final = re.compile(
    r"\d{4}-\d\d-\d\d[Tt]\d\d:\d\d:\d\d(\.\d{1,9})?([Zz]|[+-]\d\d:\d\d)", re.ASCII
)


class EventsOfAllRuns:
    """The handler of /v1/events."""

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
                by.SINCE,
                by.limit(MAX_PAGE),
            ),
            refusals=(410,),
        )
    )
    async def events(self, request: Request) -> ASGIApp:
        """Respond with the stream, or with one page if the request accepts JSON.

        Without a cursor and a time, the stream begins now.
        """
        many, bus = self._edge.many, self._edge.bus
        if bus.shards.made > 1:
            raise Problem(501, "the events of all runs cannot be read while there are shards")
        caller = identity_of(request.scope)
        subjects = subjects_of(request)
        if caller.grant is not None:
            caller.grant.check_subjects(subjects)
        chosen, owners = subjects or [EVERYTHING], caller.owners
        now = await start_from_now(bus)
        asked = await position_of(self._edge, request)
        position = asked or now
        if wants_page(request):
            limit = number(request.query_params.get("limit"), "limit", MAX_PAGE, MAX_PAGE)
            source = many.types(chosen, owners, lambda batch: None)
            body = await page(
                bus,
                many.of_types(chosen, owners, PageItems()),
                position,
                limit,
                self._edge.allowance(),
                self._edge.turns.named(caller),
                source=source,
                end=now.start,
            )
            return json_response(body)
        self._edge.streams.require_room(request.scope)
        if switch(request, "markers", default=False):
            source = many.types(chosen, owners, lambda batch: None)
            position = await with_live_marker(bus, EVENTS, source.patterns(), position)
        framing = Sse(switch(request, "names", default=True))
        stream = await self._edge.stream(many.of_types(chosen, owners, framing), position)
        # The stream begins with the present cursor. Otherwise a client that loses its connection
        # before the first event would reconnect without a cursor and miss the events in between.
        cursor = sse.at(str(position.after)) if asked is None and position.after else b""
        return Prefaced(stream, cursor)


def subjects_of(request: HTTPConnection) -> list[str]:
    """Return the patterns `category.action` of the request; empty if the request has none.

    Raises:
        Problem: 422 if a pattern matches no event of the catalogue.
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

    The result is None if the request has neither. A cursor is preferred to a time, because an
    EventSource that reconnects sends both.

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
    # An unescaped plus sign in a URL is read as a space.
    text = text.strip().replace(" ", "+")
    if _RFC_3339.fullmatch(text):
        try:
            return datetime.fromisoformat(text.upper())
        except ValueError:
            pass
    raise Problem(422, "since: must be a time as RFC 3339 has it: 2026-01-31T12:00:00Z")
