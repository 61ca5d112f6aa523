"""Carries out the action `webhook`: one signed request for each attempt."""

from __future__ import annotations

import math
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any

import orjson

from penstock import telemetry
from penstock.bus import Bus, subjects
from penstock.bus.records.approvals import Decider, LinkReply, LinkRequest
from penstock.bus.streams import events_for
from penstock.bus.write.objects import unwrap
from penstock.expressions import ExpressionError
from penstock.runs.calls import CallJob
from penstock.runs.decide import request_link
from penstock_automations.actions.executor import (
    ActionExecutor,
    AttemptDeferred,
    Attempted,
    Occurrence,
    unfilled,
)
from penstock_automations.actions.webhook.endpoints import Endpoints, admit
from penstock_automations.actions.webhook.exchange import Answer, NoAnswer, Sender, is_up, verdict
from penstock_automations.actions.webhook.preparing import Request, request_of
from penstock_automations.jobs.job import CallSource, EventSource, Job
from penstock_automations.rules.actions import LinkFor, Webhook
from penstock_automations.rules.records import CompiledRule, Owner

MAX_TEST_S = 20.0
LONG_S = 0.5  # seconds; if a delivery waits longer for its turn, its record is read again


class WebhookExecutor(ActionExecutor):
    """Sends webhooks, within the limits of each endpoint."""

    def __init__(
        self,
        bus: Bus,
        sender: Sender,
        *,
        max_bytes: int,
        is_done: Callable[[Job], Awaitable[bool]],
        requests_per_host: int,
    ) -> None:
        self._bus = bus
        self._sender = sender
        self._max_bytes = max_bytes
        self._is_done = is_done  # returns whether the attempt of a job was made already
        self.endpoints = Endpoints(requests_per_host)
        # called when an endpoint works again, or after a test or a replay
        self.on_success: Callable[[CompiledRule], None] = lambda rule: None

    @asynccontextmanager
    async def reserve_capacity(
        self, rule: CompiledRule, job: Job
    ) -> AsyncIterator[AttemptDeferred | None]:
        endpoint = self.endpoints.of(rule, _webhook_of(rule))
        if endpoint.busy >= endpoint.max_deliveries:
            yield AttemptDeferred(endpoint.reserve_wait_s(time.monotonic()))
            return
        endpoint.busy += 1
        try:
            yield await admit(endpoint, self._woken(job))
        finally:
            endpoint.busy -= 1

    async def attempt(
        self,
        rule: CompiledRule,
        job: Job,
        occurrence: Occurrence,
        started_run_id: str | None,
    ) -> Attempted | AttemptDeferred:
        webhook = _webhook_of(rule)
        endpoint = self.endpoints.of(rule, webhook)
        begun = time.monotonic()
        async with endpoint.request_capacity(), self.endpoints.place_at_host(endpoint):
            # If this delivery waited for long, the server may have given its job to another
            # process.
            if time.monotonic() - begun > LONG_S and await self._is_done(job):
                return AttemptDeferred(0.0)
            # The endpoint may have failed while this delivery waited for its turn.
            if wait_s := endpoint.breaker.admit(time.monotonic(), self._woken(job)):
                return AttemptDeferred(wait_s, "breaker")
            links = await links_of(self._bus, webhook, rule.record.owner, occurrence)
            occurrence = await with_request(self._bus, rule, job, occurrence)
            try:
                request = self._request(rule, job, occurrence, links=links)
            except ExpressionError as error:
                return Attempted(unfilled(error), self._bus.clock.stamp(), 0.0)
            call = job.source.call if isinstance(job.source, CallSource) else None
            result, attempted = await self._send(request, webhook, call)
        if not is_up(result):
            endpoint.breaker.record_failure(time.monotonic())
        elif endpoint.breaker.record_success() or job.replay:
            self.on_success(rule)
        telemetry.DELIVERY_SECONDS.observe(attempted.seconds)
        return attempted

    async def test(
        self, rule: CompiledRule, job: Job, occurrence: Occurrence
    ) -> tuple[Request, Attempted]:
        """Send a webhook that is marked as a test, past the breaker and the rate, within 20 s.

        Nothing is counted or recorded. If the endpoint works, deliveries that the breaker stopped
        are made. Raises ExpressionError if the sample cannot fill a template of the rule.
        """
        webhook = _webhook_of(rule)
        limited = webhook.model_copy(update={"timeout_s": min(webhook.timeout_s, MAX_TEST_S)})
        links = [_sample_link(whom, self._bus.clock.stamp()) for whom in webhook.links]
        request = self._request(rule, job, occurrence, is_test=True, links=links)
        result, attempted = await self._send(request, limited)
        if is_up(result):
            self.endpoints.of(rule, webhook).breaker.record_success()
            self.on_success(rule)
        return request, attempted

    def _woken(self, job: Job) -> float:
        """Return on the monotonic clock when the job was woken. If a person asked for the attempt,
        no failure is later: the breaker never stops it."""
        if job.is_asked_for:
            return math.inf
        return time.monotonic() - (self._bus.clock.time() - job.woken_at) if job.woken_at else 0.0

    def _request(
        self,
        rule: CompiledRule,
        job: Job,
        occurrence: Occurrence,
        *,
        is_test: bool = False,
        links: Sequence[Mapping[str, Any]] = (),
    ) -> Request:
        now, most = self._bus.clock.time(), self._max_bytes
        asked = rule.record.rule
        return request_of(
            asked, job, occurrence, unix_s=now, max_bytes=most, is_test=is_test, links=links
        )

    async def _send(
        self, request: Request, webhook: Webhook, call: CallJob | None = None
    ) -> tuple[Answer | NoAnswer, Attempted]:
        begun, at = time.monotonic(), self._bus.clock.stamp()
        result = await self._sender.send(
            request.url, request.headers, request.body, webhook.timeout_s, webhook.method
        )
        whole = result.text(request.secrets) if isinstance(result, Answer) else None
        return result, Attempted(
            verdict(
                result, webhook.expect, self._bus.clock.time(), call.statuses if call else None
            ),
            at,
            time.monotonic() - begun,
            answer=result.shown(request.secrets) if isinstance(result, Answer) else "",
            headers=result.shown_headers(request.secrets) if isinstance(result, Answer) else {},
            request=request.head,
            whole_answer=whole if call is not None else None,
        )


def _webhook_of(rule: CompiledRule) -> Webhook:
    webhook = rule.record.rule.action.webhook
    assert webhook is not None, "the delivery chooses the executor by the kind of action"
    return webhook


async def with_request(
    bus: Bus, rule: CompiledRule, job: Job, occurrence: Occurrence
) -> Occurrence:
    """Add what is asked to the event of a pause, since A2A's status of a pause has both."""
    source = job.source
    if not isinstance(source, EventSource) or job.type != "lifecycle.paused":
        return occurrence
    if rule.record.rule.payload != "a2a":
        return occurrence
    requests = subjects.event("approval.requested", source.run_id)
    stored = await bus.tail(events_for(source.run_id), requests)
    if stored is None or stored.sequence > source.event:  # the request of a later pause
        return occurrence
    return replace(occurrence, request=await unwrap(bus, stored.payload))


async def links_of(
    bus: Bus, webhook: Webhook, owner: Owner, occurrence: Occurrence
) -> list[dict[str, Any]]:
    """Return the links for the webhook's body: for each person or group, the `url`, or the reason
    why no link was made. Raises BusError."""
    if not webhook.links:
        return []
    approval_id = str(orjson.loads(occurrence.payload)["data"]["approval_id"])
    maker = Decider(
        name=owner.user_id, roles=owner.roles, scopes=owner.scopes, channel="automation"
    )
    return [await _link(bus, approval_id, maker, whom) for whom in webhook.links]


async def _link(bus: Bus, approval_id: str, maker: Decider, whom: LinkFor) -> dict[str, Any]:
    request = LinkRequest(maker=maker, **whom.model_dump())
    reply = await request_link(bus, approval_id, request)
    return {**whom.model_dump(include={"user", "role"}, exclude_none=True), **_shown(reply)}


def _sample_link(whom: LinkFor, now: str) -> dict[str, Any]:
    """Return a link for a test, which nobody can decide with."""
    shown = whom.model_dump(include={"user", "role"}, exclude_none=True)
    return {**shown, "url": "https://penstock.example/d/sample", "expires_at": now}


def _shown(reply: LinkReply) -> dict[str, Any]:
    if reply.url is None:
        return {"error": reply.detail}
    return {"url": reply.url, "expires_at": reply.expires_at}
