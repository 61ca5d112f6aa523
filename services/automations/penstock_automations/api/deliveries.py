"""Serves the routes of deliveries: list them, show one, replay one or many."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from typing import Any, Final

from pydantic import BaseModel, ConfigDict, Field, ValidationError
from starlette.requests import Request
from starlette.responses import Response

from penstock.bus import Bus
from penstock.events import timestamp
from penstock.web.auth import identity_of
from penstock.web.bodies import ignore_body, read_model
from penstock.web.operation import (
    NULLABLE,
    OBJECT,
    TEXT,
    Json,
    Parameter,
    a_list,
    an_object,
    in_path,
    json,
    one_of,
    serves,
)
from penstock.web.problems import Problem, invalid
from penstock.web.read_scheduler import ReadScheduler
from penstock_automations.api.common import (
    MAX_BODY_BYTES,
    MAX_PAGE,
    RULE_ID,
    a_page,
    answer,
    cursor_of,
    cursor_parts,
    found_rule,
    may_use,
    operation,
    or_problem,
    time_of,
)
from penstock_automations.delivery.listing import (
    LAST_MS,
    DeliveryList,
    Page,
    Selection,
    Status,
    is_delivery,
    record_of,
)
from penstock_automations.delivery.records import BUCKET, Attempt, DeliveryRecord
from penstock_automations.delivery.replay import CannotReplay, replay_delivery
from penstock_automations.rules.records import CompiledRule
from penstock_automations.rules.store import CurrentRules, RuleStore

MAX_REPLAYED: Final = 1000  # the greatest number of deliveries that one request replays
AT_ONCE: Final = 50
# The greatest number of seconds until a request that replays deliveries is answered.
REPLAY_S: Final = 15.0


class Query(BaseModel):
    """Which deliveries to list."""

    model_config = ConfigDict(extra="forbid")

    status: Status | None = Field(None, description="Only deliveries of this status")
    since: str | None = Field(
        None, max_length=40, description="Only deliveries that began at this time or later"
    )
    until: str | None = Field(
        None, max_length=40, description="Only deliveries that began before this time"
    )
    limit: int = Field(100, ge=1, le=MAX_PAGE, description="How many deliveries a page has at most")
    after: str | None = Field(None, max_length=1000, description="`next` of the page before")


class ReplayBody(BaseModel):
    """Which deliveries are made again."""

    model_config = ConfigDict(extra="forbid")

    status: Status = Field(
        "failed", description="Deliveries of this status; `waiting` ones cannot be made again."
    )
    since: str | None = Field(
        None, max_length=40, description="Only deliveries that began at this time or later."
    )
    until: str | None = Field(
        None, max_length=40, description="Only deliveries that began before this time."
    )
    limit: int = Field(
        MAX_REPLAYED, ge=1, le=MAX_REPLAYED, description="How many are made again at most."
    )
    after: str | None = Field(
        None, max_length=1000, description="`next` of the answer before, to continue."
    )


_FILTERS: Final = tuple(
    Parameter(name, str(schema.pop("description")), schema)
    for name, schema in Query.model_json_schema()["properties"].items()
)
_DELIVERY_ID: Final = in_path("delivery_id", "The delivery's id, which receivers get as webhook-id")
_COUNT: Final[Json] = {"type": "integer"}
DELIVERY: Final[Json] = an_object(
    id=TEXT,
    rule=TEXT,
    type=TEXT,
    source=TEXT,
    run_id=NULLABLE,
    status=one_of(("waiting", "delivered", "failed")),
    replay=_COUNT,
    attempts=_COUNT,
    began_at=TEXT,
    ended_at=NULLABLE,
    next_at=NULLABLE,
    last={"type": ["object", "null"]},
)
_REPLAYED: Final[Json] = an_object(replayed=_COUNT, left_out=_COUNT, next=NULLABLE)
_WHOLE: Final[Json] = {
    "allOf": [
        DELIVERY,
        an_object(request={"type": ["object", "null"]}, all_attempts=a_list(OBJECT)),
    ]
}


class Deliveries:
    """The handlers of the routes."""

    def __init__(
        self, bus: Bus, store: RuleStore, current: CurrentRules, deliveries: DeliveryList
    ) -> None:
        self._bus = bus
        self._store = store
        self._current = current
        self._deliveries = deliveries
        self._turns = ReadScheduler()

    @serves(
        operation(
            method="GET",
            path="/v1/automations/{rule_id}/deliveries",
            summary="The deliveries of a rule, the newest first; failed ones are its dead letters",
            answers={200: json("A page", a_page("deliveries", DELIVERY))},
            parameters=(RULE_ID, *_FILTERS),
            refusals=(404,),
        )
    )
    async def index(self, request: Request) -> Response:
        """Return a page of the rule's deliveries."""
        return await self._listed(request, [await found_rule(request, self._store)])

    @serves(
        operation(
            method="GET",
            path="/v1/automations/deliveries",
            summary="The deliveries of all rules of the caller, the newest first",
            description="With the scope administer, the deliveries of all rules.",
            answers={200: json("A page", a_page("deliveries", DELIVERY))},
            parameters=_FILTERS,
        )
    )
    async def all(self, request: Request) -> Response:
        """Return a page of the deliveries of the caller's rules."""
        return await self._listed(request, await self._own(request))

    @serves(
        operation(
            method="GET",
            path="/v1/automations/{rule_id}/deliveries/{delivery_id}",
            summary="One delivery: the last request without secrets, all attempts and answers",
            answers={200: json("The delivery", _WHOLE)},
            parameters=(RULE_ID, _DELIVERY_ID),
            refusals=(404,),
        )
    )
    async def show(self, request: Request) -> Response:
        """Return the delivery's record."""
        record = await self._found(request)
        head = record.request.model_dump(mode="json") if record.request is not None else None
        attempts = [_attempt(each) for each in record.attempts]
        return answer({**_shown(record), "request": head, "all_attempts": attempts})

    @serves(
        operation(
            method="POST",
            path="/v1/automations/{rule_id}/deliveries/{delivery_id}/replay",
            summary="Make a delivery again, with the same webhook-id",
            answers={202: json("The delivery", DELIVERY)},
            parameters=(RULE_ID, _DELIVERY_ID),
            refusals=(404, 409),
        )
    )
    async def replay(self, request: Request) -> Response:
        """Begin to replay the delivery."""
        await ignore_body(request)
        record = await self._found(request)
        try:
            await or_problem(replay_delivery(self._bus, record))
        except CannotReplay as error:
            raise Problem(409, f"the delivery cannot be made again: {error}") from error
        return answer(_shown(record), 202)

    @serves(
        operation(
            method="POST",
            path="/v1/automations/{rule_id}/replay",
            summary="Make failed deliveries of a rule again, all or those of a time",
            description="Answers after at most 1,000 deliveries or 15 s. `next` is set if there "
            "are more: send it as `after`.",
            answers={202: json("What was done", _REPLAYED)},
            parameters=(RULE_ID,),
            body=ReplayBody,
            example={"status": "failed", "since": "2026-01-31T12:00:00Z"},
            refusals=(404,),
        )
    )
    async def replay_some(self, request: Request) -> Response:
        """Begin to replay those deliveries of one rule that the body selects."""
        return await self._replay(request, [await found_rule(request, self._store)])

    @serves(
        operation(
            method="POST",
            path="/v1/automations/replay",
            summary="Make failed deliveries of all rules of the caller again",
            description="As for one rule. With the scope administer, deliveries of all rules.",
            answers={202: json("What was done", _REPLAYED)},
            body=ReplayBody,
            example={"status": "failed", "since": "2026-01-31T12:00:00Z"},
        )
    )
    async def replay_all(self, request: Request) -> Response:
        """Begin to replay those deliveries of the caller's rules that the body selects."""
        return await self._replay(request, await self._own(request))

    async def _own(self, request: Request) -> list[CompiledRule]:
        who = identity_of(request)
        await or_problem(self._current.refresh())
        return [rule for rule in self._current.all() if may_use(who, rule.record)]

    async def _listed(self, request: Request, rules: Sequence[CompiledRule]) -> Response:
        try:
            query = Query.model_validate(dict(request.query_params))
        except ValidationError as error:
            raise invalid(error) from error
        page = await self._page(request, rules, query)
        return answer(
            {"deliveries": [_shown(each) for each in page.deliveries], "next": _next(page)}
        )

    async def _replay(self, request: Request, rules: Sequence[CompiledRule]) -> Response:
        body = await read_model(request, ReplayBody, MAX_BODY_BYTES)
        replayed = left_out = 0
        until, after = time.monotonic() + REPLAY_S, body.after
        while replayed + left_out < body.limit:
            size = min(AT_ONCE, body.limit - replayed - left_out)
            part = body.model_copy(update={"after": after, "limit": size})
            page = await self._page(request, rules, part)
            done = await or_problem(_replayed(self._bus, page.deliveries))
            replayed += done
            left_out += len(page.deliveries) - done
            after = _next(page)
            if after is None or time.monotonic() > until:
                break
        return answer({"replayed": replayed, "left_out": left_out, "next": after}, 202)

    async def _page(
        self, request: Request, rules: Sequence[CompiledRule], query: Query | ReplayBody
    ) -> Page:
        place = cursor_parts(query.after, int, int) if query.after is not None else None
        wanted = Selection(
            _names(rules),
            query.status,
            _ms(query.since, "since", -LAST_MS),
            _ms(query.until, "until", LAST_MS),
        )
        async with self._turns.of(identity_of(request).user_id):
            after = (place[0], place[1]) if place is not None else None
            return await or_problem(self._deliveries.page(wanted, after, query.limit))

    async def _found(self, request: Request) -> DeliveryRecord:
        """Return the delivery that the path names.

        Raises Problem 404 if there is no such delivery, or if the caller may not see it.
        """
        rule = await found_rule(request, self._store)
        delivery_id = request.path_params["delivery_id"]
        name, _, source = delivery_id.partition(".")
        # The id of a delivery has a dot before the event's sequence, where the key in KV has a
        # dash.
        key = f"{name}.{source.replace('.', '-')}"
        record = None
        if name == rule.id and _is_key(key):
            entry = await or_problem(self._bus.bucket(BUCKET).get(key))
            record = record_of(entry) if entry is not None else None
        if record is None or not Selection(_names([rule])).has(record):
            raise Problem(404, f"there is no delivery {delivery_id}")
        return record


async def _replayed(bus: Bus, records: list[DeliveryRecord]) -> int:
    """Replay these deliveries; return how many were replayed."""

    async def one(record: DeliveryRecord) -> bool:
        try:
            await replay_delivery(bus, record)
        except CannotReplay:
            return False
        return True

    return sum(await asyncio.gather(*map(one, records)))


def _names(rules: Sequence[CompiledRule]) -> frozenset[tuple[str, str]]:
    return frozenset((rule.id, rule.record.uid) for rule in rules)


def _shown(record: DeliveryRecord) -> dict[str, Any]:
    fields = {"id", "rule", "type", "source", "run_id", "sequence", "status", "replay"}
    last = record.last
    return {
        **record.model_dump(mode="json", include=fields),
        "started_run_id": record.started_run_id,
        "attempts": record.made,
        "began_at": _time(record.began_at),
        "ended_at": _time(record.ended_at),
        "next_at": _time(record.next_at) if record.status == "waiting" else None,
        "last": _attempt(last) if last is not None else None,
    }


def _attempt(attempt: Attempt) -> dict[str, Any]:
    return attempt.model_dump(mode="json", exclude_none=True)


def _next(page: Page) -> str | None:
    return cursor_of(*page.next) if page.next is not None else None


def _time(unix_s: float | None) -> str | None:
    return timestamp(int(unix_s * 1000)) if unix_s is not None else None


def _ms(text: str | None, field: str, without: int) -> int:
    return without if text is None else int(time_of(text, field).timestamp() * 1000)


def _is_key(text: str) -> bool:
    return is_delivery(text) and text.isascii() and text.translate(_DASHES).isalnum()


_DASHES: Final = str.maketrans("", "", ".-_")
