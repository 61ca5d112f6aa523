"""Real agent servers under a policy: automatic, expired, by two people, with edited arguments."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any, NamedTuple

import pytest
import pytest_asyncio

from penstock.bus.records.approvals import ApprovalRecord
from penstock.events import TERMINAL, parse, typed_data
from penstock.settings import Config
from support.drive.pipeline import Event, Pipeline, new_run_id, pipeline, types
from support.fakes.policies import person, vote, written
from support.real.nats import NatsServer
from support.real.upstreams import Upstream

pytestmark = [pytest.mark.real, pytest.mark.asyncio(loop_scope="module")]

# The terms depend on the user, so that each agent can be run under each of them.
POLICY = """\
rules:
  - {id: expires, match: {user: expires}, outcome: ask, deadline: 1s}
  - {id: rises, match: {user: rises}, outcome: ask, deadline: 1h, escalate: [
      {after: 1s, to: {roles: [leads]}}, {after: 2s, to: {users: [chief]}}]}
  - {id: falls, match: {user: falls}, outcome: ask, deadline: 3s, escalate: [
      {after: 1s, to: {roles: [leads]}}, {after: 2s, to: {users: [chief]}}]}
  - {id: two, match: {user: two}, outcome: ask, need: 2, deciders: {roles: [ops]}}
  - {id: allow, match: {user: auto-yes}, outcome: approve}
  - {id: never, match: {user: auto-no}, outcome: reject, note: Never.}
  - {id: edits, match: {user: edits}, outcome: ask, edit: args.*}
"""
ADA, BOB = person("ada", "ops"), person("bob", "ops")


class Asks(NamedTuple):
    """An agent, and the message with which it asks. `{}` is replaced by a mark of the test."""

    agent: str
    message: str


CONFIRMATIONS = [
    Asks("agno", "confirm {}"),
    Asks("agno-team", "teamconfirm"),
    Asks("adk", "confirm"),
    Asks("adk-resumable", "confirm"),
    Asks("agui-pydantic-ai", "delete {}"),
    Asks("agui-agno", "delete {}"),
]
# `make test` asks these, beside the kinds of test_kinds; `make faults` asks all.
OF_SHORT = CONFIRMATIONS[:5:2]
RESULTS = [Asks("agno", "external")]
ANSWERED = [Asks("agno", "userinput"), Asks("agno", "feedback"), Asks("adk", "ask")]
ANSWERED += [Asks("adk", "needauth")]


def in_short(cases: list[Asks]) -> list[Any]:
    return [
        each if each in OF_SHORT else pytest.param(each, marks=pytest.mark.chaos) for each in cases
    ]


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def penstock(
    nats_server: NatsServer,
    agno_server: Upstream,
    adk_server: Upstream,
    pydantic_ai_server: Upstream,
    agno_agui_server: Upstream,
    tmp_path_factory: pytest.TempPathFactory,
) -> AsyncIterator[Pipeline]:
    agno = {"protocol": "agno", "url": agno_server.url}
    adk = {"protocol": "adk", "url": adk_server.url}
    agents: list[dict[str, Any]] = [
        {"id": "agno", "agent": "demo-agent", **agno},
        {"id": "agno-team", "agent": "demo-team", "kind": "team", **agno},
        {"id": "adk", "agent": "demo", **adk},
        {"id": "adk-resumable", "agent": "resumable", "resumable": True, **adk},
        {"id": "agui-pydantic-ai", "protocol": "agui", "url": f"{pydantic_ai_server.url}/approval"},
        {"id": "agui-agno", "protocol": "agui", "url": f"{agno_agui_server.url}/approval/agui"},
    ]
    policy = written(tmp_path_factory.mktemp("policy"), POLICY)
    config = Config.model_validate({"agents": agents})
    async with pipeline(nats_server.url, config, policy=policy, outbox_s=0.2) as running:
        yield running


def check(events: list[Event]) -> None:
    """Check that the events are valid, in order without a gap, and end once."""
    assert [event.sequence for event in events] == list(range(1, len(events) + 1))
    ends = [event for event in events if event.type in TERMINAL]
    assert len(ends) == 1
    for event in events:
        parsed = parse(event.body)
        typed_data(parsed.type, parsed.data)


async def start(penstock: Pipeline, asks: Asks, user: str) -> str:
    message = asks.message.format(f"/tmp/{new_run_id()}")
    return await penstock.start_run(asks.agent, message, user_id=user)


async def asked(penstock: Pipeline, asks: Asks, user: str) -> ApprovalRecord:
    run_id = await start(penstock, asks, user)
    *_, paused = await penstock.events_until(run_id, "lifecycle.paused")
    return await penstock.approval(paused.data["approval_id"])


def outcomes(events: list[Event]) -> set[str]:
    """Return the outcomes of the calls that were asked about."""
    named = {
        item["tool_call_id"]
        for event in events
        if event.type == "approval.requested"
        for item in event.data["items"]
        if item.get("tool_call_id")
    }
    return {
        event.data["outcome"]
        for event in events
        if event.type == "llm.tool_result" and event.data["tool_call_id"] in named
    }


@pytest.mark.parametrize("asks", in_short([*CONFIRMATIONS, *RESULTS]), ids=str)
async def test_what_nobody_decides_in_time_continues_as_expired(
    penstock: Pipeline, asks: Asks
) -> None:
    run_id = await start(penstock, asks, "expires")
    events = await penstock.ended(run_id)
    check(events)
    assert "approval.expired" in types(events)
    assert types(events)[-1] == "lifecycle.completed"
    assert outcomes(events) == {"expired"}


@pytest.mark.parametrize("asks", CONFIRMATIONS[:3:2], ids=str)
@pytest.mark.parametrize("user", ["rises", pytest.param("falls", marks=pytest.mark.chaos)])
async def test_what_nobody_decides_is_escalated_step_by_step(
    penstock: Pipeline, asks: Asks, user: str
) -> None:
    """A real server waits until the second step's person decides, or until the deadline."""
    approval = await asked(penstock, asks, user)
    if user == "rises":
        early = await penstock.ask(approval.approval_id, vote(approval, person("chief")))
        assert early.status == 403
        await penstock.events_until(
            approval.run_id, lambda e: e.type == "approval.escalated" and e.data["step"] == 2
        )
        reply = await penstock.ask(approval.approval_id, vote(approval, person("chief")))
        assert reply.status == 200
    events = await penstock.ended(approval.run_id)
    check(events)
    steps = [event.data for event in events if event.type == "approval.escalated"]
    assert [(each["step"], each["to"]) for each in steps] == [
        (1, {"roles": ["leads"], "users": []}),
        (2, {"roles": [], "users": ["chief"]}),
    ]
    ending = "approval.decided" if user == "rises" else "approval.expired"
    names = types(events)
    last = len(names) - 1 - names[::-1].index("approval.escalated")
    assert last < names.index(ending)
    assert outcomes(events) == ({"ok"} if user == "rises" else {"expired"})


@pytest.mark.parametrize("asks", ANSWERED, ids=str)
async def test_what_can_only_be_answered_is_cancelled_at_the_deadline(
    penstock: Pipeline, asks: Asks
) -> None:
    run_id = await start(penstock, asks, "expires")
    events = await penstock.ended(run_id)
    check(events)
    assert "approval.expired" in types(events)
    end = next(event for event in events if event.type in TERMINAL)
    assert end.type == "lifecycle.cancelled"
    assert (end.data["reason"], end.data["by"]) == ("approval_expired", "policy")


@pytest.mark.parametrize("asks", in_short(CONFIRMATIONS), ids=str)
async def test_two_people_approve(penstock: Pipeline, asks: Asks) -> None:
    approval = await asked(penstock, asks, "two")
    first = await penstock.ask(approval.approval_id, vote(approval, ADA))
    again = await penstock.ask(approval.approval_id, vote(approval, ADA))
    last = await penstock.ask(approval.approval_id, vote(approval, BOB))
    events = await penstock.ended(approval.run_id)
    check(events)
    assert (first.status, again.status, last.status) == (200, 409, 200)
    assert types(events)[-1] == "lifecycle.completed"
    assert outcomes(events) == {"ok"}
    assert types(events).count("approval.decided") == 1


@pytest.mark.parametrize("asks", in_short(CONFIRMATIONS), ids=str)
async def test_one_of_two_people_rejects(penstock: Pipeline, asks: Asks) -> None:
    approval = await asked(penstock, asks, "two")
    await penstock.ask(approval.approval_id, vote(approval, ADA))
    await penstock.ask(approval.approval_id, vote(approval, BOB, "reject", note="no"))
    events = await penstock.ended(approval.run_id)
    check(events)
    assert types(events)[-1] == "lifecycle.completed"
    assert outcomes(events) == {"rejected"}


@pytest.mark.parametrize(("user", "outcome"), [("auto-yes", "ok"), ("auto-no", "rejected")])
@pytest.mark.parametrize("asks", in_short(CONFIRMATIONS), ids=str)
async def test_what_the_policy_decides_pauses_nothing(
    penstock: Pipeline, asks: Asks, user: str, outcome: str
) -> None:
    events = await penstock.ended(await start(penstock, asks, user))
    check(events)
    assert not {"lifecycle.paused", "lifecycle.resumed"} & set(types(events))
    [decided] = [event.data for event in events if event.type == "approval.decided"]
    assert decided["automatic"]
    assert types(events)[-1] == "lifecycle.completed"
    assert outcomes(events) == {outcome}


@pytest.mark.parametrize("asks", in_short([*CONFIRMATIONS, *RESULTS, *ANSWERED]), ids=str)
async def test_the_request_of_a_cancelled_run_is_withdrawn(penstock: Pipeline, asks: Asks) -> None:
    approval = await asked(penstock, asks, "two")
    await penstock.ask(approval.approval_id, vote(approval, ADA))
    await penstock.cancel(approval.run_id)
    await penstock.events_until(approval.run_id, "approval.withdrawn")
    late = await penstock.ask(approval.approval_id, vote(approval, BOB))
    assert (late.status, "withdrawn" in late.detail) == (409, True)


async def test_agno_runs_the_arguments_that_were_edited(
    penstock: Pipeline, agno_server: Upstream
) -> None:
    approval = await asked(penstock, Asks("agno", "confirm {}"), "edits")
    title = new_run_id()
    edited = vote(approval, person("edits"), args={"title": title})
    assert (await penstock.ask(approval.approval_id, edited)).status == 200
    events = await penstock.ended(approval.run_id)
    check(events)
    assert [run["args"] for run in agno_server.tool_runs()].count({"title": title}) == 1
    assert outcomes(events) == {"ok"}
    assert "system.warning" not in types(events), "what ran is what was approved"


@pytest.mark.parametrize("agent", ["adk", "agui-agno"])
async def test_a_server_that_takes_no_edited_arguments_is_not_sent_any(
    penstock: Pipeline, agent: str
) -> None:
    [asks] = [each for each in CONFIRMATIONS if each.agent == agent]
    approval = await asked(penstock, asks, "edits")
    edited = vote(approval, person("edits"), args={"other": 1})
    refused = await penstock.ask(approval.approval_id, edited)
    assert (refused.status, "takes no edited arguments" in refused.detail) == (422, True)
    await penstock.cancel(approval.run_id)
