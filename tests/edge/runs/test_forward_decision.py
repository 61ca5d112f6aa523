"""The edge forwards a decision to an approvals service that may end before it replies."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from penstock.bus import Bus, Msg
from penstock.bus.records.approvals import (
    ApprovalRecord,
    Decided,
    Decider,
    DecideReply,
    DecideRequest,
)
from penstock.bus.subjects import decide
from penstock.runs import decide as handing_over
from penstock.runs.decide import forward_decision
from penstock.tracing import requests
from penstock.web.problems import Problem
from support.drive.bus import connected, new_run_id
from support.fakes.recorder import recording
from support.real.nats import NatsServer

RUNS_TRACE = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"
YES = DecideRequest(decider=Decider(name="ada"), items=[Decided(item_id="t1", decision="approve")])


@asynccontextmanager
async def approvals(bus: Bus, approval_id: str, deaf_for: int) -> AsyncIterator[list[str | None]]:
    """Answer decisions, except the first `deaf_for` ones; yield their idempotency keys."""
    keys: list[str | None] = []

    async def on_decide(msg: Msg) -> None:
        keys.append(DecideRequest.model_validate_json(msg.data).idempotency_key)
        if len(keys) > deaf_for:
            await bus.client.publish(msg.reply, DecideReply(status=200).dump())

    subscription = await bus.subscribe(decide(approval_id), on_decide)
    yield keys
    await subscription.unsubscribe()


@pytest.fixture(autouse=True)
def short(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(handing_over, "ANSWER_S", 0.3)


async def test_a_decision_whose_answer_is_lost_is_retried_with_the_same_key(
    nats_server: NatsServer,
) -> None:
    approval_id = new_run_id()
    async with connected(nats_server.url) as bus, approvals(bus, approval_id, 1) as keys:
        await forward_decision(bus, approval_id, YES)
    assert len(keys) == 2
    assert len(set(keys)) == 1
    assert keys[0]


async def test_two_decisions_have_two_keys(nats_server: NatsServer) -> None:
    approval_id = new_run_id()
    async with connected(nats_server.url) as bus, approvals(bus, approval_id, 0) as keys:
        await forward_decision(bus, approval_id, YES)
        await forward_decision(bus, approval_id, YES)
    assert len(set(keys)) == 2


async def test_the_request_and_the_approval_are_linked(nats_server: NatsServer) -> None:
    approval_id = new_run_id()
    record = ApprovalRecord.model_validate(
        {
            **{"approval_id": approval_id, "run_id": new_run_id(), "agent": "a"},
            **{"session_id": "s", "user_id": "u", "leg": 1, "digest": "d", "items": []},
            **{"requested_at": "", "updated_at": "", "traceparent": RUNS_TRACE},
        }
    )
    asked: list[DecideRequest] = []

    async def on_decide(msg: Msg) -> None:
        asked.append(DecideRequest.model_validate_json(msg.data))
        await bus.client.publish(msg.reply, DecideReply(status=409, approval=record).dump())

    with recording() as kept:
        async with connected(nats_server.url) as bus:
            await bus.subscribe(decide(approval_id), on_decide)
            requests.begin(None)
            with pytest.raises(Problem):
                await forward_decision(bus, approval_id, YES)
            requests.end("POST", "/agui/a", 200)
            [span] = kept.spans
            assert [each.traceparent for each in asked] == [span.context]
            assert span.links == (record.span_context,)


async def test_after_two_unanswered_requests_the_outcome_is_unknown(
    nats_server: NatsServer,
) -> None:
    approval_id = new_run_id()
    async with connected(nats_server.url) as bus, approvals(bus, approval_id, 9):
        with pytest.raises(Problem, match="not known whether the decision was taken") as problem:
            await forward_decision(bus, approval_id, YES)
    assert problem.value.status == 503
