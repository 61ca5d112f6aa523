"""The span of an approval shows how it ended, and is linked to the requests that decided it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from penstock.bus.records.approvals import ApprovalRecord, Decided, DecideRequest
from penstock.tracing import context, spans
from penstock_approvals.outcomes.automatic import as_expired
from penstock_approvals.outcomes.votes import with_vote
from penstock_approvals.runs.events import span_of
from support.fakes.recorder import recording

CLIENT = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"
NOW = "2026-11-20T10:00:09.000Z"
NOTE = "zebra-4711"


@pytest.fixture(autouse=True)
def _tracing() -> Iterator[None]:
    with recording():
        yield


def asked(**fields: Any) -> ApprovalRecord:
    return ApprovalRecord.model_validate(
        {
            **{"approval_id": "p", "run_id": "r", "agent": "a", "session_id": "s"},
            **{"user_id": "u", "leg": 1, "digest": "sha256:0"},
            "items": [{"item_id": "1", "kind": "confirmation", "description": NOTE}],
            "requested_at": "2026-11-20T10:00:00.000Z",
            "updated_at": "2026-11-20T10:00:00.000Z",
            "traceparent": CLIENT,
            **fields,
        }
    )


def vote(record: ApprovalRecord, by: str, traceparent: str | None) -> ApprovalRecord:
    items = [Decided(item_id="1", decision="approve", note=NOTE)]
    decider = {"name": by, "scopes": ["decide", "act-as"], "roles": []}
    request = DecideRequest.model_validate(
        {"items": items, "by": by, "decider": decider, "note": NOTE, "traceparent": traceparent}
    )
    return with_vote(record, request, NOW, require_digest=False)


def test_each_vote_is_a_link_to_the_request_of_the_person_who_voted() -> None:
    first, second = context.child(CLIENT, "first"), context.child(CLIENT, "second")
    record = vote(vote(asked(need=2), "ada", first), "grace", second)
    span = span_of(record)
    assert span is not None
    assert span.links == (first, second)
    assert span.context == record.span_context
    assert span.parent == spans.of_run(CLIENT, "r")
    assert span.ended_ns - span.began_ns == 9_000_000_000
    assert span.attributes["penstock.approval.outcome"] == "approved"
    for content in (NOTE, "ada", "grace"):
        assert content not in str(span)


def test_a_decision_without_a_trace_has_no_link() -> None:
    span = span_of(vote(asked(), "ada", None))
    assert span is not None
    assert span.links == ()


def test_escalations_and_the_deadline_are_in_the_runs_trace() -> None:
    steps = [{"at": f"2026-11-20T10:00:0{at}.000Z", "to": {"users": ["grace"]}} for at in (3, 6, 8)]
    record = asked(escalations=steps, escalated=2, expires_at=NOW)
    span = span_of(as_expired(record, NOW))
    assert span is not None
    began = span.began_ns
    assert span.events == (
        ("escalated", began + 3_000_000_000),
        ("escalated", began + 6_000_000_000),
    )
    assert span.attributes["penstock.approval.status"] == "expired"
    assert span.attributes["penstock.approval.automatic"] is True
    assert span.links == ()


def test_an_approval_of_a_run_without_a_trace_has_no_span() -> None:
    assert span_of(vote(asked(traceparent=None), "ada", CLIENT)) is None
