"""Carries out the action `webhook`: one signed request for each attempt."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from penstock import telemetry
from penstock.bus import Bus
from penstock_automations.actions.carrier import Attempted, Occurrence
from penstock_automations.actions.webhook.answers import Answer, is_up, verdict
from penstock_automations.actions.webhook.breaker import State
from penstock_automations.actions.webhook.endpoints import Endpoints, admitted
from penstock_automations.actions.webhook.preparing import request_of
from penstock_automations.actions.webhook.request import Sender
from penstock_automations.jobs.deferrals import growing_s
from penstock_automations.jobs.job import Job
from penstock_automations.rules.records import CompiledRule

# The first and the longest wait of a delivery to an endpoint that is busy.
BUSY_S = (1.0, 60.0)


class WebhookCarrier:
    """Sends webhooks, within the limits of each endpoint."""

    def __init__(self, bus: Bus, sender: Sender, max_bytes: int) -> None:
        self._bus = bus
        self._sender = sender
        self._max_bytes = max_bytes
        self.endpoints = Endpoints()

    @asynccontextmanager
    async def place(self, rule: CompiledRule, job: Job) -> AsyncIterator[float]:
        """Hold a place at the endpoint, or give the seconds until there may be one."""
        endpoint = self.endpoints.of(rule.record.rule.action.webhook)
        if wait_s := await admitted(endpoint):
            if endpoint.breaker.state is State.CLOSED:
                wait_s = max(wait_s, growing_s(BUSY_S, job.deferrals))
            yield wait_s
            return
        endpoint.busy += 1
        try:
            yield 0.0
        finally:
            endpoint.busy -= 1

    async def attempt(self, rule: CompiledRule, job: Job, occurrence: Occurrence) -> Attempted:
        """Send the webhook once, and judge the answer."""
        webhook = rule.record.rule.action.webhook
        endpoint = self.endpoints.of(webhook)
        async with endpoint.turn():
            request = request_of(
                rule.record.rule, job, occurrence, self._bus.clock.time(), self._max_bytes
            )
            begun, at = time.monotonic(), self._bus.clock.stamp()
            result = await self._sender.post(
                request.url, request.headers, request.body, webhook.timeout_s
            )
        seconds = time.monotonic() - begun
        if is_up(result):
            endpoint.breaker.succeeded()
        else:
            endpoint.breaker.failed(time.monotonic())
        telemetry.DELIVERY_SECONDS.observe(seconds)
        return Attempted(
            verdict(result, webhook.expect, self._bus.clock.time()),
            at,
            seconds,
            answer=result.shown(request.secrets) if isinstance(result, Answer) else "",
            request=request.head,
        )
