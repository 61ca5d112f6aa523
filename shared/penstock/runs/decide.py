"""Sends decisions to the approvals service, and asks it for one-time links."""

from __future__ import annotations

from typing import Final
from uuid import uuid4

from penstock.bus import Bus, Msg, OutcomeUnknown
from penstock.bus.records.approvals import (
    ApprovalRecord,
    DecideReply,
    DecideRequest,
    LinkReply,
    LinkRequest,
)
from penstock.bus.subjects import decide, link
from penstock.tracing import requests
from penstock.web.problems import Problem

ANSWER_S: Final = 3.0


async def forward_decision(
    bus: Bus, approval_id: str, request: DecideRequest
) -> ApprovalRecord | None:
    """Send a decision to the approvals service, and return the approval's new record.

    If the decision counts as a vote and further votes are needed, the record's status is still
    pending.

    Without a reply, the decision is sent once more: the approvals service may be killed after it
    has written the decision and before it replies. The second request has the same idempotency key,
    so the decision counts only once. A request without a key gets a new key. Raises Problem 404,
    409 or 422, as the approvals service answers; 503 if it answers neither request. The decision
    may then have been accepted or not.
    """
    key = request.idempotency_key or uuid4().hex
    trace = request.traceparent or requests.current()
    keyed = request.model_copy(update={"idempotency_key": key, "traceparent": trace})
    reply = await _request(bus, approval_id, keyed) or await _request(bus, approval_id, keyed)
    if reply is None:
        text = "it is not known whether the decision was taken; ask for the approval's state"
        raise Problem(503, text)
    outcome = DecideReply.model_validate_json(reply.data)
    if outcome.approval is not None:
        requests.link(outcome.approval.span_context)
    if outcome.status != 200:
        raise Problem(outcome.status, outcome.detail)
    return outcome.approval


async def _request(bus: Bus, approval_id: str, request: DecideRequest) -> Msg | None:
    try:
        return await bus.request(decide(approval_id), request.dump(), ANSWER_S)
    except OutcomeUnknown:
        return None


async def request_link(bus: Bus, approval_id: str, request: LinkRequest) -> LinkReply:
    """Ask for a link. The reply has the link, or the reason why no link was made.

    A repeated request makes another link. If the reply to an earlier request was lost, nobody knows
    the earlier link, and that link expires unused.
    """
    answer = await bus.request(link(approval_id), request.dump(), ANSWER_S)
    return LinkReply.model_validate_json(answer.data)
