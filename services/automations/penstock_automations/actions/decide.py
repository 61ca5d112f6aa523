"""Carries out the action `decide`: decides an approval with the rights of the rule's owner.

The delivery's id is the idempotency key of the decision, so a repeated attempt gets the first
answer again. The decision also has the digest from the event that matched. So the approvals service
refuses the decision if the request for approval has changed since the event.
"""

from __future__ import annotations

import time
from typing import Final

import orjson

from penstock.bus import Bus, BusUnavailable
from penstock.bus.records.approvals import Decided, Decider, DecideRequest
from penstock.expressions import ExpressionError
from penstock.runs.decide import forward_decision
from penstock.tracing import spans
from penstock.web.problems import Problem
from penstock_automations.actions.executor import (
    ActionExecutor,
    Attempted,
    Codes,
    Occurrence,
    Verdict,
    refused,
    unfilled,
)
from penstock_automations.jobs.job import Job
from penstock_automations.rules.actions import filled
from penstock_automations.rules.check import missing_right
from penstock_automations.rules.records import CompiledRule, event_of

_CODES: Final[Codes] = {
    403: ("final", "not_allowed"),
    404: ("failed", "unknown_approval"),
    409: ("final", "not_pending"),
    422: ("final", "cannot_decide"),
    503: ("failed", "unavailable"),
}
_DONE: Final = {"approve": "approved", "reject": "rejected"}


class DecideExecutor(ActionExecutor):
    """Decides approvals."""

    def __init__(self, bus: Bus) -> None:
        self._bus = bus

    async def attempt(
        self,
        rule: CompiledRule,
        job: Job,
        occurrence: Occurrence,
        started_run_id: str | None,
    ) -> Attempted:
        begun, at = time.monotonic(), self._bus.clock.stamp()
        try:
            verdict = await self._decided(rule, job, occurrence)
        except ExpressionError as error:
            verdict = unfilled(error)
        except Problem as problem:
            verdict = refused(problem, _CODES)
        except BusUnavailable as error:
            # End the attempt here. If the attempt were repeated until an approvals service runs,
            # the job would occupy one of this process's places for all this time.
            verdict = Verdict("failed", "unavailable", f"the approvals service is away: {error}")
        return Attempted(verdict, at, time.monotonic() - begun)

    async def _decided(self, rule: CompiledRule, job: Job, occurrence: Occurrence) -> Verdict:
        record, action = rule.record, rule.record.rule.action.decide
        assert action is not None, "the delivery chooses the executor by the kind of action"
        if (reason := missing_right(record.rule.action, record.owner)) is not None:
            raise Problem(403, reason)
        event = event_of(orjson.loads(occurrence.payload))
        approval_id = str(event["data"]["approval_id"])
        owner, data = record.owner, event["data"]
        decider = Decider(
            name=f"automation {rule.id}",
            roles=owner.roles,
            scopes=owner.scopes,
            channel="automation",
            on_behalf_of=owner.user_id or None,
        )
        request = DecideRequest(
            decider=decider,
            note=filled(action.note, event) if action.note is not None else None,
            digest=data["digest"],
            items=[
                Decided(item_id=item["item_id"], decision=action.decision) for item in data["items"]
            ],
            idempotency_key=job.delivery_id,
            traceparent=occurrence.traceparent if spans.is_on() else None,
        )
        approval = await forward_decision(self._bus, approval_id, request)
        text = f"{_DONE[action.decision]} approval {approval_id}"
        if approval is not None and approval.status == "pending":
            text = f"voted to {action.decision} approval {approval_id}, which needs more votes"
        return Verdict("delivered", text=text)
