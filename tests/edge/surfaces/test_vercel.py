"""/vercel/{agent}: what the edge answers the AI SDK's requests, over pretended runs."""

from __future__ import annotations

import uuid
from collections.abc import Callable
from pathlib import Path
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
from support.fakes.pretend import PretendRun
from support.real.vercel_client import Chat, State, chat
from support.real.vercel_docs import transport
from support.recorded import vercel_rules
from support.recorded.canonical import Recorded, recorded, recorded_runs, type_of

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


async def play(run: PretendRun, script: Recorded) -> None:
    """Publish the events of a recording as those of this run, in a chat of its own."""
    run.session_id = f"chat {uuid.uuid4()}"
    await run.join(agent="assistant", session_id=run.session_id)
    for event in script.events:
        run.leg_number = event["leg"]
        known = ("source", "subrun", "step_id", "attempt")
        run.envelope = {name: event[name] for name in known if name in event}
        await run.say(type_of(event), **event["data"])


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
    await play(run, recorded(name))
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


# --- the real client, cut at every frame


async def check_cuts(
    client: Chat, edge: Client, run: PretendRun, *, step: int = 1, **options: str
) -> None:
    """Check that the client has the state of an uncut stream, wherever its stream was cut."""
    api = f"{str(edge.base_url).rstrip('/')}/vercel/assistant?sdk={client.version}"
    async with resumed(edge, run, sdk=client.version) as stream:
        count = len(await stream.rest())

    async def open(**given: Any) -> State:
        await client("open", chat=run.session_id, api=api, automatic=False, **options, **given)
        return await client("resume")

    whole = await open()
    for cut in range(1, count, step):
        await open(cut=cut)
        state = await client("resume")
        assert state["messages"] == whole["messages"], cut
        assert state["status"] == whole["status"], cut


@pytest.mark.real
async def test_the_client_has_the_same_state_wherever_its_stream_was_cut(
    edge: Client, bus: Bus
) -> None:
    run = PretendRun(bus)
    await play(run, recorded(SHORT[0]))
    async with chat("6") as client:
        await check_cuts(client, edge, run, step=4)


# Version 5 shows a replay twice, so it needs the transport.
WAYS = [("6", False), ("7", False), ("5", True), ("6", True), ("7", True)]


@pytest.mark.real
@pytest.mark.chaos
@pytest.mark.timeout(1800)
@pytest.mark.parametrize(("version", "exact"), WAYS)
async def test_each_version_has_the_same_state_for_every_recording_wherever_it_was_cut(
    edge: Client, bus: Bus, tmp_path: Path, version: str, exact: bool
) -> None:
    options: Any = {"transport": str(transport(tmp_path, version))} if exact else {}
    async with chat(version) as client:
        for script in recorded_runs():
            run = PretendRun(bus)
            await play(run, script)
            await check_cuts(client, edge, run, **options)
