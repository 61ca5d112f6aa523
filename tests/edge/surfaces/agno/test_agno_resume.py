"""Reading a run's stream again with Agno's `/resume`, after the event that the client had last."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from typing import Any

import httpx
import orjson
import pytest

from penstock.bus import Bus
from penstock.settings import Config
from penstock.sse import Frame, Parser
from penstock_edge.surfaces.agno.resumed import UpstreamRun, encoded_form
from penstock_edge.surfaces.agno.views import EdgeFrames
from support.drive.agno_surface import CONFIG, Paused, named
from support.drive.clients import Client, Stream, contents
from support.fakes.pretend import PretendRun
from support.fakes.raw import agno

OURS = {"replay", "catch_up", "subscribed"}
CONFIRM: dict[str, Any] = {
    **{"item_id": "t1", "tool_call_id": "t1", "kind": "confirmation"},
    **{"tool": "delete_file", "args": {"path": "/x"}},
}
SECOND_LEG = ("RunContinued", "RunContent", "RunCompleted")


@pytest.fixture(scope="module")
def config() -> Config:
    return CONFIG


def numbered(*names: str, first: int = 0) -> list[bytes]:
    """Return the frames of an Agno server that counts its events."""
    return [
        agno(name, content=f"{name} {index}", event_index=index)
        for index, name in enumerate(names, first)
    ]


def again(edge: Client, run_id: str, agent: str = "assistant", **form: Any) -> Stream:
    return Stream(edge, "POST", f"/agents/{agent}/runs/{run_id}/resume", data=form)


async def resumed(
    edge: Client, run_id: str, agent: str = "assistant", **form: Any
) -> tuple[dict[str, Any], list[Frame]]:
    """Return what the stream says of itself first, and the events."""
    async with again(edge, run_id, agent, **form) as stream:
        assert stream.response.status_code == 200
        [note, *frames] = await stream.rest()
    return orjson.loads(note.data), [each for each in frames if each.event not in OURS]


def written(frames: Sequence[Frame]) -> list[bytes]:
    """Return the frames as an Agno server writes them."""
    return [f"event: {each.event}\ndata: {each.data.decode()}\n\n".encode() for each in frames]


@pytest.fixture
async def run(bus: Bus) -> PretendRun:
    """A run of the Agno agent that has begun."""
    found = PretendRun(bus)
    await found.record()
    await found.started()
    return found


# the bytes of an Agno server


async def test_after_each_event_a_client_gets_exactly_the_following_ones(
    edge: Client, run: PretendRun
) -> None:
    frames = numbered("RunStarted", "RunContent", "RunContent", "RunCompleted")
    whole = b"".join(frames)
    await run.leg(whole[:50], whole[50:], b": keepalive\n\n")
    await run.completed()
    for after in (None, *range(-1, 6)):
        form = {} if after is None else {"last_event_index": after}
        note, got = await resumed(edge, run.run_id, **form)
        assert written(got) == frames[(-1 if after is None else after) + 1 :]
        assert (note["event"], note["status"]) == ("replay", "COMPLETED")
        assert note["last_event_index_requested"] == (-1 if after is None else after)


async def test_of_a_run_that_goes_on_the_missed_events_come_and_then_the_live_ones(
    edge: Client, run: PretendRun
) -> None:
    frames = numbered("RunStarted", "RunContent", "RunContent", "RunCompleted")
    await run.raw("open", {})
    await run.raw("bytes", frames[0] + frames[1])
    async with again(edge, run.run_id, last_event_index=0) as stream:
        assert (await stream.event())["event"] == "catch_up"
        assert written([await stream.frame()]) == [frames[1]]
        assert (await stream.event())["event"] == "subscribed"
        await run.raw("bytes", frames[2])
        assert written([await stream.frame()]) == [frames[2]]
        await run.raw("bytes", frames[3])
        await run.raw("end", {"outcome": "eof"})
        assert written(await stream.rest()) == [frames[3]]


async def test_frames_that_have_no_canonical_event_yet_are_missed_ones_too(
    edge: Client, bus: Bus
) -> None:
    run = PretendRun(bus)
    await run.record()
    frames = numbered("RunStarted", "RunContent", "RunCompleted")
    await run.raw("open", {})
    await run.raw("bytes", frames[0] + frames[1])
    async with again(edge, run.run_id) as stream:
        await stream.until(frames[0] + frames[1])
        await run.raw("bytes", frames[2])
        await run.raw("end", {"outcome": "eof"})
        await stream.until(frames[2])
        await stream.rest()


@pytest.fixture
async def paused(bus: Bus) -> Paused:
    found = Paused(bus, "assistant", [CONFIRM])
    await found.start()
    await found.run.leg(*numbered("RunStarted", "RunPaused"))
    await found.pause()
    return found


async def test_a_run_that_waits_ends_with_its_pause_and_one_that_was_continued_goes_on(
    edge: Client, paused: Paused, bus: Bus
) -> None:
    note, got = await resumed(edge, paused.run.run_id)
    assert (note["status"], named(got)) == ("PAUSED", ["RunStarted", "RunPaused"])
    approvals = bus.bucket("approvals")
    entry = await approvals.get(paused.approval_id)
    assert entry is not None
    record = {**json.loads(entry.value), "status": "decided"}
    await approvals.put(paused.approval_id, json.dumps(record).encode())
    async with again(edge, paused.run.run_id, last_event_index=0) as stream:
        await stream.until(b"RunPaused 1")
        await paused.run.leg(*numbered(*SECOND_LEG, first=2), leg=2)
        frames = [each for each in await stream.rest() if each.event not in OURS]
    assert named(frames) == ["RunPaused", *SECOND_LEG]


async def test_a_run_that_was_cancelled_while_it_waited_says_so(
    edge: Client, paused: Paused
) -> None:
    await paused.run.say("lifecycle.cancelled", reason="no")
    note, got = await resumed(edge, paused.run.run_id, last_event_index=1)
    assert (note["status"], named(got)) == ("CANCELLED", ["RunCancelled"])


async def test_a_server_that_counts_anew_hides_no_event(edge: Client, run: PretendRun) -> None:
    await run.leg(*numbered("RunStarted", "RunContent", "RunPaused"))
    await run.leg(*numbered(*SECOND_LEG), leg=2)
    await run.completed()
    _, got = await resumed(edge, run.run_id, last_event_index=1)
    assert named(got) == ["RunPaused", *SECOND_LEG]
    assert [each["event_index"] for each in contents(got)] == [2, 3, 4, 5]


async def test_events_without_numbers_get_those_of_their_places(
    edge: Client, run: PretendRun
) -> None:
    await run.leg(agno("RunStarted") + agno("RunContent") + agno("RunCompleted"))
    await run.completed()
    _, got = await resumed(edge, run.run_id)
    assert [each["event_index"] for each in contents(got)] == [0, 1, 2]
    _, rest = await resumed(edge, run.run_id, last_event_index=0)
    assert rest == got[1:]


async def test_what_a_server_says_of_its_own_resumption_is_no_event(
    edge: Client, run: PretendRun
) -> None:
    await run.leg(
        *numbered("RunStarted"),
        agno("catch_up", missed_events=1),
        *numbered("RunContent", first=1),
        agno("subscribed"),
        *numbered("RunCompleted", first=2),
    )
    await run.completed()
    _, got = await resumed(edge, run.run_id)
    assert named(got) == ["RunStarted", "RunContent", "RunCompleted"]


async def test_the_error_that_ended_a_lost_run_comes_last(edge: Client, run: PretendRun) -> None:
    await run.raw("open", {})
    await run.raw("bytes", numbered("RunStarted")[0] + b'event: RunContent\ndata: {"c')
    await run.raw("lost", {"code": "upstream_lost", "error": "cut"})
    await run.say("lifecycle.failed", error="cut", code="upstream_lost")
    note, got = await resumed(edge, run.run_id, last_event_index=0)
    assert (note["status"], named(got)) == ("ERROR", ["RunError"])


# agents of other protocols


async def test_the_events_of_another_protocols_run_have_numbers_to_resume_after(
    edge: Client, bus: Bus
) -> None:
    form = {"message": "hello", "stream": "true"}
    async with Stream(edge, "POST", "/agents/helper/runs", data=form) as stream:
        run = PretendRun(bus, stream.run_id)
        await run.started()
        await run.text("Hello", " wor", "ld")
        first = [await stream.frame() for _ in range(2)]
        async with again(edge, run.run_id, "helper", last_event_index=1) as other:
            await other.until(b"subscribed")
            await run.completed("Hello world")
            rest = [each for each in await other.rest() if each.event not in OURS]
        whole = [*first, *await stream.rest()]
    assert [*first, *rest] == whole
    assert [each["event_index"] for each in contents(whole)] == [*range(len(whole))]
    for after in range(len(whole)):
        _, got = await resumed(edge, run.run_id, "helper", last_event_index=after)
        assert got == whole[after + 1 :]


# what is refused


@pytest.mark.parametrize("body", [{}, {"json": {}}, {"data": {"last_event_index": ""}}])
async def test_without_a_number_the_whole_run_comes(
    edge: Client, run: PretendRun, body: dict[str, Any]
) -> None:
    await run.leg(*numbered("RunStarted", "RunCompleted"))
    await run.completed()
    answer = await edge.post(f"/agents/assistant/runs/{run.run_id}/resume", **body)
    frames = Parser().feed(answer.content)
    assert named(frames) == ["replay", "RunStarted", "RunCompleted"]
    assert answer.headers["penstock-run-id"] == run.run_id


@pytest.mark.parametrize("number", ["~no cursor~", "1.5", "-2", "9" * 20, "9" * 5000])
async def test_a_cursor_that_is_no_number_is_422(
    edge: Client, run: PretendRun, number: str
) -> None:
    url = f"/agents/assistant/runs/{run.run_id}/resume"
    answer = await edge.post(url, data={"last_event_index": number})
    assert answer.status_code == 422
    assert answer.json()["detail"][0]["loc"] == ["body", "last_event_index"]


@pytest.mark.parametrize(
    ("path", "form"),
    [
        ("/agents/assistant", {"session_id": "another"}),
        ("/agents/helper", {}),
        ("/agents/nobody", {}),
    ],
    ids=["another session", "another agent", "no agent"],
)
async def test_a_run_is_found_only_where_it_is(
    edge: Client, run: PretendRun, path: str, form: dict[str, str]
) -> None:
    answer = await edge.post(f"{path}/runs/{run.run_id}/resume", data=form)
    assert (answer.status_code, set(answer.json())) == (404, {"detail"})


async def test_a_run_whose_first_frames_have_expired_is_410(edge: Client, run: PretendRun) -> None:
    await run.raw("bytes", numbered("RunContent", first=7)[0], leg=2)
    answer: httpx.Response = await edge.post(f"/agents/assistant/runs/{run.run_id}/resume")
    assert (answer.status_code, "no longer kept" in answer.json()["detail"]) == (410, True)


async def test_a_run_that_has_waited_for_longer_than_its_frames_are_kept_is_410(
    edge: Client, bus: Bus
) -> None:
    waits = Paused(bus, "assistant", [CONFIRM])
    await waits.start()
    await waits.pause()
    answer = await edge.post(f"/agents/assistant/runs/{waits.run.run_id}/resume", timeout=5)
    assert (answer.status_code, "no longer kept" in answer.json()["detail"]) == (410, True)


FORMS: dict[str, Callable[[EdgeFrames], Any]] = {
    "own bytes": lambda edge: UpstreamRun(1, edge),
    "encoded": lambda edge: encoded_form(edge, -1).of_leg(1),
}


@pytest.mark.parametrize("form", FORMS)
def test_the_stream_of_an_edge_that_stops_ends_as_that_of_agentos(form: str) -> None:
    edge = EdgeFrames(CONFIG.agents[0], "r-1")
    [frame] = Parser().feed(b"".join(FORMS[form](edge).interruption()))
    assert (frame.event, orjson.loads(frame.data)["event"]) == ("error", "error")
