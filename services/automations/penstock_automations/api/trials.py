"""Serves the routes that try a rule: a test with a sample, and a dry run over past events."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import asdict
from datetime import datetime
from typing import Any, Final, get_args

import orjson
import uuid_utils
from pydantic import Field
from starlette.requests import Request
from starlette.responses import Response

from penstock.bus import Bus
from penstock.events.examples import example
from penstock.expressions import ExpressionError
from penstock.turns import TenantUser
from penstock.validation import Part
from penstock.web.answers import cursor_of, cursor_parts, json_answer, while_connected
from penstock.web.auth import identity_of
from penstock.web.bodies import read_model
from penstock.web.operation import (
    FLAG,
    NULLABLE,
    OBJECT,
    TEXT,
    Json,
    a_list,
    an_object,
    json,
    serves,
)
from penstock.web.problems import Problem
from penstock.web.read_scheduler import ReadScheduler
from penstock_automations.actions.executor import Occurrence
from penstock_automations.actions.webhook.executor import WebhookExecutor
from penstock_automations.api.bodies import ACT_AS, EXAMPLE
from penstock_automations.api.common import (
    MAX_BODY_BYTES,
    RULE_ID,
    found_rule,
    operation,
    optional_body,
    time_of,
)
from penstock_automations.api.stored_rules import StoredRules
from penstock_automations.jobs.job import EventSource, Job, TriggerKind, TriggerSource
from penstock_automations.matching.dry_run import MAX_EVENTS, Asked, Place, Why, backfill, dry_run
from penstock_automations.rules.records import CompiledRule
from penstock_automations.rules.secrets import HIDDEN
from penstock_automations.triggers.firing import body_of_firing
from penstock_automations.triggers.hook_request import body_of_request

_NO_SEQUENCE: Final = 2**63  # greater than all sequences of a stream
MAX_BACKFILLED: Final = 1000  # how many events one request to backfill looks at
_NUMBER: Final[Json] = {"type": "number"}
_COUNT: Final[Json] = {"type": "integer"}


class TestBody(Part):
    """Which sample is sent."""

    __test__ = False  # not a test of pytest

    type: str | None = Field(
        None,
        max_length=200,
        description="The type of the sample, one that the rule waits for. Default: the first.",
    )


class DryRunBody(Part):
    """Which events a rule is tried on."""

    since: str = Field(
        max_length=40, description="The time (RFC 3339) from which events are looked at."
    )
    limit: int = Field(
        1000, ge=1, le=MAX_EVENTS, description="How many events are looked at, the oldest first."
    )


class DraftBody(DryRunBody):
    """A rule that is not stored, and the events it is tried on."""

    rule: dict[str, Any] = Field(
        description="The rule, as for `POST /v1/automations`. `(hidden)` is allowed in place of "
        "the secrets of a stored rule with its id."
    )


class BackfillBody(Part):
    """The past events whose deliveries are made."""

    since: str = Field(
        max_length=40, description="The time (RFC 3339) from which events are looked at."
    )
    limit: int = Field(
        MAX_BACKFILLED,
        ge=1,
        le=MAX_BACKFILLED,
        description="How many events are looked at, the oldest first.",
    )
    after: str | None = Field(
        None, max_length=1000, description="`next` of the answer before, to continue."
    )


_TESTED: Final = an_object(
    request=an_object(
        method=TEXT, url=TEXT, headers=OBJECT, body={"type": ["object", "array", "null"]}
    ),
    verdict=TEXT,
    code=TEXT,
    text=TEXT,
    status={"type": ["integer", "null"]},
    answer=TEXT,
    headers=OBJECT,
    seconds=_NUMBER,
)
_COUNTS: Final[Json] = {"type": "object", "additionalProperties": _COUNT}
_FILLED: Final = an_object(looked_at=_COUNT, counts=_COUNTS, next=NULLABLE)
_TRIED: Final = an_object(
    looked_at=_COUNT,
    complete=FLAG,
    counts=_COUNTS,
    shown=a_list(an_object(run_id=TEXT, sequence=_COUNT, type=TEXT, why=TEXT, reason=TEXT)),
)


class Trials:
    """The handlers of the routes."""

    def __init__(
        self,
        bus: Bus,
        rules: StoredRules,
        webhooks: WebhookExecutor,
        store_past: Callable[[Sequence[Job]], Awaitable[None]],
    ) -> None:
        self._bus = bus
        self._rules = rules
        self._store = rules.store
        self._webhooks = webhooks
        self._store_past = store_past
        # Each user may try one rule at a time. Without this limit, a user could flood a receiver
        # with tests, or keep the process busy with dry runs.
        self._turns = ReadScheduler()

    @serves(
        operation(
            method="POST",
            path="/v1/automations/{rule_id}/test",
            summary="Send a sample event now, marked as a test, and show request and answer",
            description="The request is signed, and the guard checks its address, as for a real "
            "event; it has the header `penstock-test: 1`. It is sent also if the rule is paused, "
            "and leaves no outcome and no delivery.",
            answers={200: json("The request without secrets, and what came of it", _TESTED)},
            parameters=(RULE_ID,),
            body=TestBody,
            body_required=False,
            example={},
            refusals=(404, 409),
        )
    )
    async def test(self, request: Request) -> Response | None:
        rule = await found_rule(request, self._store)
        body = await optional_body(request, TestBody)
        types = sample_types(rule)
        type_ = types[0] if body.type is None else body.type
        if type_ not in types:
            raise Problem(422, f"type: the rule waits for {', '.join(types)}")
        if rule.record.rule.action.kind != "webhook":
            raise Problem(409, "only a webhook can be tested; a dry run shows what would match")
        tested = self._tested(identity_of(request).tenant_user, rule, type_)
        return await while_connected(request.receive, tested)

    @serves(
        operation(
            method="POST",
            path="/v1/automations/{rule_id}/dry-run",
            summary="Which past events would have fired the rule, and why the others would not",
            description="Sends nothing. Only events of runs that the rule may see are looked at. "
            "`shown` has the first 20 events of each kind.",
            answers={200: json("What was found", _TRIED)},
            parameters=(RULE_ID,),
            body=DryRunBody,
            example={"since": "2026-01-31T12:00:00Z", "limit": 1000},
            refusals=(404, 409),
        )
    )
    async def dry_run(self, request: Request) -> Response | None:
        rule = await found_rule(request, self._store)
        body = await read_model(request, DryRunBody, MAX_BODY_BYTES)
        asked = Asked(time_of(body.since, "since"), body.limit)
        tried = self._tried(identity_of(request).tenant_user, rule, asked)
        return await while_connected(request.receive, tried)

    @serves(
        operation(
            method="POST",
            path="/v1/automations/dry-run",
            summary="Which past events would fire a rule that is not stored yet",
            description="Checks the rule as `POST /v1/automations` does, and answers as the dry "
            "run of a stored rule, with the `warnings`. Stores and sends nothing.",
            answers={200: json("What was found", _TRIED)},
            body=DraftBody,
            example={"rule": EXAMPLE, "since": "2026-01-31T12:00:00Z", "limit": 1000},
            sometimes={"act-as": ACT_AS},
            refusals=(409,),
        )
    )
    async def dry_run_draft(self, request: Request) -> Response | None:
        body = await read_model(request, DraftBody, MAX_BODY_BYTES)
        who = identity_of(request)
        rule, warnings = await self._rules.compiled_draft(body.rule, who)
        asked = Asked(time_of(body.since, "since"), body.limit)
        tried = self._tried(who.tenant_user, rule, asked, warnings)
        return await while_connected(request.receive, tried)

    @serves(
        operation(
            method="POST",
            path="/v1/automations/{rule_id}/backfill",
            summary="Make the deliveries of past events from before the rule",
            description="Events since the rule was made or resumed are matched as they come. A "
            "repeat makes no second delivery of an event. Answers after at most 1,000 events or "
            "20 s. `next` is set if there are more: send it as `after`. The order of a run's "
            "events is not kept.",
            answers={202: json("What was found", _FILLED)},
            parameters=(RULE_ID,),
            body=BackfillBody,
            example={"since": "2026-01-31T12:00:00Z"},
            refusals=(404, 409),
        )
    )
    async def backfill(self, request: Request) -> Response:
        rule = await found_rule(request, self._store)
        body = await read_model(request, BackfillBody, MAX_BODY_BYTES)
        place = _place(body.after) if body.after is not None else None
        asked = Asked(time_of(body.since, "since"), body.limit, place)
        _check_events(rule)
        if not rule.matches_now:
            raise Problem(409, f"the rule {rule.id} is paused or not enabled: resume it first")
        async with self._turns.of(identity_of(request).tenant_user):
            found = await backfill(self._bus, rule, asked, self._store_past)
        following = cursor_of(*found.next) if found.next is not None else None
        counts = {why: found.counts[why] for why in get_args(Why)}
        answer = {"looked_at": found.looked_at, "counts": counts, "next": following}
        return json_answer(answer, 202)

    async def _tested(self, user: TenantUser, rule: CompiledRule, type_: str) -> Response:
        async with self._turns.of(user):
            job, occurrence = sample(rule, type_, self._bus.clock.stamp())
            try:
                request, attempted = await self._webhooks.test(rule, job, occurrence)
            except ExpressionError as error:
                raise Problem(409, f"the sample cannot fill a template: {error}") from error
        hidden = dict.fromkeys(request.headers, HIDDEN)
        return json_answer(
            {
                "request": {
                    "method": request.head.method,
                    "url": request.head.url,
                    "headers": {**hidden, **request.head.headers},
                    "body": orjson.loads(request.body) if request.body else None,
                },
                "verdict": attempted.verdict.outcome,
                "code": attempted.verdict.code,
                "text": attempted.verdict.text,
                "status": attempted.verdict.status,
                "answer": attempted.answer,
                "headers": attempted.headers,
                "seconds": round(attempted.seconds, 3),
            }
        )

    async def _tried(
        self,
        user: TenantUser,
        rule: CompiledRule,
        asked: Asked,
        warnings: Sequence[Mapping[str, Any]] = (),
    ) -> Response:
        _check_events(rule)
        async with self._turns.of(user):
            found = await dry_run(self._bus, rule, asked)
        return json_answer(
            {
                "looked_at": found.looked_at,
                "complete": found.complete,
                "counts": {why: found.counts[why] for why in get_args(Why)},
                "shown": [asdict(each) for each in found.shown],
                **({"warnings": list(warnings)} if warnings else {}),
            }
        )


def _place(cursor: str) -> Place:
    """Return the place of a cursor. Raises Problem 422 for one that no answer has had."""
    shard, sequence = cursor_parts(cursor, int, int)
    if shard < 0 or not 0 <= sequence < _NO_SEQUENCE:
        reason = "must be the `next` of an answer"
        errors = [{"field": "after", "message": reason}]
        raise Problem(422, f"after: {reason}", errors=errors)
    return shard, sequence


def _check_events(rule: CompiledRule) -> None:
    if (trigger := rule.record.rule.trigger) != "subjects":
        raise Problem(409, f"the rule has a {trigger}: it waits for no events")


_SAMPLE: Final = {"sample": True}  # the body of an imagined request to a hook
_TYPES: Final[dict[TriggerKind, str]] = {"schedule": "schedule.fired", "hook": "hook.received"}


def sample_types(rule: CompiledRule) -> list[str]:
    trigger = rule.record.rule.trigger
    return sorted(rule.types) if trigger == "subjects" else [_TYPES[trigger]]


def sample(rule: CompiledRule, type_: str, now: str) -> tuple[Job, Occurrence]:
    """Return a sample for a rule: a job, and the event or trigger at `now` that causes the job.
    Each call makes new ids, so that a receiver that ignores repeated ids handles each sample."""
    fresh_id = str(uuid_utils.uuid7())
    trigger = rule.record.rule.trigger
    record = rule.record
    if trigger == "subjects":
        body = orjson.loads(example(type_).dump()) | {"run_id": fresh_id, "timestamp": now}
        source: EventSource | TriggerSource = EventSource(fresh_id, body["sequence"], 0, 0)
    else:
        schedule = record.rule.schedule
        body = (
            body_of_firing(schedule.times, datetime.fromisoformat(now).timestamp())
            if schedule is not None
            else body_of_request(_SAMPLE, None, now)
        )
        source = TriggerSource(trigger, fresh_id, body)
    job = Job(rule.id, record.version, record.uid, type_, source, dotted=False)
    return job, Occurrence(orjson.dumps(body))
