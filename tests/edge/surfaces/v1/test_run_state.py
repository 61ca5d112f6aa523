"""GET /v1/runs/{id}/state: a run as it was after any of its events."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from penstock.bus import Bus, streams, subjects
from penstock.bus.read.direct import read
from penstock_edge.sources import read_run
from penstock_edge.surfaces.v1 import runs
from support.drive.clients import Client
from support.fakes.pretend import PretendRun

ITEM = {
    **{"item_id": "i1", "kind": "confirmation", "tool_call_id": "t1", "tool": "delete_file"},
    "args": {"path": "a"},
}
CHANGED = {"item_id": "i1", "decision": "approve", "args": {"path": "b"}}


async def told(bus: Bus) -> PretendRun:
    """Publish a run with a message, a tool call that a person allows, and a shared state."""
    run = PretendRun(bus)
    await run.record(status="completed", sequence=14)
    await run.started()
    await run.say("llm.message_started", message_id="m1", role="assistant", name="Vana")
    await run.say("llm.stream", message_id="m1", content="I will ")
    await run.say("llm.stream", message_id="m1", content="delete it.")
    await run.say("llm.message_completed", message_id="m1", role="assistant", content="Deleting.")
    call = {"tool_call_id": "t1", "tool": "delete_file"}
    await run.say("llm.tool_call", **call, args={"path": "a"}, pending=True)
    await run.say("approval.requested", approval_id="p1", digest="d", items=[ITEM])
    await run.say("lifecycle.paused", reason="approval_required", approval_id="p1")
    decided = {"outcome": "approved", "by": "alice", "items": [CHANGED]}
    await run.say("approval.decided", approval_id="p1", **decided)
    await run.say("lifecycle.resumed", approval_id="p1")
    await run.say("llm.tool_result", **call, result={"deleted": "b"}, outcome="ok")
    await run.say("state.delta", delta=[{"op": "add", "path": "/files", "value": 0}])
    await run.say("llm.usage", input_tokens=7, output_tokens=2, reported="call", estimated=False)
    await run.completed("gone")
    return run


async def state(edge: Client, run: PretendRun, at: object = None) -> dict[str, Any]:
    query = {} if at is None else {"at": str(at)}
    answer = await edge.get(f"/v1/runs/{run.run_id}/state", params=query)
    assert answer.status_code == 200, answer.text
    found: dict[str, Any] = answer.json()
    return found


async def test_a_text_is_there_as_far_as_it_was_said(edge: Client, bus: Bus) -> None:
    run = await told(bus)
    texts = {
        at: [each["content"] for each in (await state(edge, run, at))["messages"]]
        for at in range(1, 6)
    }
    assert texts == {1: [], 2: [""], 3: ["I will "], 4: ["I will delete it."], 5: ["Deleting."]}


async def test_an_approval_waits_and_its_tool_has_not_run_before_the_decision(
    edge: Client, bus: Bus
) -> None:
    run = await told(bus)
    waits = await state(edge, run, 8)
    assert (waits["status"], waits["approval_id"]) == ("paused", "p1")
    assert waits["approvals"] == [{"approval_id": "p1", "status": "pending", "items": [ITEM]}]
    [call] = waits["tool_calls"]
    assert (call["outcome"], call["args"], "result" in call) == ("waits", {"path": "a"}, False)
    decided = await state(edge, run, 9)
    assert (decided["approvals"][0]["status"], decided["approvals"][0]["by"]) == (
        "decided",
        "alice",
    )
    # The tool runs with the arguments of the decision, which are beside those that were asked.
    assert (decided["approvals"][0]["items"], decided["approvals"][0]["decisions"]) == (
        [ITEM],
        [CHANGED],
    )
    assert decided["tool_calls"][0]["args"] == {"path": "b"}
    assert (await state(edge, run, 10)).keys() == decided.keys() - {"approval_id"}
    assert (await state(edge, run, 11))["tool_calls"][0]["result"] == {"deleted": "b"}


async def test_without_a_place_it_is_the_state_now(edge: Client, bus: Bus) -> None:
    run = await told(bus)
    now = await state(edge, run)
    assert now == await state(edge, run, 14) == await state(edge, run, 50_000)
    assert (now["at"], now["status"], now["summary"], now["state"]) == (
        14,
        "completed",
        "gone",
        {"files": 0},
    )
    assert now["usage"] == {"calls": 1, "input_tokens": 7, "output_tokens": 2}
    assert (await state(edge, run, 11))["state"] == {}


async def test_a_state_waits_for_the_event_that_the_runs_record_names(
    edge: Client, bus: Bus, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The record is written before the event, so clients see a moment in which only it is there."""
    monkeypatch.setattr(read_run, "LATE_S", 60)
    has_read = asyncio.Event()

    async def reads(*arguments: Any) -> Any:
        found = await read(*arguments)
        has_read.set()
        return found

    monkeypatch.setattr(read_run, "read", reads)
    run = PretendRun(bus)
    await run.record(status="completed", sequence=3)
    await run.started()
    await run.say("llm.message_completed", message_id="m1", role="assistant", content="Done.")
    waiting = asyncio.gather(state(edge, run), edge.get(f"/v1/runs/{run.run_id}/fork"))
    await has_read.wait()
    # An earlier event is there already.
    assert (await state(edge, run, 2))["status"] == "running"
    await run.completed("gone")
    now, fork = await waiting
    assert (now["at"], now["status"]) == (3, "completed")
    assert fork.json()["sequence"] == 3


async def test_a_state_whose_last_event_is_lost_is_told_without_it(
    edge: Client, bus: Bus, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(read_run, "LATE_S", 0.1)
    run = PretendRun(bus)
    await run.record(status="completed", sequence=2)
    await run.started()
    assert (await state(edge, run))["at"] == 1


async def test_a_run_that_has_not_begun_is_queued(edge: Client, bus: Bus) -> None:
    run = PretendRun(bus)
    await run.record()
    assert (await state(edge, run))["status"] == "queued"


@pytest.mark.parametrize("at", ["0", "-1", "1.5", "50001", "x"])
async def test_a_wrong_place_is_422(edge: Client, bus: Bus, at: str) -> None:
    run = await told(bus)
    answer = await edge.get(f"/v1/runs/{run.run_id}/state", params={"at": at})
    assert (answer.status_code, answer.json()["detail"][:3]) == (422, "at:")


async def test_a_run_whose_first_events_have_expired_has_no_state(edge: Client, bus: Bus) -> None:
    run = await told(bus)
    purge = f"STREAM.PURGE.{streams.events_for(run.run_id)}"
    for last in (run.places[2], run.places[-1]):
        only = {"filter": subjects.events_of_run(run.run_id), "seq": last + 1}
        await bus.api(purge, only)
        answer = await edge.get(f"/v1/runs/{run.run_id}/state")
        assert answer.status_code == 410, answer.text


async def test_events_that_are_too_large_are_refused_with_the_place_that_can_be_had(
    edge: Client, bus: Bus, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(runs, "BYTES_READ", 700)
    monkeypatch.setattr(read_run, "BATCH", 1)
    run = await told(bus)
    answer = await edge.get(f"/v1/runs/{run.run_id}/state")
    assert answer.status_code == 422
    at = int(answer.json()["detail"].split("after event ")[1].split()[0])
    assert 1 <= at < 14
    assert (await state(edge, run, at))["at"] == at


async def test_a_run_of_too_many_events_has_no_state_now_but_earlier_ones(
    edge: Client, bus: Bus, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(runs, "EVENTS_READ", 5)
    run = await told(bus)
    answer = await edge.get(f"/v1/runs/{run.run_id}/state")
    assert (answer.status_code, "after event 5 " in answer.json()["detail"]) == (422, True)
    assert (await state(edge, run, 5))["at"] == 5
