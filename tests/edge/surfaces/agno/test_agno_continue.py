"""Continuing a paused run, which is a decision, and cancelling one, as agno-events.md says."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import httpx
import orjson
import pytest

from penstock.bus import Bus, Stored
from penstock.bus.records.legs import PauseRecord
from penstock.dialects.agno.encode import pauses
from penstock.settings import Config
from penstock_edge.sources.locate import lifecycle_of
from support.drive.agno_surface import CONFIG, Paused, named
from support.drive.clients import Client, Stream
from support.drive.waiting import eventually
from support.fakes.pretend import PretendRun
from support.fakes.raw import agno, agno_approved

CONFIRM: dict[str, Any] = {
    "item_id": "t1",
    "tool_call_id": "t1",
    "kind": "confirmation",
    "tool": "delete_file",
    "args": {"path": "/x"},
}
SECOND = {**CONFIRM, "item_id": "t2", "tool_call_id": "t2", "args": {"path": "/y"}}
INPUT = {
    **CONFIRM,
    "kind": "input",
    "tool": "send",
    "args": {},
    "input_schema": {
        "type": "object",
        "properties": {"to": {"type": "string"}},
        "required": ["to"],
    },
}
QUESTION = {"question": "City?", "multi_select": False, "options": [{"label": "Paris"}]}
FEEDBACK = {**CONFIRM, "kind": "feedback", "tool": "ask_user", "options": [QUESTION]}
EXTERNAL = {**CONFIRM, "kind": "external", "tool": "run_shell"}
GATE = {"item_id": "s1", "kind": "confirmation", "description": "Run the gate?"}
NOTHING = "00000000-0000-7000-8000-000000000000"


@pytest.fixture(scope="module")
def config() -> Config:
    return CONFIG


@pytest.fixture
def paused(bus: Bus) -> Callable[..., Any]:
    async def make(*items: dict[str, Any], agent: str = "assistant") -> Paused:
        made = Paused(bus, agent, list(items or [CONFIRM]))
        await made.start()
        await made.pause()
        return made

    return make


def path_of(waits: Paused, action: str = "continue") -> str:
    kind = next(agent.kind for agent in CONFIG.agents if agent.id == waits.agent)
    return f"/{kind}s/{waits.agent}/runs/{waits.run.run_id}/{action}"


def form(**fields: Any) -> dict[str, str]:
    texts = {name: value for name, value in fields.items() if isinstance(value, str)}
    lists = {name: orjson.dumps(v).decode() for name, v in fields.items() if name not in texts}
    return {"stream": "true", **lists, **texts}


def go_on(edge: Client, waits: Paused, **fields: Any) -> Stream:
    return Stream(edge, "POST", path_of(waits), data=form(**fields))


async def refused(edge: Client, waits: Paused, **fields: Any) -> httpx.Response:
    """Send a continue that must be refused without effect; return the answer."""
    answer = await edge.post(path_of(waits), data=form(**fields))
    assert answer.status_code >= 400, answer.text
    assert set(answer.json()) == {"detail"}
    assert waits.sent == 0
    return answer


# the decision and the leg after it


@pytest.mark.parametrize(("confirmed", "decision"), [(True, "approve"), (False, "reject")])
async def test_a_continue_is_a_decision_and_streams_the_next_leg(
    edge: Client, paused: Any, confirmed: bool, decision: str
) -> None:
    waits = await paused()
    tools = waits.tools(confirmed=confirmed, confirmation_note="so")
    async with go_on(edge, waits, tools=tools, session_id="s1", user_id="u1") as stream:
        assert stream.response.status_code == 200
        assert stream.run_id == waits.run.run_id
        await waits.run.leg(agno_approved(), leg=2)
        await stream.rest()
    assert stream.body == agno_approved()
    assert waits.decided == [{"item_id": "t1", "decision": decision, "note": "so"}]


async def test_who_may_not_read_the_next_leg_decides_nothing(edge: Client, paused: Any) -> None:
    waits = await paused()
    redacted = {"agent": "assistant", "session_id": waits.run.session_id, "redactions": 3}
    await waits.run.record(**redacted)
    answer = await refused(edge, waits, tools=waits.tools(confirmed=True))
    assert (answer.status_code, "redactions apply" in answer.text) == (409, True)


async def test_the_earlier_leg_is_not_told_again(edge: Client, paused: Any) -> None:
    waits = await paused()
    await waits.run.leg(agno("RunStarted") + agno("RunPaused"))
    async with go_on(edge, waits, tools=waits.tools(confirmed=True)) as stream:
        await waits.run.leg(agno_approved(), leg=2)
        await stream.rest()
    assert stream.body == agno_approved()


async def test_another_protocols_next_leg_is_told_in_agnos_frames(
    edge: Client, paused: Any
) -> None:
    waits = await paused(agent="helper")
    async with go_on(edge, waits, tools=waits.tools(confirmed=True)) as stream:
        waits.run.leg_number = 2
        await waits.run.say("lifecycle.resumed", approval_id=waits.approval_id)
        await waits.run.text("Done")
        await waits.run.completed("Done")
        frames = await stream.rest()
    assert named(frames)[:2] == ["RunContinued", "RunContent"]
    assert named(frames)[-1] == "RunCompleted"


@pytest.mark.parametrize("agent", ["assistant", "helper"])
async def test_without_a_stream_the_run_is_one_object_once_the_leg_is_over(
    edge: Client, paused: Any, agent: str
) -> None:
    waits = await paused(agent=agent)
    asked = form(tools=waits.tools(confirmed=True), stream="false")
    answering = asyncio.create_task(edge.post(path_of(waits), data=asked))
    await eventually(lambda: _true(waits.sent == 1), what="the decision")
    waits.run.leg_number = 2
    await waits.run.say("lifecycle.resumed", approval_id=waits.approval_id)
    await waits.run.completed("Done")
    answer = await answering
    assert answer.json()["status"] == "COMPLETED"
    assert answer.json()["content"] == "Done"


async def _true(value: bool) -> bool:
    return value


async def test_a_paused_run_is_an_object_that_can_be_sent_back(edge: Client, bus: Bus) -> None:
    waits = Paused(bus, "helper", [CONFIRM])
    data = {"message": "delete /x"}
    asking = asyncio.create_task(edge.post("/agents/helper/runs", data=data))

    async def started() -> Any:
        entries = await bus.bucket("runs").entries()
        mine = [e for e in entries if orjson.loads(e.value or b"{}")["message"] == data["message"]]
        return mine and mine[0].key

    waits.run = PretendRun(bus, await eventually(started, what="the run"))
    await waits.start()
    await waits.pause()
    shown = (await asking).json()
    assert shown["status"] == "PAUSED"
    [tool] = shown["tools"]
    assert (tool["tool_call_id"], tool["tool_name"]) == ("t1", "delete_file")
    tool["confirmed"] = True
    async with go_on(edge, waits, tools=[tool]) as stream:
        assert stream.response.status_code == 200
    assert waits.decided == [{"item_id": "t1", "decision": "approve"}]


async def test_an_answer_may_be_faster_than_the_record_of_its_pause(
    edge: Client, bus: Bus, monkeypatch: pytest.MonkeyPatch
) -> None:
    waits = Paused(bus, "assistant", [CONFIRM])
    await waits.start()
    await early(edge, waits, monkeypatch)


async def test_an_answer_to_the_next_pause_is_none_to_the_last_one(
    edge: Client, bus: Bus, paused: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = await paused()
    first.run.leg_number = 2
    second = Paused(bus, "assistant", [SECOND])
    second.run = first.run
    await second.listen()
    await early(edge, second, monkeypatch)
    assert first.sent == 0


async def early(edge: Client, waits: Paused, monkeypatch: pytest.MonkeyPatch) -> None:
    """Send an answer, and record its pause only after the edge has looked for it."""
    looked = asyncio.Event()

    async def look(bus: Bus, run_id: str) -> Stored | None:
        found = await lifecycle_of(bus, run_id)
        looked.set()
        return found

    monkeypatch.setattr("penstock_edge.runs.pauses.lifecycle_of", look)
    data = form(tools=waits.tools(confirmed=True), stream="false")
    answering = asyncio.create_task(edge.post(path_of(waits), data=data))
    await looked.wait()
    await waits.pause()
    await eventually(lambda: _true(waits.sent == 1), what="the decision")
    await waits.run.completed("Done")
    assert (await answering).status_code == 200


VALUES: dict[str, tuple[dict[str, Any], dict[str, Any], Any]] = {
    "user input": (
        INPUT,
        {"user_input_schema": [{"name": "to", "value": "a@b.c"}], "answered": True},
        {"to": "a@b.c"},
    ),
    "external result": (EXTERNAL, {"result": "file1\nfile2"}, "file1\nfile2"),
    "feedback": (
        FEEDBACK,
        {"user_feedback_schema": [{**QUESTION, "selected_options": ["Paris"]}]},
        {"City?": ["Paris"]},
    ),
}


@pytest.mark.parametrize(("item", "filled", "value"), VALUES.values(), ids=VALUES)
async def test_each_kind_of_pause_takes_its_answer(
    edge: Client, paused: Any, item: dict[str, Any], filled: dict[str, Any], value: Any
) -> None:
    waits = await paused(item)
    async with go_on(edge, waits, tools=waits.tools(**filled)) as stream:
        assert stream.response.status_code == 200, await stream.response.aread()
    assert waits.decided == [{"item_id": "t1", "decision": "approve", "value": value}]


@pytest.mark.parametrize("item", [INPUT, FEEDBACK, EXTERNAL], ids=["input", "feedback", "external"])
async def test_a_pause_that_wants_a_value_is_not_answered_without_one(
    edge: Client, paused: Any, item: dict[str, Any]
) -> None:
    waits = await paused(item)
    assert (await refused(edge, waits, tools=waits.tools())).status_code == 422


async def test_a_team_is_answered_by_its_requirements_and_their_own_ids(
    edge: Client, bus: Bus, paused: Any
) -> None:
    waits = await paused(CONFIRM, {**SECOND, "item_id": "t1#2"}, agent="crew")
    tools = [{"tool_call_id": "t1", "tool_args": {"path": path}} for path in ("/x", "/y")]
    shown = [{"id": f"r{n}", "tool_execution": tool} for n, tool in enumerate(tools)]
    resume = {
        "requirements": shown,
        "items": {"t1": ["requirements", 0], "t1#2": ["requirements", 1]},
    }
    record = PauseRecord(
        run_id=waits.run.run_id,
        approval_id=waits.approval_id,
        leg=1,
        protocol="agno",
        fold={},
        resume=resume,
    )
    await bus.bucket("pauses").put(waits.run.run_id, record.dump())
    answers = [{**shown[1], "confirmation": False}, {**shown[0], "confirmation": True}]
    async with go_on(edge, waits, requirements=answers) as stream:
        assert stream.response.status_code == 200, await stream.response.aread()
    taken = {item["item_id"]: item["decision"] for item in waits.decided}
    assert taken == {"t1": "approve", "t1#2": "reject"}


async def test_a_workflow_is_answered_by_its_step_requirements(edge: Client, paused: Any) -> None:
    waits = await paused(GATE, agent="flow")
    steps = [{"step_id": "s1", "confirmed": False, "rejection_feedback": "not now"}]
    async with go_on(edge, waits, step_requirements=steps) as stream:
        assert stream.response.status_code == 200, await stream.response.aread()
    assert waits.decided == [{"item_id": "s1", "decision": "reject", "note": "not now"}]


async def test_answers_may_come_as_json(edge: Client, paused: Any) -> None:
    waits = await paused()
    body = {"tools": waits.tools(confirmed=True), "stream": True}
    async with Stream(edge, "POST", path_of(waits), json=body) as stream:
        assert stream.response.status_code == 200
    assert waits.sent == 1


# requests without effect


def without(tool: dict[str, Any], *names: str) -> dict[str, Any]:
    return {name: value for name, value in tool.items() if name not in names}


TOOL = {**pauses.waiting_tool(CONFIRM, "a"), "confirmed": True}
WRONG: dict[str, tuple[dict[str, Any], int]] = {
    "another tool_call_id": ({"tools": [{**TOOL, "tool_call_id": "t9"}]}, 422),
    "no tool_call_id": ({"tools": [without(TOOL, "tool_call_id")]}, 422),
    "changed arguments": ({"tools": [{**TOOL, "tool_args": {"path": "/etc"}}]}, 422),
    "more arguments": ({"tools": [{**TOOL, "tool_args": {"path": "/x", "force": True}}]}, 422),
    "another tool": ({"tools": [{**TOOL, "tool_name": "delete_all"}]}, 422),
    "no decision": ({"tools": [{**TOOL, "confirmed": None}]}, 422),
    "a decision in words": ({"tools": [{**TOOL, "confirmed": "yes"}]}, 422),
    "the same call twice": ({"tools": [TOOL, TOOL]}, 422),
    "a second call that nobody asked about": (
        {"tools": [TOOL, {**TOOL, "tool_call_id": "t9"}]},
        422,
    ),
    "a value nested beyond measure": ({"tools": f'[{{"result": {"[" * 500 + "]" * 500}}}]'}, 422),
    "no tools": ({"tools": []}, 422),
    "a missing field": ({}, 422),
    "an empty field": ({"tools": ""}, 422),
    "another kind's field": ({"step_requirements": [TOOL]}, 422),
    "broken JSON": ({"tools": "[{"}, 400),
    "no JSON": ({"tools": "approve"}, 400),
    "no list": ({"tools": TOOL}, 400),
    "a list of texts": ({"tools": ["t1"]}, 400),
    "another session": ({"tools": [TOOL], "session_id": "s9"}, 404),
}


@pytest.mark.parametrize(("fields", "status"), WRONG.values(), ids=WRONG)
async def test_an_answer_that_does_not_fit_does_nothing(
    edge: Client, paused: Any, fields: dict[str, Any], status: int
) -> None:
    waits = await paused()
    assert (await refused(edge, waits, **fields)).status_code == status
    # The run still waits, so the right answer continues it.
    async with go_on(edge, waits, tools=[TOOL]) as stream:
        assert stream.response.status_code == 200


async def test_an_answer_to_one_of_two_does_nothing(edge: Client, paused: Any) -> None:
    waits = await paused(CONFIRM, SECOND)
    answer = await refused(edge, waits, tools=[TOOL])
    assert answer.status_code == 422
    assert "t2" in answer.json()["detail"]


async def test_bad_json_is_agnos_400(edge: Client, paused: Any) -> None:
    answer = await refused(edge, await paused(), tools="[{")
    assert answer.json() == {"detail": "Invalid JSON in tools field"}


async def test_a_second_continue_is_409_and_sends_nothing(edge: Client, paused: Any) -> None:
    waits = await paused()
    completing = asyncio.create_task(_complete(waits))
    asked = form(tools=[TOOL], stream="false")
    answers = await asyncio.gather(*(edge.post(path_of(waits), data=asked) for _ in range(3)))
    await completing
    assert sorted(answer.status_code for answer in answers) == [200, 409, 409]
    assert waits.sent == 1
    again = await edge.post(path_of(waits), data=form(tools=[TOOL]))
    assert (again.status_code, set(again.json())) == (409, {"detail"})
    assert waits.sent == 1


async def _complete(waits: Paused) -> None:
    await eventually(lambda: _true(waits.sent == 1), what="the decision")
    await waits.run.completed("Done")


async def test_a_run_that_is_not_paused_is_409(edge: Client, bus: Bus) -> None:
    waits = Paused(bus, "assistant", [CONFIRM])
    await waits.start()
    assert (await refused(edge, waits, tools=[TOOL])).status_code == 409
    await waits.run.completed()
    answer = await refused(edge, waits, tools=[TOOL])
    assert answer.status_code == 409
    assert "completed" in answer.json()["detail"]


@pytest.mark.parametrize("action", ["continue", "cancel"])
@pytest.mark.parametrize("run_id", [NOTHING, "not-a-run", "*", "%2e%2e"])
async def test_an_unknown_run_is_404(edge: Client, run_id: str, action: str) -> None:
    url = f"/agents/assistant/runs/{run_id}/{action}"
    answer = await edge.post(url, data=form(tools=[TOOL]))
    assert answer.status_code == 404
    assert answer.json()["detail"].startswith("No runs found for run ID")


@pytest.mark.parametrize("action", ["continue", "cancel"])
async def test_the_run_of_another_agent_is_404(edge: Client, paused: Any, action: str) -> None:
    waits = await paused()
    for agent in ("/agents/helper", "/teams/crew"):
        url = f"{agent}/runs/{waits.run.run_id}/{action}"
        answer = await edge.post(url, data=form(tools=[TOOL], requirements=[]))
        assert answer.status_code == 404
    assert waits.sent == 0


# cancelling


async def test_a_running_run_is_cancelled(edge: Client, bus: Bus) -> None:
    async with Stream(
        edge, "POST", "/agents/assistant/runs", data={"message": "hi", "stream": "true"}
    ) as stream:
        run = PretendRun(bus, stream.run_id)
        await run.started()
        await run.raw("open", {})
        await run.raw("bytes", agno("RunStarted"))
        run_id = (await stream.event()) and stream.run_id
        url = f"/agents/assistant/runs/{run_id}/cancel"
        cancelling = asyncio.create_task(edge.post(url))
        await eventually(lambda: bus.tail("COMMANDS", f"command.connector.cancel.{run_id}"))
        await run.raw("bytes", agno("RunCancelled", reason="stop"))
        await run.raw("end", {"outcome": "cancelled"})
        await run.say("lifecycle.cancelled", reason="user_stop", confirmed=True)
        answer = await cancelling
        assert named(await stream.rest()) == ["RunCancelled"]
    assert (answer.status_code, answer.json()) == (200, {})
    again = await edge.post(url)
    assert (again.status_code, set(again.json())) == (409, {"detail"})


@pytest.mark.parametrize("end", ["completed", "failed", "cancelled"])
async def test_a_finished_run_cannot_be_cancelled(edge: Client, run: PretendRun, end: str) -> None:
    await run.started()
    await run.say(f"lifecycle.{end}", error="no", summary="")
    answer = await edge.post(f"/agents/assistant/runs/{run.run_id}/cancel")
    assert (answer.status_code, answer.json()) == (409, {"detail": f"Execution already {end}"})


async def test_the_session_of_a_cancel_must_be_the_runs(edge: Client, run: PretendRun) -> None:
    await run.started()
    url = f"/agents/assistant/runs/{run.run_id}/cancel?session_id=s9"
    assert (await edge.post(url)).status_code == 404
