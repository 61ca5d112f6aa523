"""Serves the route of inbound webhooks. A request with a signature or a token fires a rule."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

import orjson
from starlette.requests import Request
from starlette.responses import Response

from penstock import telemetry
from penstock.bus import Bus, BusError
from penstock.runs.depth import HEADER, MAX_DEPTH, depth_of_request
from penstock.web.answers import json_answer
from penstock.web.auth.credentials import header_of
from penstock.web.bodies import is_deep, read_pieces, require_few_values, require_json
from penstock.web.operation import (
    OBJECT,
    Operation,
    Parameter,
    an_object,
    in_path,
    json,
    one_of,
    serves,
)
from penstock.web.problems import Problem
from penstock_automations.actions.webhook.breaker import Rate
from penstock_automations.api.common import RULE_NAME
from penstock_automations.jobs.job import Job
from penstock_automations.jobs.publish import publish_first
from penstock_automations.matching.evaluations import Evaluations
from penstock_automations.rules.model import Hook
from penstock_automations.rules.records import CompiledRule, event_of
from penstock_automations.rules.store import CurrentRules
from penstock_automations.triggers.firing import job_of
from penstock_automations.triggers.hook_request import (
    NOBODY,
    Check,
    HookRequest,
    body_of_request,
    trigger_id,
)

log = logging.getLogger(__name__)

PAUSED_RETRY_S: Final = 60
REFUSALS_PER_S: Final = 1.0  # how many log lines about refused requests are written per second
# The greatest size of a job in bytes. A job must fit into one message. The size is checked again
# after the body was parsed, because JSON may grow when it is written again: 1e15 becomes
# 1000000000000000.0.
MAX_JOB_BYTES: Final = 480 * 1024
_PARAMETERS: Final = (
    in_path("rule_id", "The rule's id"),
    Parameter(
        "webhook-id",
        "The caller's id of the request, the same when it is repeated",
        location="header",
    ),
    Parameter(
        "webhook-timestamp", "When the request was signed, in Unix seconds", location="header"
    ),
    Parameter(
        "webhook-signature",
        "`v1,` and the signature; several separated by spaces",
        location="header",
    ),
    Parameter(
        "idempotency-key",
        "The id of a request with a token, in place of webhook-id",
        location="header",
    ),
    Parameter("x-hub-signature-256", "The signature, if the rule says `github`", location="header"),
    Parameter("x-github-delivery", "GitHub's id of the request", location="header"),
    Parameter("x-github-event", "GitHub's name of the event", location="header"),
    Parameter("stripe-signature", "The signature, if the rule says `stripe`", location="header"),
    Parameter("token", "The rule's token, if the rule says `token_in_url`"),
)


class Hooks:
    """The handler of the route. A body has at most `max_bytes`."""

    def __init__(
        self, bus: Bus, rules: CurrentRules, evaluations: Evaluations, max_bytes: int
    ) -> None:
        self._bus = bus
        self._evaluations = evaluations
        self._rules = rules
        self._max_bytes = max_bytes
        self._rates: dict[str, Rate] = {}
        self._refusal_lines = Rate(REFUSALS_PER_S)

    @serves(
        Operation(
            method="POST",
            path="/v1/hooks/{rule_id}",
            tag="automations",
            summary="Fire a rule that has a hook, by a signed request or a token",
            description="The request is signed as Standard Webhooks describes, or as GitHub or "
            "Stripe do if the rule says so, or has the rule's "
            "token as `Authorization: Bearer`. A repeat with the same `webhook-id` (or "
            "`Idempotency-Key`) gets the same delivery id and starts nothing. The answer is 404 "
            "for an unknown rule and for a request that the rule does not accept.",
            answers={
                202: json(
                    "The request is stored. `ignored`: the rule's condition does not hold",
                    an_object(
                        delivery_id={"type": "string"},
                        result=one_of(("accepted", "repeated", "ignored")),
                    ),
                )
            },
            scopes=(),
            public=True,
            parameters=_PARAMETERS,
            body=OBJECT,
            example={"order": 7},
            refusals=(404, 503),
        )
    )
    async def receive(self, request: Request) -> Response:
        rule_id = request.path_params["rule_id"]
        with _counted("not_json"):
            require_json(request)
        rule = await self._rule(rule_id)
        head = _head(request)
        hook = rule.record.rule.hook if rule is not None else None
        check = Check(hook or NOBODY, head)
        body = await self._checked(rule_id, rule, hook, check, request)
        assert rule is not None
        with _counted("invalid"):
            data = _document(body)
        with _counted("depth"):
            # Penstock's own webhooks send this number. Without it, a rule that calls its own hook
            # would fire for ever. The hook's own rule is one more.
            depth = depth_of_request(header_of(request.scope, HEADER.encode()), MAX_DEPTH - 1)
        caller_id = check.id_of(data)
        token = trigger_id(rule.record.uid, caller_id)
        stamp, name = self._bus.clock.stamp(), head.github_event
        is_github = hook is not None and hook.signature == "github"
        found = body_of_request(data, caller_id, stamp, name if is_github else None)
        match = await self._evaluations.matched(rule, event_of(found))
        delivery_id = f"{rule.id}.{token}"
        if match is None:
            return _answer(delivery_id, "ignored")
        job = job_of(match, "hook", token, body=found, depth=depth)
        if len(job.dump()) > MAX_JOB_BYTES:
            _count("too_large")
            raise Problem(413, "the body's numbers are too long when they are written out")
        try:
            is_new = await self._store(job, has_id=caller_id is not None)
        except BusError as error:
            raise _unavailable(error) from error
        if is_new:
            log.info("hook %s: delivery %s", rule.id, delivery_id)
        return _answer(delivery_id, "accepted" if is_new else "repeated")

    async def _rule(self, rule_id: str) -> CompiledRule | None:
        """Return the stored rule; None if it does not exist or has no hook. Raises Problem 503."""
        if not RULE_NAME.fullmatch(rule_id):
            return None
        try:
            # Without this read, a process could accept a secret that was removed a moment ago.
            await self._rules.refresh()
        except BusError as error:
            raise _unavailable(error) from error
        rule = self._rules.get(rule_id)
        return rule if rule is not None and rule.record.rule.hook is not None else None

    async def _checked(
        self,
        rule_id: str,
        rule: CompiledRule | None,
        hook: Hook | None,
        check: Check,
        request: Request,
    ) -> bytes:
        """Return the body of a request that the rule accepts now. Raises Problem.

        The work and the answer are the same for an unknown rule and for a request that the rule
        does not accept. But only the body of a request that may be accepted is kept.
        """
        keeps = hook is not None and check.may_succeed
        try:
            body = await read_pieces(request, self._max_bytes, check.add, keeps=keeps)
        except Problem as problem:
            _count("too_large" if problem.status == 413 else "unavailable")
            raise
        refusal = check.refusal(self._bus.clock.time())
        if rule is None or hook is None or refusal is not None:
            _count("unknown" if hook is None else str(refusal))
            if not self._refusal_lines.admit(time.monotonic()):
                log.warning("a request to the hook %.64r is refused: %s", rule_id, refusal)
            raise Problem(
                404,
                f"there is no hook {rule_id} that accepts this request: check the id, the "
                "signature or token, and the clock of the sender",
            )
        self._require_now(rule, hook)
        return body

    def _require_now(self, rule: CompiledRule, hook: Hook) -> None:
        if not rule.matches_now:
            _count("paused")
            text = "the rule is paused or disabled; send the request again later"
            raise Problem(503, text, {"retry-after": str(PAUSED_RETRY_S)})
        rate = self._rates.setdefault(rule.id, Rate(hook.rate_per_s))
        rate.per_s = hook.rate_per_s
        if wait_s := rate.admit(time.monotonic()):
            _count("limited")
            text = f"more than {hook.rate_per_s:g} requests per second; send fewer"
            raise Problem(429, text, {"retry-after": str(int(wait_s) + 1)})

    async def _store(self, job: Job, *, has_id: bool) -> bool:
        """Store the job of a request; return False if the request is a repeat.

        The job itself cannot show this, since it is in DELIVERIES, in SCHEDULES or done. So the
        first request stores a mark. A repeat stores its job, too, because the process of the first
        request may have ended after the mark. `publish_first` and the delivery's record see to it
        that only one of the jobs has an effect.
        """
        deliveries = self._bus.bucket("deliveries")
        is_new = not has_id or await deliveries.create(f"hook.{job.key}", b"{}") is not None
        if is_new or await deliveries.get(job.key) is None:
            await publish_first(self._bus, job)
        return is_new


def _head(request: Request) -> HookRequest:
    def header(name: bytes) -> str | None:
        return header_of(request.scope, name)

    scheme, _, token = (header(b"authorization") or "").partition(" ")
    return HookRequest(
        header(b"webhook-id"),
        header(b"webhook-timestamp"),
        header(b"webhook-signature"),
        header(b"idempotency-key"),
        token.strip() if scheme.lower() == "bearer" else None,
        request.query_params.get("token"),
        header(b"x-github-delivery"),
        header(b"x-github-event"),
        header(b"x-hub-signature-256"),
        header(b"stripe-signature"),
    )


def _document(body: bytes) -> object:
    require_few_values(body)
    try:
        data: object = orjson.loads(body)
    except orjson.JSONDecodeError as error:
        raise Problem(422, f"the body is not JSON: {error}") from None
    if not isinstance(data, dict | list) or is_deep(data):
        raise Problem(422, "the body must be a JSON object or list, nested at most 100 levels")
    return data


@contextmanager
def _counted(outcome: str) -> Iterator[None]:
    """Count a refusal in the context under this outcome."""
    try:
        yield
    except Problem:
        _count(outcome)
        raise


def _unavailable(error: BusError) -> Problem:
    _count("unavailable")
    return Problem(503, f"the bus does not answer: {error}; send the request again")


def _answer(delivery_id: str, result: str) -> Response:
    _count(result)
    return json_answer({"delivery_id": delivery_id, "result": result}, 202)


def _count(outcome: str) -> None:
    telemetry.HOOK_REQUESTS.labels(outcome).inc()
