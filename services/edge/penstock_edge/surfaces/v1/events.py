"""GET /v1/events: the events of chosen types, of all runs, from a cursor or a time."""

from __future__ import annotations

import re
from datetime import datetime
from typing import Final

import orjson
from starlette.requests import HTTPConnection, Request
from starlette.responses import Response
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
from penstock_edge.surfaces.query import cursor_of, listed, number, switch, wants_page
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
        """The stream, or a page of it where JSON is accepted. Without a place: from now on."""
        many, bus = self._edge.many, self._edge.bus
        caller = identity_of(request.scope)
        subjects = subjects_of(request)
        if caller.grant is not None:
            caller.grant.check_subjects(subjects)
        chosen, owners = subjects or [EVERYTHING], caller.owners
        now = await start_from_now(bus)
        asked = await place_of(self._edge, request)
        place = asked or now
        if wants_page(request):
            limit = number(request.query_params.get("limit"), "limit", MAX_PAGE, MAX_PAGE)
            source = many.types(chosen, owners, lambda batch: None)
            seen = many.of_types(chosen, owners, PageItems())
            body = await page(
                bus,
                seen,
                place,
                limit,
                self._edge.allowance(),
                self._edge.turns.named(caller),
                source=source,
                end=now.start,
            )
            return Response(orjson.dumps(body), media_type="application/json")
        self._edge.streams.require_room(request.scope)
        if switch(request, "markers", default=False):
            source = many.types(chosen, owners, lambda batch: None)
            place = await with_live_marker(bus, EVENTS, source.patterns(), place)
        form = Sse(switch(request, "names", default=True))
        stream = await self._edge.stream(many.of_types(chosen, owners, form), place)
        # so that who is cut before the first event comes back to now, and not to then
        begins = sse.at(str(place.after)) if asked is None and place.after else b""
        return Prefaced(stream, begins)


def subjects_of(request: HTTPConnection) -> list[str]:
    """`category.action` patterns of our catalogue. Raises Problem 422 that names the bad one."""
    subjects = listed(request, "subjects")
    for subject in subjects:
        if not any(_matches(subject, type) for type in CATALOGUE):
            raise Problem(
                422,
                f"subjects: {subject[:128]!r} is no event: give category.action as in the "
                "catalogue, where * stands for any category or any action",
            )
    return subjects


def _matches(pattern: str, type: str) -> bool:
    own, given = pattern.split("."), type.split(".")
    return len(own) == len(given) and all(
        mine in ("*", theirs) for mine, theirs in zip(own, given, strict=True)
    )


async def place_of(edge: Edge, request: HTTPConnection) -> StartPosition | None:
    """Where the request says that it goes on; None where it does not say.

    A cursor goes before a time: an EventSource that comes back sends both. Raises Problem 400 for
    a cursor that is not of ours, 422 for what is no time.
    """
    since = _time(request)
    after = cursor_of(request)
    if after is not None:
        return await start_after(edge.bus, after)
    return None if since is None else await start_since(edge.bus, since)


def _time(request: HTTPConnection) -> datetime | None:
    text = request.query_params.get("since")
    if not text:
        return None
    # a plus sign that nobody has escaped arrives as a space
    text = text.strip().replace(" ", "+")
    if _RFC_3339.fullmatch(text):
        try:
            return datetime.fromisoformat(text.upper())
        except ValueError:
            pass
    raise Problem(422, "since: must be a time as RFC 3339 has it: 2026-01-31T12:00:00Z")
