"""Serves the routes of deliveries: list them, show one, replay or retry one or many, and list the
receivers that get none for now."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Final

from pydantic import Field
from starlette.requests import Request
from starlette.responses import Response

from penstock.bus import Bus
from penstock.events import timestamp
from penstock.validation import Part
from penstock.web.answers import cursor_of, cursor_parts, json_answer
from penstock.web.auth import identity_of
from penstock.web.bodies import ignore_body, read_model, read_query
from penstock.web.operation import (
    NULLABLE,
    OBJECT,
    TEXT,
    Json,
    Operation,
    a_list,
    an_object,
    in_path,
    in_query,
    json,
    one_of,
    serves,
)
from penstock.web.problems import Problem
from penstock.web.read_scheduler import ReadScheduler
from penstock_automations.actions.webhook.mirror import EndpointRecord, endpoints_of
from penstock_automations.api.common import (
    MAX_BODY_BYTES,
    MAX_PAGE,
    RULE_ID,
    RULE_NAME,
    a_page,
    found_rule,
    operation,
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
from penstock_automations.delivery.replay import CannotReplay, replay_delivery, retry_delivery
from penstock_automations.rules.records import CompiledRule
from penstock_automations.rules.store import CurrentRules, RuleStore, deleted_rules

Names = frozenset[tuple[str, str]]  # rules, each as its id and its `uid`

MAX_REPLAYED: Final = 1000  # the greatest number of deliveries that one request replays
AT_ONCE: Final = 50
# The greatest number of seconds until a request that replays deliveries is answered.
REPLAY_S: Final = 15.0


class _Times(Part):
    since: str | None = Field(
        None, max_length=40, description="Only deliveries that began at this time or later."
    )
    until: str | None = Field(
        None, max_length=40, description="Only deliveries that began before this time."
    )
    after: str | None = Field(
        None, max_length=1000, description="`next` of the answer before, to continue."
    )


class Query(_Times):
    """Which deliveries to list."""

    status: Status | None = Field(None, description="Only deliveries of this status.")
    limit: int = Field(100, ge=1, le=MAX_PAGE, description="How many a page has at most.")


class RetryBody(_Times):
    """Which waiting deliveries are tried now."""

    limit: int = Field(
        MAX_REPLAYED, ge=1, le=MAX_REPLAYED, description="How many are made at most."
    )


class ReplayBody(RetryBody):
    """Which deliveries are made again."""

    status: Status = Field(
        "failed", description="Deliveries of this status; `waiting` ones cannot be made again."
    )


_FILTERS: Final = in_query(Query)
_DELIVERY_ID: Final = in_path(
    "delivery_id", "The delivery's id, which receivers get as penstock-delivery"
)
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
    waits_for=NULLABLE,
    last={"type": ["object", "null"]},
)
_IN_PARTS: Final = (
    "Answers after at most 1,000 deliveries or 15 s. `next` is set if there are more: send it as "
    "`after`."
)
_WHOLE: Final[Json] = {
    "allOf": [
        DELIVERY,
        an_object(request={"type": ["object", "null"]}, all_attempts=a_list(OBJECT)),
    ]
}

_ENDPOINT: Final[Json] = an_object(
    endpoint=TEXT,
    rule=TEXT,
    process=TEXT,
    state=one_of(("open", "half_open")),
    failures={"type": "integer"},
    next_at=NULLABLE,
)


def _of_one(do: str, summary: str, description: str = "") -> Operation:
    return operation(
        method="POST",
        path=f"/v1/automations/{{rule_id}}/deliveries/{{delivery_id}}/{do}",
        summary=summary,
        description=description,
        answers={202: json("The delivery", DELIVERY)},
        parameters=(RULE_ID, _DELIVERY_ID),
        refusals=(404, 409),
    )


def _of_many(
    path: str,
    summary: str,
    description: str = _IN_PARTS,
    *,
    body: type[RetryBody] = RetryBody,
    refusals: tuple[int, ...] = (),
) -> Operation:
    example = {"since": "2026-01-31T12:00:00Z"}
    if body is ReplayBody:
        done, example = "replayed", {"status": "failed", **example}
    else:
        done = "retried"
    counts = an_object(**{done: _COUNT, "left_out": _COUNT, "next": NULLABLE})
    return operation(
        method="POST",
        path=f"/v1/automations{path}",
        summary=summary,
        description=description,
        answers={202: json("What was done", counts)},
        parameters=(RULE_ID,) if "{rule_id}" in path else (),
        body=body,
        example=example,
        refusals=refusals,
    )


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
            summary="The deliveries of a rule, the newest first",
            description="Also of a rule that was deleted, until its deliveries expire.",
            answers={200: json("A page", a_page("deliveries", DELIVERY))},
            parameters=(RULE_ID, *_FILTERS),
            refusals=(404,),
        )
    )
    async def index(self, request: Request) -> Response:
        return await self._listed(request, await self._visible(request))

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
        deleted = await self._deleted(request, "*")
        return await self._listed(request, _names(await self._own(request)) | deleted)

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
        record = await self._found(request)
        head = record.request.model_dump(mode="json") if record.request is not None else None
        attempts = [_attempt(each) for each in record.attempts]
        return json_answer({**_shown(record), "request": head, "all_attempts": attempts})

    @serves(_of_one("replay", "Make a delivery again, with the same webhook-id"))
    async def replay(self, request: Request) -> Response:
        await ignore_body(request)
        _, record = await self._repeatable(request)
        return await self._begin(replay_delivery(self._bus, record), record, "made again")

    @serves(
        _of_many(
            "/{rule_id}/replay",
            "Make failed deliveries of a rule again, all or those of a time",
            body=ReplayBody,
            refusals=(404,),
        )
    )
    async def replay_some(self, request: Request) -> Response:
        return await self._replay(request, [await found_rule(request, self._store)])

    @serves(
        _of_many(
            "/replay",
            "Make failed deliveries of all rules of the caller again",
            "As for one rule. With the scope administer, deliveries of all rules.",
            body=ReplayBody,
        )
    )
    async def replay_all(self, request: Request) -> Response:
        return await self._replay(request, await self._own(request))

    @serves(
        _of_one(
            "retry-now",
            "Make the next attempt of a waiting delivery now",
            "Also if the circuit breaker of the receiver is open. The rate and the "
            "concurrency of the rule hold. Refused while the rule is paused.",
        )
    )
    async def retry(self, request: Request) -> Response:
        await ignore_body(request)
        rule, record = await self._repeatable(request)
        _check_active(rule)
        return await self._begin(retry_delivery(self._bus, record), record, "tried now")

    @serves(
        _of_many(
            "/{rule_id}/retry-now",
            "Make the next attempts of waiting deliveries of a rule now",
            refusals=(404, 409),
        )
    )
    async def retry_some(self, request: Request) -> Response:
        rule = await found_rule(request, self._store)
        body = await read_model(request, RetryBody, MAX_BODY_BYTES)
        _check_active(rule)
        return await self._each(request, _names([rule]), body, status="waiting", result="retried")

    @serves(
        _of_many(
            "/retry-now",
            "Make the next attempts of waiting deliveries of all rules of the caller now",
            "As for one rule, without paused rules. With the scope administer, deliveries of all "
            "rules.",
        )
    )
    async def retry_all(self, request: Request) -> Response:
        rules = [rule for rule in await self._own(request) if rule.matches_now]
        body = await read_model(request, RetryBody, MAX_BODY_BYTES)
        return await self._each(request, _names(rules), body, status="waiting", result="retried")

    @serves(
        operation(
            method="GET",
            path="/v1/automations/endpoints",
            summary="Endpoints of the caller's rules that get no requests for now, by process",
            description="Each rule has circuit breakers of its own. A breaker is open after five "
            "failures in a row. `next_at` is the time of the next request; it is null if the next "
            "delivery is sent at once. The calls of workflows have the rule `_call`. With the "
            "scope administer, the endpoints of all rules.",
            answers={200: json("The endpoints", an_object(endpoints=a_list(_ENDPOINT)))},
        )
    )
    async def endpoints(self, request: Request) -> Response:
        who = identity_of(request)
        found = await endpoints_of(self._bus)
        shown = [each for each in found if who.manages(each.owner)]
        now = timestamp(int(self._bus.clock.time() * 1000))
        return json_answer({"endpoints": [_shown_endpoint(each, now) for each in shown]})

    async def _begin(self, step: Awaitable[object], record: DeliveryRecord, what: str) -> Response:
        try:
            await step
        except CannotReplay as error:
            raise Problem(409, f"the delivery cannot be {what}: {error}") from error
        return json_answer(_shown(record), 202)

    async def _own(self, request: Request) -> list[CompiledRule]:
        who = identity_of(request)
        await self._current.refresh()
        return [rule for rule in self._current.all() if who.manages(rule.record.owner.user_id)]

    async def _visible(self, request: Request) -> Names:
        """Return the rules with the id in the path that the caller may see, also deleted rules.
        Raises Problem 404 if there are none."""
        rule_id = request.path_params["rule_id"]
        deleted = Names()
        if RULE_NAME.fullmatch(rule_id):
            deleted = await self._deleted(request, rule_id)
        try:
            return deleted | _names([await found_rule(request, self._store)])
        except Problem as problem:
            if problem.status != 404 or not deleted:
                raise
            return deleted

    async def _deleted(self, request: Request, rule_id: str) -> Names:
        who = identity_of(request)
        found = await deleted_rules(self._bus, rule_id)
        return frozenset((each.rule, each.uid) for each in found if who.manages(each.owner))

    async def _listed(self, request: Request, rules: Names) -> Response:
        query = read_query(request, Query)
        page = await self._page(request, rules, query, query.status)
        return json_answer({"deliveries": list(map(_shown, page.deliveries)), "next": _next(page)})

    async def _replay(self, request: Request, rules: Sequence[CompiledRule]) -> Response:
        body = await read_model(request, ReplayBody, MAX_BODY_BYTES)
        return await self._each(request, _names(rules), body, status=body.status, result="replayed")

    async def _each(
        self, request: Request, rules: Names, body: RetryBody, *, status: Status, result: str
    ) -> Response:
        step = replay_delivery if result == "replayed" else retry_delivery
        count = left_out = 0
        until, after = time.monotonic() + REPLAY_S, body.after
        while count + left_out < body.limit:
            size = min(AT_ONCE, body.limit - count - left_out)
            part = body.model_copy(update={"after": after, "limit": size})
            page = await self._page(request, rules, part, status)
            done = await _done(self._bus, step, page.deliveries)
            count += done
            left_out += len(page.deliveries) - done
            after = _next(page)
            if after is None or time.monotonic() > until:
                break
        return json_answer({result: count, "left_out": left_out, "next": after}, 202)

    async def _page(
        self, request: Request, rules: Names, query: Query | RetryBody, status: Status | None
    ) -> Page:
        place = cursor_parts(query.after, int, int) if query.after is not None else None
        wanted = Selection(
            rules,
            status,
            _ms(query.since, "since", -LAST_MS),
            _ms(query.until, "until", LAST_MS),
        )
        async with self._turns.of(identity_of(request).tenant_user):
            after = (place[0], place[1]) if place is not None else None
            return await self._deliveries.page(wanted, after, query.limit)

    async def _repeatable(self, request: Request) -> tuple[CompiledRule, DeliveryRecord]:
        """Return the delivery that the path names, and its rule. Raises Problem 404; 409 if the
        delivery is one of an earlier rule with this id."""
        rule = await found_rule(request, self._store)
        record = await self._found(request)
        if not Selection(_names([rule])).has(record):
            raise Problem(409, "the delivery's rule was deleted, and this is another with its id")
        return rule, record

    async def _found(self, request: Request) -> DeliveryRecord:
        """Return the delivery that the path names, if the caller may see it. Raises Problem 404."""
        rules = await self._visible(request)
        delivery_id = request.path_params["delivery_id"]
        name, _, source = delivery_id.partition(".")
        # The id of a delivery has a dot before the event's sequence, where the key in KV has a
        # dash.
        key = f"{name}.{source.replace('.', '-')}"
        record = None
        if name == request.path_params["rule_id"] and _is_key(key):
            entry = await self._bus.bucket(BUCKET).get(key)
            record = record_of(entry) if entry is not None else None
        if record is None or not Selection(rules).has(record):
            raise Problem(404, f"there is no delivery {delivery_id}")
        return record


async def _done(
    bus: Bus,
    step: Callable[[Bus, DeliveryRecord], Awaitable[object]],
    records: list[DeliveryRecord],
) -> int:
    async def one(record: DeliveryRecord) -> bool:
        try:
            await step(bus, record)
        except CannotReplay:
            return False
        return True

    return sum(await asyncio.gather(*map(one, records)))


def _check_active(rule: CompiledRule) -> None:
    if not rule.matches_now:
        text = f"the rule {rule.id} is paused or not enabled, so its deliveries wait: resume it"
        raise Problem(409, text)


def _names(rules: Sequence[CompiledRule]) -> Names:
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
        "waits_for": record.waits_for if record.status == "waiting" else None,
        "last": _attempt(last) if last is not None else None,
    }


def _shown_endpoint(record: EndpointRecord, now: str) -> dict[str, Any]:
    fields = record.model_dump(mode="json", exclude={"owner"})
    return fields | {"next_at": record.next_at if record.next_at > now else None}


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
