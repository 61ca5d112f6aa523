"""Steps that ask people: the real services of workflows and of approvals together."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import pytest

from penstock.bus.records.approvals import ApprovalRecord, Decided, Decider, DecideRequest
from support.drive.pipeline import Event, Pipeline, types
from support.drive.waiting import eventually
from support.drive.workflows import (
    CountingServer,
    cancel_workflow,
    define,
    definition,
    start_workflow,
    workflows,
)
from support.real.nats import NatsServer


@pytest.fixture
async def penstock(nats_server: NatsServer, server: CountingServer) -> AsyncIterator[Pipeline]:
    async with workflows(nats_server.url, server) as running:
        yield running


async def until(penstock: Pipeline, run_id: str, type_: str, count: int = 1) -> list[Event]:
    """Return the events up to the one of this type and number."""
    left = count

    def is_it(event: Event) -> bool:
        nonlocal left
        left -= event.type == type_
        return left == 0

    return await penstock.events_until(run_id, is_it)


def asked(events: list[Event]) -> dict[str, str]:
    """Return the approvals that were requested, by the steps that asked."""
    return {
        event.data["items"][0]["tool"]: event.data["approval_id"]
        for event in events
        if event.type == "approval.requested"
    }


TWO = """
name: two
steps:
  a: {approve: {title: '"Do a?"', show: '{"n": 1}'}, output: 'result.decision'}
  b: {approve: {title: '"Do b?"'}, on_failure: continue}
  end:
    needs: [a, b]
    set: '[a.output, b.error.code, b.output.decision, b.output.by]'
output: end.output
"""


async def test_a_workflow_with_two_questions_is_paused_until_both_are_answered(
    penstock: Pipeline,
) -> None:
    await define(penstock.bus, definition(TWO))
    run_id = await start_workflow(penstock.bus, "two")
    approvals = asked(await until(penstock, run_id, "lifecycle.paused"))
    paused = (await penstock.record(run_id, "paused")).approval_id
    item = (await penstock.approval(approvals["a"])).items[0]
    assert (item["tool"], item["args"], item["description"]) == ("a", {"n": 1}, "Do a?")
    first = next(step for step in "ab" if approvals[step] == paused)
    second = "b" if first == "a" else "a"
    decisions = {"a": "approve", "b": "reject"}
    assert (await penstock.decide(approvals[first], decisions[first])).status == 200
    # The run is paused anew, with the question that is left.
    await until(penstock, run_id, "lifecycle.paused", 2)

    async def asks_the_second() -> bool:
        return (await penstock.record(run_id, "paused")).approval_id == approvals[second]

    await eventually(asks_the_second, what="the record names the second question")
    assert (await penstock.decide(approvals[second], decisions[second])).status == 200
    events = await penstock.ended(run_id)
    assert events[-1].data["value"] == ["approved", "rejected", "rejected", "someone"]
    kinds = [each for each in types(events) if each.startswith(("lifecycle", "approval"))]
    assert kinds == [
        "lifecycle.started",
        *["approval.requested"] * 2,
        *["lifecycle.paused", "approval.decided", "lifecycle.resumed"] * 2,
        "lifecycle.completed",
    ]


async def test_a_question_that_nobody_answers_in_time_fails_its_step(penstock: Pipeline) -> None:
    flow = """
    name: late
    steps:
      a: {approve: {title: '"Do it?"', form: {}}, timeout: 1s, on_failure: continue}
      end: {needs: [a], set: 'a.error.code'}
    output: end.output
    """
    await define(penstock.bus, definition(flow))
    run_id = await start_workflow(penstock.bus, "late")
    events = await penstock.ended(run_id)
    assert events[-1].data["summary"] == "expired"
    approval = asked(events)["a"]
    assert (await penstock.approval(approval)).status == "expired"
    kinds = [each for each in types(events) if each.startswith("approval")]
    assert kinds == ["approval.requested", "approval.expired", "approval.decided"]
    refused = await penstock.decide(approval)
    assert refused.status == 409


def vote(who: str, approval: ApprovalRecord, **item: Any) -> DecideRequest:
    decided = {"item_id": approval.items[0]["item_id"], "decision": "approve", **item}
    decider = Decider(name=who, roles=["finance"], scopes=["decide"], channel="api")
    return DecideRequest(
        decider=decider, digest=approval.digest, items=[Decided.model_validate(decided)]
    )


async def test_a_step_is_decided_by_as_many_of_its_deciders_with_an_answer_that_fits(
    penstock: Pipeline,
) -> None:
    flow = """
    name: refund
    steps:
      ask:
        approve:
          title: '"Refund?"'
          deciders: {roles: [finance], not: [requester]}
          need: 2
          form: {type: object, required: [amount], properties: {amount: {type: integer}}}
        output: result.data.amount
    output: ask.output
    """
    await define(penstock.bus, definition(flow))
    run_id = await start_workflow(penstock.bus, "refund")
    approval_id = asked(await until(penstock, run_id, "lifecycle.paused"))["ask"]
    approval = await penstock.approval(approval_id)
    assert (approval.need, approval.deciders[0].roles) == (2, ["finance"])
    answer = {"amount": 5}
    refused = [
        vote(approval.user_id, approval, value=answer),
        vote("grace", approval),
        vote("grace", approval, value={"amount": "5"}),
    ]
    replies = [await penstock.ask(approval_id, each) for each in refused]
    assert [each.status for each in replies] == [403, 422, 422]
    assert "value.amount: must be" in replies[2].detail
    assert (await penstock.ask(approval_id, vote("grace", approval, value=answer))).status == 200
    assert (await penstock.record(run_id, "paused")).approval_id == approval_id
    assert (await penstock.ask(approval_id, vote("alan", approval))).status == 200
    assert (await penstock.ended(run_id))[-1].data["value"] == 5
    # A rejection needs no answer.
    run_id = await start_workflow(penstock.bus, "refund")
    approval_id = asked(await until(penstock, run_id, "lifecycle.paused"))["ask"]
    approval = await penstock.approval(approval_id)
    no = vote("grace", approval, decision="reject", note="no receipt")
    assert (await penstock.ask(approval_id, no)).status == 200
    assert (await penstock.ended(run_id))[-1].data["code"] == "rejected"


async def test_a_cancelled_workflow_asks_no_longer(penstock: Pipeline) -> None:
    await define(penstock.bus, definition(TWO))
    run_id = await start_workflow(penstock.bus, "two")
    approvals = asked(await until(penstock, run_id, "lifecycle.paused"))
    await cancel_workflow(penstock.bus, run_id)
    events = await until(penstock, run_id, "approval.withdrawn", 2)
    assert "lifecycle.cancelled" in types(events)
    for approval in approvals.values():
        assert (await penstock.approval(approval)).status == "withdrawn"
