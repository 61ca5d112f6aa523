"""/vercel/{agent}: what the edge answers the AI SDK's requests, over pretended runs."""

from __future__ import annotations

import uuid
from collections.abc import Callable
from typing import Any

import orjson
import pytest
import uuid_utils

from penstock.bus import Bus
from penstock.dialects.vercel import DONE, SDKS
from penstock.settings import Config
from penstock.sse import Frame
from penstock_edge.stream import client as clients
from support.attacks.vercel_answers import FORGED, Json, Waits, agents, user
from support.drive.agno_surface import CONFIG, Paused
from support.drive.clients import Client, Stream
from support.fakes.pretend import PretendRun, play
from support.recorded import vercel_rules
from support.recorded.canonical import recorded

CALL = {"item_id": "c1", "kind": "confirmation", "tool": "delete", "tool_call_id": "c1"}
# Recordings with an approval, and with an error.
SHORT = ("agno/3.1.10/confirm_reject_note", "agno/3.1.10/model_error_midstream")

MakePaused = Callable[..., Any]


@pytest.fixture(scope="module")
def config() -> Config:
    return CONFIG


@pytest.fixture
def paused(bus: Bus) -> MakePaused:
    """Return a function that makes a run of a chat that waits for these items."""

    async def make(*items: dict[str, Any]) -> Paused:
        waits = Paused(bus, "assistant", list(items))
        waits.run.session_id = f"chat {uuid.uuid4()}"
        await waits.start()
        await waits.run.join(agent="assistant")
        await waits.pause()
        return waits

    return make


def message(text: str = "Hello") -> Json:
    return user({"type": "text", "text": text})


def begun(chat_id: str, **fields: Any) -> Json:
    return {"id": chat_id, "trigger": "submit-message", "messages": [message()], **fields}


def resumed(edge: Client, run: PretendRun, **query: str) -> Stream:
    return Stream(edge, "GET", f"/vercel/assistant/{run.session_id}/stream", params=query)


def answer(waits: Paused, *answers: tuple[str, bool], **changes: Any) -> Json:
    """Return the body of a client whose user has answered these items."""
    parts = []
    for item_id, approved in answers:
        approval = {
            "id": f"{waits.approval_id}/{item_id}",
            "descriptor": {"digest": "d"},
            "approved": approved,
            **changes,
        }
        shown = {"type": "dynamic-tool", "toolName": "delete", "toolCallId": item_id, "input": {}}
        parts.append({**shown, "state": "approval-responded", "approval": approval})
    return begun(waits.run.session_id, messages=[message(), agents(*parts)])


def chunks(frames: list[Frame]) -> list[Json]:
    return [orjson.loads(frame.data) for frame in frames if frame.data != DONE]


def said(frames: list[Frame]) -> str:
    return vercel_rules.joined(chunks(frames), "text-delta")


# --- the stream


@pytest.mark.parametrize("sdk", SDKS)
async def test_a_message_starts_a_run_whose_stream_is_of_the_protocol(
    edge: Client, bus: Bus, sdk: str
) -> None:
    body = begun(f"chat {uuid.uuid4()}")
    async with Stream(edge, "POST", f"/vercel/assistant?sdk={sdk}", json=body) as stream:
        headers = stream.response.headers
        assert headers["content-type"] == "text/event-stream"
        assert headers["x-vercel-ai-ui-message-stream"] == "v1"
        run = PretendRun(bus, stream.run_id)
        await run.started()
        await run.text("Hi", " there")
        await run.completed()
        frames = await stream.rest()
    assert vercel_rules.faults(chunks(frames), sdk) == []
    assert said(frames) == "Hi there"
    assert frames[-1].data == DONE
    assert all(frame.event is None and frame.id for frame in frames)


async def test_the_same_request_again_gets_the_same_run_and_a_generated_message_another(
    edge: Client, bus: Bus
) -> None:
    body = begun(f"chat {uuid.uuid4()}")

    async def run_of(**fields: Any) -> str:
        async with Stream(edge, "POST", "/vercel/assistant", json={**body, **fields}) as stream:
            assert stream.response.status_code == 200
            return stream.run_id

    first = await run_of()
    assert await run_of() == first
    run = PretendRun(bus, first, body["id"])
    again = {**body, "trigger": "regenerate-message"}
    assert (await edge.post("/vercel/assistant", json=again)).status_code == 409
    await run.started()
    await run.completed()
    await run.join(status="completed")
    assert await run_of(trigger="regenerate-message") != first


async def test_a_stream_that_breaks_off_ends_in_an_error_because_the_client_has_no_cursor(
    edge: Client, bus: Bus, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened: list[clients.Client] = []
    read_for = clients.Client.read_for

    def remember(self: clients.Client, *arguments: Any) -> None:
        opened.append(self)
        read_for(self, *arguments)

    monkeypatch.setattr(clients.Client, "read_for", remember)
    run = PretendRun(bus)
    await run.join(agent="assistant")
    await run.started()
    async with resumed(edge, run) as stream:
        await stream.frame()
        opened[0].expire()
        rest = await stream.rest()
    assert [each["type"] for each in chunks(rest)][-1] == "error"
    assert (rest[-1].data, rest[-1].id) == (DONE, None)


# --- resuming


@pytest.mark.parametrize("name", SHORT)
async def test_a_cursor_of_any_frame_gets_exactly_the_rest(
    edge: Client, bus: Bus, name: str
) -> None:
    run = PretendRun(bus)
    await play(run, recorded(name), f"chat {uuid.uuid4()}")
    async with resumed(edge, run) as stream:
        whole = await stream.rest()
    assert vercel_rules.faults(chunks(whole)) == []
    for at, frame in enumerate(whole, 1):
        assert frame.id is not None
        async with resumed(edge, run, after=frame.id) as stream:
            assert stream.response.status_code == (200 if at < len(whole) else 204)
            assert await stream.rest() == whole[at:]


async def test_a_resume_ends_at_the_pause_that_waits_and_not_at_an_earlier_one(
    edge: Client, paused: MakePaused
) -> None:
    waits = await paused(CALL)
    async with resumed(edge, waits.run) as stream:
        frames = await stream.rest()
    assert chunks(frames)[-1]["messageMetadata"] == {"status": "waiting"}
    last = frames[-1].id
    assert last is not None
    async with resumed(edge, waits.run, after=last) as stream:
        assert stream.response.status_code == 204
    body = answer(waits, ("c1", True))
    # The decision is taken before the run resumes: the second stream waits for what follows.
    async with (
        Stream(edge, "POST", "/vercel/assistant", json=body) as leg,
        resumed(edge, waits.run, after=last) as stream,
    ):
        waits.run.leg_number = 2
        await waits.run.say("lifecycle.resumed", approval_id=waits.approval_id)
        await waits.run.text("gone on")
        await waits.run.completed()
        assert said(await stream.rest()) == said(await leg.rest()) == "gone on"


async def test_the_newest_run_is_the_one_that_is_resumed_also_while_it_is_queued(
    edge: Client, bus: Bus
) -> None:
    older = PretendRun(bus, session_id=f"chat {uuid.uuid4()}")
    await older.join(agent="assistant")
    await older.started()
    await older.completed()
    body = begun(older.session_id)
    async with Stream(edge, "POST", "/vercel/assistant", json=body) as first:
        async with resumed(edge, older) as stream:
            assert stream.run_id == first.run_id
            newer = PretendRun(bus, first.run_id, older.session_id)
            await newer.started()
            await newer.text("new")
            await newer.completed()
            assert said(await stream.rest()) == "new"
        cursor = f"{older.places[0]}-0"
        async with resumed(edge, older, after=cursor) as stream:
            assert stream.response.status_code == 400


# --- answers


async def test_an_answer_takes_its_note_and_no_changed_arguments(
    edge: Client, paused: MakePaused
) -> None:
    waits = await paused(CALL)
    body = answer(waits, ("c1", False), reason="not now")
    body["messages"][-1]["parts"][0]["input"] = {"path": "another"}
    async with Stream(edge, "POST", "/vercel/assistant", json=body):
        decided = {"item_id": "c1", "decision": "reject", "note": "not now"}
        assert waits.decided == [decided]


async def test_all_items_of_a_pause_are_answered_at_once(edge: Client, paused: MakePaused) -> None:
    waits = await paused(CALL, {**CALL, "item_id": "c2", "tool_call_id": "c2"})
    part = await edge.post("/vercel/assistant", json=answer(waits, ("c1", True)))
    assert (part.status_code, waits.sent) == (422, 0)
    assert "c2" in part.json()["detail"]
    both = answer(waits, ("c1", True), ("c2", False))
    async with Stream(edge, "POST", "/vercel/assistant", json=both):
        assert [each["decision"] for each in waits.decided] == ["approve", "reject"]


def output(waits: Paused, item_id: str, **state: Any) -> Json:
    """Return the body of a client whose user has sent the output of a call that asked for it."""
    asked = {"id": f"{waits.approval_id}/{item_id}", "digest": "d", "kind": "input"}
    part = {"type": "dynamic-tool", "toolName": "ask", "toolCallId": item_id, "input": {}}
    part |= {"callProviderMetadata": {"penstock": {"asked": asked}}, **state}
    return begun(waits.run.session_id, messages=[message(), agents(part)])


@pytest.mark.parametrize(
    ("kind", "state", "decided"),
    [
        ("input", {"output": {"days": 3}}, {"decision": "approve", "value": {"days": 3}}),
        ("external", {"output": "file1"}, {"decision": "approve", "value": "file1"}),
        ("confirmation", {"output": True}, {"decision": "approve"}),
        (
            "confirmation",
            {"output": {"approved": False, "reason": "no"}},
            {"decision": "reject", "note": "no"},
        ),
        (
            "external",
            {"state": "output-error", "errorText": "not here"},
            {"decision": "reject", "note": "not here"},
        ),
    ],
)
async def test_the_output_of_a_call_that_asks_for_it_is_the_answer(
    edge: Client, paused: MakePaused, kind: str, state: Json, decided: Json
) -> None:
    waits = await paused({**CALL, "kind": kind})
    body = output(waits, "c1", **{"state": "output-available", **state})
    async with Stream(edge, "POST", "/vercel/assistant", json=body) as stream:
        assert stream.response.status_code == 200
        assert waits.decided == [{"item_id": "c1", **decided}]


async def test_a_no_to_a_question_for_a_value_rejects_it_and_a_yes_is_no_value(
    edge: Client, paused: MakePaused
) -> None:
    waits = await paused({**CALL, "kind": "external"})
    yes = await edge.post("/vercel/assistant", json=answer(waits, ("c1", True)))
    assert (yes.status_code, waits.decided) == (422, [])
    no = answer(waits, ("c1", False), reason="not now")
    async with Stream(edge, "POST", "/vercel/assistant", json=no):
        assert waits.decided == [{"item_id": "c1", "decision": "reject", "note": "not now"}]


async def test_an_output_that_does_not_fit_what_is_asked_is_422_and_decides_nothing(
    edge: Client, paused: MakePaused
) -> None:
    schema = {"type": "object", "required": ["days"]}
    waits = await paused({**CALL, "kind": "input", "input_schema": schema})
    nothing: list[Json | None] = [{}, None]
    for value in nothing:
        body = output(waits, "c1", state="output-available", output=value)
        refused = await edge.post("/vercel/assistant", json=body)
        assert (refused.status_code, waits.sent) == (422, 0), refused.text


async def test_answers_to_earlier_pauses_that_a_client_repeats_do_not_count(
    edge: Client, bus: Bus, paused: MakePaused
) -> None:
    waits = await paused(CALL)
    earlier, record = str(uuid_utils.uuid7()), await bus.bucket("approvals").get(waits.approval_id)
    assert record is not None
    decided = {**orjson.loads(record.value), "approval_id": earlier, "status": "decided"}
    await bus.bucket("approvals").put(earlier, orjson.dumps(decided))
    body = answer(waits, ("c0", True), ("c1", False))
    body["messages"][-1]["parts"][0]["approval"]["id"] = f"{earlier}/c1"
    async with Stream(edge, "POST", "/vercel/assistant", json=body):
        assert waits.decided == [{"item_id": "c1", "decision": "reject"}]
    late = await edge.post("/vercel/assistant", json=body)
    assert (late.status_code, waits.sent) == (409, 1)


@pytest.mark.parametrize("form", FORGED)
async def test_an_answer_without_the_digest_where_it_belongs_decides_nothing(
    edge: Client, paused: MakePaused, form: str
) -> None:
    waits = await paused(CALL)
    at = Waits("assistant", waits.run.session_id, waits.approval_id, "d", "c1", "c1")
    path, body = FORGED[form][1](at)
    async with Stream(edge, "POST", path, json=body) as stream:
        assert stream.response.status_code in (200, 404, 409, 422)
        assert waits.sent == 0
        if stream.response.status_code == 200:
            assert stream.run_id != waits.run.run_id


async def test_an_answer_to_what_was_edited_since_is_409(
    edge: Client, bus: Bus, paused: MakePaused
) -> None:
    waits = await paused(CALL)
    record = await bus.bucket("approvals").get(waits.approval_id)
    assert record is not None
    edited = {**orjson.loads(record.value), "digest": "new", "requested_digest": "d"}
    await bus.bucket("approvals").put(waits.approval_id, orjson.dumps(edited))
    refused = await edge.post("/vercel/assistant", json=answer(waits, ("c1", True)))
    assert (refused.status_code, waits.sent) == (409, 0)


# --- refusals


@pytest.mark.parametrize(
    ("fields", "status", "text"),
    [
        ({"messages": []}, 422, "messages"),
        ({"messages": ["hi"]}, 422, "messages.0"),
        ({"messages": [{"role": "user", "parts": [{"text": "no type"}]}]}, 422, "parts.0.type"),
        ({"messages": [{"role": "user", "parts": []}]}, 422, "empty"),
        ({"messages": [user({"type": "file", "url": "x"})]}, 422, "gets no file"),
        ({"messages": [agents()]}, 422, "the last message must be the user's"),
        ({"id": "x" * 513}, 422, "id"),
        ({"trigger": "resume-stream"}, 422, "trigger"),
        ({"when_busy": "never"}, 422, "when_busy"),
    ],
)
async def test_a_request_that_does_not_fit_is_refused(
    edge: Client, fields: Json, status: int, text: str
) -> None:
    refused = await edge.post("/vercel/assistant", json=begun("chat-1", **fields))
    assert refused.status_code == status, refused.text
    assert text in refused.json()["detail"]


async def test_an_unknown_agent_is_404_and_an_unknown_version_422(edge: Client) -> None:
    assert (await edge.post("/vercel/nobody", json=begun("c"))).status_code == 404
    assert (await edge.get("/vercel/nobody/c/stream")).status_code == 404
    refused = await edge.post("/vercel/assistant?sdk=4", json=begun("c"))
    assert (refused.status_code, refused.json()["detail"]) == (422, "sdk: must be one of 5, 6, 7")
