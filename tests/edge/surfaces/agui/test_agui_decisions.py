"""POST /agui/{agent} answers a pause by `resume` or by the message of a frontend's tool."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Callable
from typing import Any

import orjson
import pytest

from penstock.bus import Bus
from penstock.bus.subjects import key_of
from penstock.settings import AguiAgent, Config
from support.drive.agno_surface import CONFIG, Paused
from support.drive.agui_requests import approved, post, run_input, tool, user
from support.drive.clients import Client, MakeEdge, contents

CONFIRM = {"item_id": "c1", "kind": "confirmation", "tool": "delete", "tool_call_id": "c1"}
PICK = {"item_id": "p1", "kind": "external", "tool": "pick", "tool_call_id": "call-p1"}

MakePaused = Callable[..., Any]


@pytest.fixture(scope="module")
def config() -> Config:
    return CONFIG


@pytest.fixture
def paused(bus: Bus) -> MakePaused:
    """Return a function that makes a run that waits for these items, with its thread's record."""

    async def make(*items: dict[str, Any], thread: str = "") -> Paused:
        waits = Paused(bus, "assistant", list(items))
        waits.run.session_id = thread or f"thread {uuid.uuid4()}"
        await waits.start()
        await waits.run.join(agent="assistant")
        await waits.pause()
        return waits

    return make


def interrupt(waits: Paused, item: dict[str, Any] = CONFIRM) -> dict[str, Any]:
    return {"id": f"{waits.approval_id}/{item['item_id']}"}


def answer(waits: Paused, *entries: dict[str, Any], **fields: Any) -> dict[str, Any]:
    return run_input(waits.run.session_id, resume=list(entries), **fields)


def shown(waits: Paused, item: dict[str, Any] = PICK) -> str:
    """Return the id of the tool call that clients are given."""
    return f"{waits.run.run_id[-12:]}.{item['tool_call_id']}"


async def go_on(waits: Paused) -> None:
    """Play the next leg, to the run's end."""
    waits.run.leg_number = 2
    await waits.run.say("lifecycle.resumed", approval_id=waits.approval_id)
    await waits.run.text("gone on")
    await waits.run.completed()


async def refused(edge: Client, body: dict[str, Any], agent: str = "assistant") -> tuple[int, str]:
    given = await edge.post(f"/agui/{agent}", json=body)
    detail = given.json()["detail"]
    return given.status_code, detail if isinstance(detail, str) else orjson.dumps(detail).decode()


@pytest.mark.parametrize("yes", [True, False])
async def test_a_resume_is_a_decision_and_streams_the_next_leg_under_the_clients_run_id(
    edge: Client, paused: MakePaused, yes: bool
) -> None:
    waits = await paused(CONFIRM)
    asked = answer(waits, approved(interrupt(waits), yes))
    async with post(edge, "assistant", asked) as stream:
        assert stream.run_id == waits.run.run_id
        await go_on(waits)
        told = contents(await stream.rest())
    assert [each["type"] for each in told] == [
        "RUN_STARTED",
        "TEXT_MESSAGE_START",
        "TEXT_MESSAGE_CONTENT",
        "TEXT_MESSAGE_END",
        "RUN_FINISHED",
    ]
    assert {told[0]["runId"], told[-1]["runId"]} == {asked["runId"]}
    assert waits.decided == [{"item_id": "c1", "decision": "approve" if yes else "reject"}]


async def test_a_cancelled_resume_is_a_refusal(edge: Client, paused: MakePaused) -> None:
    waits = await paused(CONFIRM)
    entry = {"interruptId": interrupt(waits)["id"], "status": "cancelled"}
    async with post(edge, "assistant", answer(waits, entry)):
        assert waits.decided == [{"item_id": "c1", "decision": "reject"}]


async def test_an_interrupt_for_the_whole_approval_answers_all_its_items(
    edge: Client, paused: MakePaused
) -> None:
    waits = await paused(CONFIRM, {**CONFIRM, "item_id": "c2"})
    async with post(edge, "assistant", answer(waits, approved({"id": waits.approval_id}))):
        assert [each["item_id"] for each in waits.decided] == ["c1", "c2"]


async def test_of_two_resumes_one_is_taken_and_the_other_409(
    edge: Client, paused: MakePaused
) -> None:
    waits = await paused(CONFIRM)
    winner = answer(waits, approved(interrupt(waits)))
    async with post(edge, "assistant", winner) as stream:
        late = answer(waits, approved(interrupt(waits)))
        status, detail = await refused(edge, late)
        assert (status, waits.sent) == (409, 1)
        assert "already" in detail
        await go_on(waits)
        await stream.rest()


async def test_an_answer_that_is_refused_does_not_name_the_leg(
    edge: Client, paused: MakePaused, bus: Bus
) -> None:
    waits = await paused(CONFIRM, PICK)
    assert (await refused(edge, answer(waits, approved(interrupt(waits)))))[0] == 422
    assert await bus.bucket("aliases").get(key_of("agui", waits.run.run_id, "2")) is None


@pytest.mark.parametrize(
    ("entries", "status"),
    [
        (lambda waits: [approved({"id": str(uuid.uuid4())})], 404),
        (lambda waits: [approved({"id": "int-call_1"})], 404),
        (lambda waits: [approved({"id": ">"})], 404),
        (lambda waits: [approved({"id": f"{waits.approval_id}/c9"})], 422),
        (lambda waits: [approved(interrupt(waits)), approved({"id": str(uuid.uuid4())})], 404),
        (lambda waits: [approved(interrupt(waits))] * 2, 422),
        (lambda waits: [{**approved(interrupt(waits)), "payload": {"ok": 1}}], 422),
        (lambda waits: [{**approved(interrupt(waits)), "payload": "yes"}], 422),
        (lambda waits: [{**approved(interrupt(waits)), "payload": None}], 422),
        (lambda waits: [{**approved(interrupt(waits)), "status": "done"}], 422),
    ],
    ids=[
        "unknown",
        "an upstream's own id",
        "no key",
        "unknown item",
        "one that is known, and one unknown",
        "an item twice",
        "neither yes nor no",
        "no object",
        "nothing",
        "unknown status",
    ],
)
async def test_a_resume_that_does_not_fit_decides_nothing(
    edge: Client, paused: MakePaused, entries: Any, status: int
) -> None:
    waits = await paused(CONFIRM)
    assert (await refused(edge, answer(waits, *entries(waits))))[0] == status
    assert waits.sent == 0


async def test_a_resume_that_leaves_items_out_is_422_and_names_them(
    edge: Client, paused: MakePaused
) -> None:
    waits = await paused(CONFIRM, {**CONFIRM, "item_id": "c2", "tool_call_id": "c2"})
    status, detail = await refused(edge, answer(waits, approved(interrupt(waits))))
    assert (status, waits.sent) == (422, 0)
    assert "c2" in detail


@pytest.mark.parametrize(("field", "value"), [("thread", "another"), ("agent", "crew")])
async def test_a_pause_of_another_thread_or_agent_is_unknown(
    edge: Client, paused: MakePaused, field: str, value: str
) -> None:
    waits = await paused(CONFIRM)
    body = answer(waits, approved(interrupt(waits)))
    if field == "thread":
        body["threadId"] = value
    agent = value if field == "agent" else "assistant"
    assert (await refused(edge, body, agent))[0] == 404
    assert waits.sent == 0


async def test_the_result_of_a_frontends_tool_answers_the_pause(
    edge: Client, paused: MakePaused
) -> None:
    waits = await paused(PICK)
    asked = run_input(waits.run.session_id, user("which?"), tool(shown(waits), "red"))
    async with post(edge, "assistant", asked) as stream:
        await go_on(waits)
        told = contents(await stream.rest())
    assert waits.decided == [{"item_id": "p1", "decision": "approve", "value": "red"}]
    assert told[0]["runId"] == asked["runId"]


async def test_results_of_other_tools_may_stand_beside_the_answer(
    edge: Client, paused: MakePaused
) -> None:
    waits = await paused(PICK)
    messages = [user("which?"), tool("ran-elsewhere", "x"), tool(shown(waits), "red")]
    async with post(edge, "assistant", run_input(waits.run.session_id, *messages)):
        assert [each["item_id"] for each in waits.decided] == ["p1"]


async def test_of_two_runs_that_wait_for_calls_of_one_name_the_right_one_is_answered(
    edge: Client, paused: MakePaused
) -> None:
    first = await paused(PICK)
    second = await paused(PICK, thread=first.run.session_id)
    message = tool(shown(first), "red")
    async with post(edge, "assistant", run_input(first.run.session_id, message)):
        assert (first.sent, second.sent) == (1, 0)


async def test_a_result_that_was_taken_before_is_409_and_an_unknown_one_404(
    edge: Client, paused: MakePaused, bus: Bus
) -> None:
    waits = await paused(PICK)
    alias = {"approval_id": waits.approval_id}
    key = key_of("approval", "assistant", waits.run.session_id, "call-p1")
    await bus.bucket("aliases").put(key, orjson.dumps(alias))
    asked = run_input(waits.run.session_id, tool(shown(waits), "red"))
    async with post(edge, "assistant", asked) as stream:
        await go_on(waits)
        await stream.rest()
    assert (await refused(edge, asked))[0] == 409
    unknown = run_input(waits.run.session_id, tool("nobody's", "red"))
    assert (await refused(edge, unknown))[0] == 404
    assert waits.sent == 1


@pytest.mark.parametrize(
    "behind",
    [user("and then?"), {"id": "a2", "role": "assistant", "content": "as I said"}],
    ids=["words", "an answer"],
)
async def test_no_answer_slips_through_to_an_agui_upstream(
    make_edge: MakeEdge, paused: MakePaused, behind: dict[str, Any]
) -> None:
    url = "http://127.0.0.1:9"
    agents = [AguiAgent(id="assistant", protocol="agui", url=url)]
    edge = await make_edge(config=Config(agents=agents))
    waits = await paused({**CONFIRM, "tool_call_id": "call-c1"})
    yes = tool("call-c1", '{"accepted": true}')
    thread = waits.run.session_id
    status, detail = await refused(edge, run_input(thread, user("hi"), yes, behind))
    assert (status, waits.sent) == (422, 0)
    assert "messages" in detail
    thought = {"id": "r1", "role": "reasoning", "content": "hm"}
    async with post(edge, "assistant", run_input(thread, user("hi"), yes, thought)) as stream:
        assert stream.run_id == waits.run.run_id
        assert waits.decided == [{"item_id": "c1", "decision": "approve"}]


@pytest.fixture
async def agui_edge(make_edge: MakeEdge) -> Client:
    agents = [AguiAgent(id="assistant", protocol="agui", url="http://127.0.0.1:9")]
    return await make_edge(config=Config(agents=agents))


@pytest.mark.parametrize("given", ["qualified", "as an older release gave it"])
async def test_an_agui_upstreams_call_is_answered_by_the_id_that_the_client_was_given(
    agui_edge: Client, paused: MakePaused, given: str
) -> None:
    waits = await paused(PICK)
    id = shown(waits) if given == "qualified" else PICK["tool_call_id"]
    asked = run_input(waits.run.session_id, user("which?"), tool(id, "red"))
    async with post(agui_edge, "assistant", asked) as stream:
        assert stream.run_id == waits.run.run_id
    assert waits.decided == [{"item_id": "p1", "decision": "approve", "value": "red"}]


async def test_an_earlier_runs_result_of_the_same_id_may_stand_before_the_answer(
    agui_edge: Client, paused: MakePaused
) -> None:
    waits = await paused(PICK)
    earlier = tool(f"{'f' * 12}.{PICK['tool_call_id']}", "blue")
    messages = [user("hi"), earlier, user("which?"), tool(shown(waits), "red")]
    async with post(agui_edge, "assistant", run_input(waits.run.session_id, *messages)):
        assert waits.decided == [{"item_id": "p1", "decision": "approve", "value": "red"}]


@pytest.mark.parametrize("last", [True, False])
async def test_another_runs_id_answers_no_call_of_the_same_id_that_waits(
    agui_edge: Client, paused: MakePaused, last: bool
) -> None:
    waits = await paused({**CONFIRM, "tool_call_id": "call-c1"})
    forged = tool(f"{'f' * 12}.call-c1", '{"accepted": true}')
    messages = [user("hi"), forged] if last else [user("hi"), forged, user("go on")]
    body = run_input(waits.run.session_id, *messages)
    status, detail = await refused(agui_edge, body)
    assert (status, waits.sent) == (422, 0)
    assert "messages" in detail


async def test_words_on_a_thread_that_waits_are_a_new_run(edge: Client, paused: MakePaused) -> None:
    waits = await paused(CONFIRM)
    async with post(edge, "assistant", run_input(waits.run.session_id, user("else"))) as stream:
        assert stream.run_id != waits.run.run_id
    assert waits.sent == 0


async def test_a_run_that_is_cancelled_while_it_is_answered_still_ends(
    edge: Client, paused: MakePaused
) -> None:
    waits = await paused(CONFIRM)
    async with post(edge, "assistant", answer(waits, approved(interrupt(waits)))) as stream:
        await waits.run.say("lifecycle.cancelled", reason="user_stop", by="ann", confirmed=True)
        told = contents(await asyncio.wait_for(stream.rest(), 30))
    assert [each["type"] for each in told] == ["RUN_STARTED", "RUN_FINISHED"]
    assert told[-1]["outcome"] == {"type": "cancelled"}
