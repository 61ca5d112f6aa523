"""GET /v1/runs/{id}/events: cursors, resumption, the end and the dialects."""

from __future__ import annotations

import re
from collections.abc import Callable

import orjson
import pytest

from penstock.bus import Bus, streams
from support.drive.clients import Client, MakeEdge, Stream, contents
from support.fakes.pretend import PretendRun

Events = Callable[..., Stream]


async def test_a_finished_run_is_replayed_whole_and_the_stream_ends(
    events: Events, finished: PretendRun
) -> None:
    async with events(finished) as stream:
        frames = await stream.rest()
    assert [frame.event for frame in frames] == [
        "lifecycle.started",
        "llm.stream",
        "llm.stream",
        "llm.stream",
        "lifecycle.completed",
    ]
    assert [event["sequence"] for event in contents(frames)] == [1, 2, 3, 4, 5]


async def test_every_frame_has_the_cursor_of_its_place_in_the_stream(
    events: Events, finished: PretendRun
) -> None:
    async with events(finished) as stream:
        frames = await stream.rest()
    assert [frame.id for frame in frames] == [f"{place}-0" for place in finished.places]


async def test_the_head_is_that_of_an_event_stream_which_no_proxy_may_hold_back(
    events: Events, finished: PretendRun
) -> None:
    async with events(finished) as stream:
        headers = stream.response.headers
    assert headers["content-type"] == "text/event-stream"
    assert headers["cache-control"] == "no-cache, no-transform"
    assert headers["x-accel-buffering"] == "no"
    assert headers["penstock-run-id"] == finished.run_id


async def test_live_events_come_one_by_one_as_they_are_said(
    events: Events, run: PretendRun
) -> None:
    await run.started()
    async with events(run) as stream:
        assert (await stream.event())["sequence"] == 1
        await run.text("a")
        assert (await stream.event())["data"]["content"] == "a"
        await run.completed()
        assert [frame.event for frame in await stream.rest()] == ["lifecycle.completed"]


async def test_a_queued_run_is_waited_for(events: Events, run: PretendRun) -> None:
    async with events(run) as stream:
        await run.started()
        assert (await stream.frame()).event == "lifecycle.started"


@pytest.mark.parametrize("dialect", ["canonical", "executions"])
async def test_a_client_that_reconnects_at_any_frame_gets_the_rest_without_gap_or_repeat(
    events: Events, finished: PretendRun, dialect: str
) -> None:
    async with events(finished, dialect=dialect) as stream:
        whole = await stream.rest()
    for cut, frame in enumerate(whole[:-1], 1):
        headers = {"Last-Event-ID": frame.id or ""}
        async with events(finished, headers=headers, dialect=dialect) as stream:
            assert await stream.rest() == whole[cut:]


async def test_a_client_that_reconnects_mid_run_continues_live(
    events: Events, run: PretendRun
) -> None:
    await run.started()
    await run.text("a", "b")
    async with events(run) as stream:
        await stream.frame()
        last = await stream.frame()
    await run.text("c")
    async with events(run, headers={"Last-Event-ID": last.id or ""}) as stream:
        assert [(await stream.event())["data"]["content"] for _ in range(2)] == ["b", "c"]
        await run.text("d")
        assert (await stream.event())["data"]["content"] == "d"


async def test_the_cursor_may_stand_in_the_query_and_the_header_wins(
    events: Events, finished: PretendRun
) -> None:
    first, last = f"{finished.places[0]}-0", f"{finished.places[3]}-0"
    async with events(finished, after=last) as stream:
        assert len(await stream.rest()) == 1
    async with events(finished, headers={"Last-Event-ID": last}, after=first) as stream:
        assert len(await stream.rest()) == 1


async def test_a_client_that_reconnects_at_the_end_of_a_finished_run_gets_204(
    events: Events, finished: PretendRun
) -> None:
    async with events(finished, after=f"{finished.places[-1]}-0") as stream:
        assert stream.response.status_code == 204
        assert await stream.rest() == []


async def test_the_cursor_of_an_epilogue_event_is_behind_the_end_too(
    events: Events, finished: PretendRun
) -> None:
    place = await finished.say("automation.triggered", automation="a")
    async with events(finished, after=f"{place}-0") as stream:
        assert stream.response.status_code == 204


async def test_the_stream_ends_at_the_terminal_event_and_the_epilogue_is_not_sent(
    events: Events, finished: PretendRun
) -> None:
    await finished.say("automation.triggered", automation="a")
    async with events(finished) as stream:
        assert (await stream.rest())[-1].event == "lifecycle.completed"


@pytest.mark.parametrize("cursor", ["x", "1", "0-0", "-1-0", "1-0-0", "1-x", "1" * 30 + "-0"])
async def test_garbage_for_a_cursor_is_400(
    events: Events, finished: PretendRun, cursor: str
) -> None:
    async with events(finished, headers={"Last-Event-ID": cursor}) as stream:
        assert stream.response.status_code == 400


async def test_the_cursor_of_another_run_is_400(
    events: Events, finished: PretendRun, bus: Bus
) -> None:
    other = PretendRun(bus)
    await other.started()
    async with events(finished, after=f"{other.places[0]}-0") as stream:
        assert stream.response.status_code == 400


async def test_a_cursor_from_the_future_is_gone(events: Events, finished: PretendRun) -> None:
    async with events(finished, after="999999999-0") as stream:
        assert stream.response.status_code == 410


@pytest.mark.parametrize("run_id", ["nope", "a.b", "*", ">", "0" * 36, "%2e%2e"])
async def test_a_run_id_that_is_no_token_is_404(edge: Client, run_id: str) -> None:
    for answer in (
        await edge.get(f"/v1/runs/{run_id}"),
        await edge.get(f"/v1/runs/{run_id}/events"),
        await edge.post(f"/v1/runs/{run_id}/cancel"),
    ):
        assert answer.status_code == 404


async def test_an_unknown_run_is_404(edge: Client, bus: Bus) -> None:
    answer = await edge.get(f"/v1/runs/{PretendRun(bus).run_id}/events")
    assert answer.status_code == 404
    assert answer.headers["content-type"] == "application/problem+json"


async def test_a_run_of_which_nothing_is_left_is_410(events: Events, run: PretendRun) -> None:
    await run.record(status="completed", first_event=1)
    async with events(run) as stream:
        assert stream.response.status_code == 410


async def _age(bus: Bus, run: PretendRun, before: int) -> None:
    """Delete the run's messages before this position, as a retention limit does."""
    body = {"filter": f"*.*.{run.run_id}", "seq": before}
    await bus.api(f"STREAM.PURGE.{streams.EVENTS}", body)


async def test_a_run_whose_beginning_is_gone_says_so_first(
    events: Events, finished: PretendRun, bus: Bus
) -> None:
    await _age(bus, finished, finished.places[2])
    async with events(finished) as stream:
        frames = await stream.rest()
    notice = orjson.loads(frames[0].data)
    assert frames[0].event == "system.warning"
    assert frames[0].id is None
    assert "sequence" not in notice
    assert notice["data"]["code"] == "history_truncated"
    assert [event["sequence"] for event in contents(frames[1:])] == [3, 4, 5]


async def test_names_off_leaves_out_the_event_lines(events: Events, finished: PretendRun) -> None:
    async with events(finished, names="off") as stream:
        frames = await stream.rest()
    assert {frame.event for frame in frames} == {None}
    assert len(frames) == 5


@pytest.mark.parametrize("query", ["dialect=klingon", "names=maybe"])
async def test_an_unknown_choice_is_422_and_named(
    edge: Client, finished: PretendRun, query: str
) -> None:
    answer = await edge.get(f"/v1/runs/{finished.run_id}/events?{query}")
    assert answer.status_code == 422
    assert query.partition("=")[0] in answer.json()["detail"]


async def test_a_stream_stays_open_over_a_pause(events: Events, run: PretendRun) -> None:
    await run.started()
    await run.say("lifecycle.paused", reason="approval_required", approval_id="a1")
    async with events(run) as stream:
        await stream.frame()
        assert (await stream.frame()).event == "lifecycle.paused"
        await run.say("lifecycle.resumed")
        assert (await stream.frame()).event == "lifecycle.resumed"


async def test_an_idle_stream_gets_keep_alive_comments(
    make_edge: MakeEdge, run: PretendRun
) -> None:
    await run.started()
    edge = await make_edge(keep_alive_s=0.3)
    async with Stream(edge, "GET", f"/v1/runs/{run.run_id}/events") as stream:
        await stream.frame()
        await stream.until(b": keep-alive\n\n")
        await run.completed()
        assert len(await stream.rest()) == 1


async def test_a_large_event_is_expanded_before_it_is_encoded(
    events: Events, run: PretendRun
) -> None:
    text = "é\u2028" * 400_000
    await run.started()
    await run.text(text)
    await run.completed()
    async with events(run) as stream:
        frames = await stream.rest()
    assert contents(frames)[1]["data"]["content"] == text


async def test_two_clients_at_different_places_see_the_same_run(
    events: Events, run: PretendRun
) -> None:
    await run.started()
    await run.text("a", "b")
    async with events(run, after=f"{run.places[1]}-0") as late, events(run) as early:
        assert (await late.event())["data"]["content"] == "b"
        assert [(await early.event())["sequence"] for _ in range(3)] == [1, 2, 3]
        await run.text("c")
        await run.completed()
        assert await late.rest() == await early.rest()


async def test_a_client_whose_past_has_left_the_ring_reads_it_from_the_stream(
    make_edge: MakeEdge, run: PretendRun
) -> None:
    edge = await make_edge(ring_bytes=2000)
    path = f"/v1/runs/{run.run_id}/events"
    await run.started()
    async with Stream(edge, "GET", path) as first:
        await first.frame()
        await run.text(*(str(number) for number in range(250)))
        for _ in range(250):
            await first.frame()
        async with Stream(edge, "GET", path) as second:
            await run.completed()
            frames = await second.rest()
    assert [event["sequence"] for event in contents(frames)] == list(range(1, 253))


async def test_a_client_that_leaves_cancels_nothing(
    events: Events, run: PretendRun, bus: Bus
) -> None:
    await run.started()
    async with events(run) as stream:
        await stream.frame()
    await run.completed()
    assert await bus.tail(streams.COMMANDS, f"command.connector.cancel.{run.run_id}") is None
    async with events(run) as stream:
        assert len(await stream.rest()) == 2


async def test_a_client_begins_at_any_event_or_with_so_many_of_the_last_ones(
    edge: Client, run: PretendRun, bus: Bus
) -> None:
    other = PretendRun(bus)
    await run.started()
    for number in range(8):
        # Messages of other runs lie between, in some places many.
        await other.text(*"x" * (number % 4 * 3))
        await run.text(str(number))
    await run.completed()
    await other.text("x")
    whole = list(range(1, 11))
    path = f"/v1/runs/{run.run_id}/events"
    for first in range(-12, 13):
        headers = {"Accept": "application/json"}
        answer = (await edge.get(path, params={"from": first}, headers=headers)).json()
        wanted = whole[first - 1 :] if first > 0 else whole[max(0, 10 + first) :]
        assert [event["sequence"] for event in answer["events"]] == wanted, first


async def test_a_stream_begins_at_an_event_goes_on_and_continues_at_the_cursor(
    events: Events, run: PretendRun
) -> None:
    await run.started()
    await run.text("a", "b", "c")
    async with events(run, **{"from": "-2"}) as stream:
        assert [(await stream.event())["data"]["content"] for _ in range(2)] == ["b", "c"]
        await run.text("d")
        assert (await stream.event())["data"]["content"] == "d"
    headers = {"Last-Event-ID": f"{run.places[2]}-0"}
    async with events(run, headers=headers, **{"from": "-1"}) as stream:
        assert (await stream.event())["data"]["content"] == "c"
    async with events(run, **{"from": "0"}) as stream:
        await run.completed()
        assert [frame.event for frame in await stream.rest()] == ["lifecycle.completed"]
    async with events(run, **{"from": "99"}) as stream:
        assert stream.response.status_code == 204


async def test_a_queued_run_begins_with_its_first_event_wherever_a_client_wants_to_begin(
    events: Events, run: PretendRun
) -> None:
    async with events(run, **{"from": "-2"}) as stream:
        await run.started()
        await run.text("a")
        assert [(await stream.event())["sequence"] for _ in range(2)] == [1, 2]


@pytest.mark.parametrize(
    "query",
    ["from=x", "from=1.5", f"from={'1' * 5000}", "from=2&dialect=agui", "from=2&dialect=raw"],
)
async def test_a_beginning_that_cannot_be_is_refused(
    edge: Client, finished: PretendRun, query: str
) -> None:
    answer = await edge.get(f"/v1/runs/{finished.run_id}/events?{query}")
    assert answer.status_code == 422
    assert answer.json()["detail"].startswith("from: ")


async def test_json_is_given_in_pages_with_the_same_cursor(
    edge: Client, finished: PretendRun
) -> None:
    path = f"/v1/runs/{finished.run_id}/events"
    headers = {"Accept": "application/json"}
    first = (await edge.get(path, params={"limit": 2}, headers=headers)).json()
    assert [event["sequence"] for event in first["events"]] == [1, 2]
    assert first["next"] == f"{finished.places[1]}-0"
    query = {"after": first["next"]}
    rest = (await edge.get(path, params=query, headers=headers)).json()
    assert [event["sequence"] for event in rest["events"]] == [3, 4, 5]
    assert rest["next"] is None


async def test_the_next_page_of_a_run_that_continues_is_where_this_one_ends(
    edge: Client, run: PretendRun
) -> None:
    path = f"/v1/runs/{run.run_id}/events"
    headers = {"Accept": "application/json"}
    await run.started()
    page = (await edge.get(path, headers=headers)).json()
    again = (await edge.get(path, params={"after": page["next"]}, headers=headers)).json()
    assert again == {"events": [], "next": page["next"]}


async def test_raw_gives_the_upstreams_frames_of_all_legs_with_cursors(
    events: Events, run: PretendRun
) -> None:
    await run.started()
    await run.leg(b'event: A\ndata: {"a":1}\n\ndata: {"b"', b":2}\n\ndata: 3\n\n")
    await run.say("lifecycle.paused", reason="approval_required", approval_id="x")
    await run.leg(b"data: 4\r\n\r\n", leg=2)
    await run.completed()
    async with events(run, dialect="raw") as stream:
        frames = await stream.rest()
    assert [(frame.event, frame.data) for frame in frames] == [
        ("A", b'{"a":1}'),
        (None, b'{"b":2}'),
        (None, b"3"),
        (None, b"4"),
    ]
    assert all(re.fullmatch(r"\d+-\d+", frame.id or "") for frame in frames)
    for cut, frame in enumerate(frames[:-1], 1):
        async with events(run, dialect="raw", after=frame.id or "") as stream:
            assert await stream.rest() == frames[cut:]
    async with events(run, dialect="raw", after=frames[-1].id or "") as stream:
        assert stream.response.status_code == 204


async def test_raw_gives_the_frames_that_come_after_the_terminal_event(
    events: Events, run: PretendRun
) -> None:
    """An agent server may send frames after the frame that ended the run."""
    await run.raw("open", {})
    await run.started()
    async with events(run, dialect="raw") as stream:
        await run.raw("bytes", b"data: 1\n\n")
        first = await stream.frame()
        await run.completed()
        async with events(run) as told:
            assert (await told.rest())[-1].event == "lifecycle.completed"
        await run.raw("bytes", b"data: 2\n\n")
        await run.raw("end", {"outcome": "eof"})
        rest = await stream.rest()
    assert [frame.data for frame in (first, *rest)] == [b"1", b"2"]
    async with events(run, dialect="raw", after=first.id or "") as stream:
        assert await stream.rest() == rest


async def test_raw_says_in_a_comment_that_all_frames_of_a_run_that_waits_have_expired(
    events: Events, run: PretendRun
) -> None:
    await run.started()
    await run.say("lifecycle.paused", reason="approval_required", approval_id="x")
    async with events(run, dialect="raw") as stream:
        await stream.read_until(b": history_truncated")


async def test_raw_says_in_a_comment_that_the_upstream_was_lost(
    events: Events, run: PretendRun
) -> None:
    await run.raw("open", {})
    await run.started()
    async with events(run, dialect="raw") as stream:
        await run.raw("bytes", b"data: 1\n\ndata: 2")
        await run.raw("lost", {"code": "upstream_lost", "error": "reset"})
        await run.say("lifecycle.failed", error="reset", code="upstream_lost")
        assert [frame.data for frame in await stream.rest()] == [b"1"]
    assert b": the upstream was lost: upstream_lost\n\n" in stream.body
