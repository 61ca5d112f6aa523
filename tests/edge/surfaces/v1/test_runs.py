"""/v1/runs: start, list, show and cancel runs, and refuse every wrong request."""

from __future__ import annotations

import asyncio
import re
from datetime import datetime
from typing import Any

import httpx
import pytest
import uuid_utils

from penstock.bus import Bus, streams, subjects
from penstock.bus.messages import raw_frame
from penstock.bus.read.direct import read
from penstock_edge.sources import locate
from support.drive.clients import Client, MakeEdge, Stream
from support.drive.waiting import eventually
from support.fakes.pretend import PretendRun, command_of

START = {"agent": "assistant", "message": "hello"}


async def start(edge: Client, **fields: Any) -> httpx.Response:
    return await edge.post("/v1/runs", json={**START, **fields})


async def test_a_start_is_202_with_the_record_and_where_to_find_it(edge: Client) -> None:
    answer = await start(edge, session_id="s7")
    record = answer.json()
    assert answer.status_code == 202
    assert record["status"] == "queued"
    assert record["agent"] == "assistant"
    assert record["session_id"] == "s7"
    assert answer.headers["location"] == f"/v1/runs/{record['run_id']}"
    assert answer.headers["penstock-run-id"] == record["run_id"]
    shown = (await edge.get(answer.headers["location"])).json()
    assert shown == {**record, "deliveries": []}


async def test_an_ended_run_shows_what_came_after_its_end_however_much_was_delivered_before(
    edge: Client, run: PretendRun
) -> None:
    rule = {"automation": "notify", "workflow": "Notify"}
    for number in range(251):
        named = {**rule, "delivery_id": f"before-{number}"}
        await run.say("automation.triggered", **named, trigger="llm.tool_call")
        await run.say("automation.completed", **named, result="delivered", status_code=200)
    await run.completed()
    await run.record(status="completed")
    late = {**rule, "delivery_id": "after", "trigger": "lifecycle.completed"}
    await run.say("automation.triggered", **late)
    shown = (await edge.get(f"/v1/runs/{run.run_id}")).json()["deliveries"]
    assert [each["id"] for each in shown] == [*(f"before-{n}" for n in range(250)), "after"]
    assert shown[0] == {
        "id": "before-0",
        **rule,
        "trigger": "llm.tool_call",
        "status": "delivered",
        "result": "delivered",
        "status_code": 200,
    }
    assert shown[-1]["status"] == "waiting"
    error = {"code": "http_410", "message": "the receiver answered 410: it wants no more"}
    await run.say("automation.failed", **late, result=error["message"], error=error)
    shown = (await edge.get(f"/v1/runs/{run.run_id}")).json()["deliveries"]
    assert (shown[-1]["status"], shown[-1]["error"]) == ("failed", error)


async def test_a_start_puts_one_command_on_the_bus(edge: Client, bus: Bus) -> None:
    run_id = (await start(edge, session_id="s7", input={"version": [1]})).json()["run_id"]
    command = await command_of(bus, run_id)
    expected = {"run_id": run_id, "session_id": "s7", "message": "hello", "input": {"version": [1]}}
    assert expected.items() <= command.items()


TRACE = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"


@pytest.mark.parametrize(
    ("given", "kept"),
    [
        ([TRACE], True),
        ([], False),
        (["garbage"], False),
        ([TRACE.replace("4bf9", "XXXX")], False),
        ([TRACE, TRACE], False),
    ],
)
async def test_the_callers_trace_goes_with_the_run_or_one_begins(
    edge: Client, bus: Bus, given: list[str], kept: bool
) -> None:
    headers = [("traceparent", each) for each in given]
    answer = await edge.post("/v1/runs", json=START, headers=headers)
    command = await command_of(bus, answer.json()["run_id"])
    assert (command["traceparent"] == TRACE) is kept
    assert re.fullmatch(r"00-[0-9a-f]{32}-[0-9a-f]{16}-0[01]", command["traceparent"])


async def test_a_run_shows_its_trace_and_where_it_is_if_it_is_sampled(
    make_edge: MakeEdge, edge: Client, bus: Bus
) -> None:
    there = await make_edge(trace_url="https://traces.example/{trace_id}?tab=spans")
    for traceparent, is_sampled in ((TRACE, True), (f"{TRACE[:-2]}00", False), ("garbage", False)):
        run = PretendRun(bus)
        await run.record()
        path = f"/v1/runs/{run.run_id}"
        assert "trace_id" not in (await there.get(path)).json()
        run.headers["traceparent"] = traceparent
        await run.started()
        await run.record(first_event=run.first)
        shown = (await there.get(path)).json()
        assert shown.get("trace_id") == (None if traceparent == "garbage" else TRACE.split("-")[1])
        url = f"https://traces.example/{TRACE.split('-')[1]}?tab=spans"
        assert shown.get("trace_url") == (url if is_sampled else None)
        assert "trace_url" not in (await edge.get(path)).json()


@pytest.mark.parametrize(("header", "depth"), [("0", 1), ("3", 4)])
async def test_the_depth_of_a_webhook_that_led_to_a_start_is_counted(
    edge: Client, header: str, depth: int
) -> None:
    answer = await edge.post("/v1/runs", json=START, headers={"penstock-depth": header})
    assert answer.json()["depth"] == depth
    assert "depth" not in (await start(edge)).json()


@pytest.mark.parametrize("header", ["4", "999", "-1", "", "1.5"])
async def test_a_start_to_which_too_many_rules_led_is_422(edge: Client, header: str) -> None:
    answer = await edge.post("/v1/runs", json=START, headers={"penstock-depth": header})
    assert answer.status_code == 422


async def test_a_run_that_repeats_another_says_so(edge: Client, bus: Bus) -> None:
    first = (await start(edge)).json()["run_id"]
    again = (await start(edge, forked_from={"run_id": first})).json()
    assert again["forked_from"] == {"run_id": first, "sequence": 0}
    assert (await command_of(bus, again["run_id"]))["forked_from"] == again["forked_from"]
    assert "forked_from" not in (await start(edge)).json()
    listed = (await edge.get("/v1/runs", params={"limit": "2"})).json()["runs"]
    assert listed[1]["forked_from"] == again["forked_from"]


async def test_a_run_has_the_tags_of_its_start_and_is_listed_by_them(
    edge: Client, bus: Bus
) -> None:
    tag = str(uuid_utils.uuid7())
    tags = {"team": f"payments of {tag}", "a/b.c-d_e": "=é 1"}
    run = (await start(edge, tags=tags)).json()
    plain = (await start(edge, message=f"Hello {tag}")).json()
    assert run["tags"] == tags
    assert "tags" not in plain
    assert (await command_of(bus, run["run_id"]))["tags"] == tags

    async def listed(**query: Any) -> list[str]:
        answer = await edge.get("/v1/runs", params=query)
        return [each["run_id"] for each in answer.json()["runs"]]

    both = [f"{key}={value}" for key, value in tags.items()]
    assert await listed(tag=both) == [run["run_id"]]
    assert await listed(tag=[both[0], "team=x"]) == []
    assert await listed(text=f"HELLO {tag.upper()}") == [plain["run_id"]]
    assert await listed(text=tag, tenant="") == [plain["run_id"]]
    assert await listed(text=tag, tenant="acme") == []


@pytest.mark.parametrize(
    ("tags", "reason"),
    [
        ({f"k{number}": "v" for number in range(17)}, "at most 16 tags"),
        ({"-k": "v"}, "begins with a letter or digit"),
        ({"k=": "v"}, "begins with a letter or digit"),
        ({"k" * 65: "v"}, "at most 64"),
        ({"": "v"}, "begins with a letter or digit"),
        ({"k\n": "v"}, "begins with a letter or digit"),
        ({"k": ""}, "1 to 128 characters"),
        ({"k": "v" * 129}, "1 to 128 characters"),
        ({"k": "v\x1f"}, "control character"),
        ({"k": 7}, "must be a text"),
        (["k=v"], "object"),
    ],
    ids=range(11),
)
async def test_a_wrong_tag_is_refused_with_what_a_tag_may_be(
    edge: Client, tags: Any, reason: str
) -> None:
    answer = await start(edge, tags=tags)
    assert answer.status_code == 422
    assert reason in answer.text


@pytest.mark.parametrize(
    "query",
    [{"tag": "team"}, {"tag": ["k=v"] * 17}, {"text": "x" * 201}],
    ids=["no value", "too many", "too long"],
)
async def test_a_filter_that_cannot_fit_is_refused(edge: Client, query: Any) -> None:
    assert (await edge.get("/v1/runs", params=query)).status_code == 422


@pytest.mark.parametrize(
    ("forked_from", "status"),
    [
        ({"run_id": str(uuid_utils.uuid7())}, 404),
        ({"run_id": "../../v1"}, 404),
        ({"run_id": "x" * 65}, 422),
        ({"run_id": 7}, 422),
        ({"run_id": str(uuid_utils.uuid7()), "sequence": -1}, 422),
        ({"run_id": str(uuid_utils.uuid7()), "sequence": 7}, 422),
        ({"run_id": str(uuid_utils.uuid7()), "more": 1}, 422),
    ],
)
async def test_a_run_cannot_repeat_what_is_no_run(
    edge: Client, forked_from: dict[str, Any], status: int
) -> None:
    assert (await start(edge, forked_from=forked_from)).status_code == status


async def test_a_run_without_a_session_gets_one_of_its_own(edge: Client) -> None:
    first, second = (await start(edge)).json(), (await start(edge)).json()
    assert first["session_id"] != second["session_id"]


@pytest.mark.parametrize(
    "text",
    [
        "x" * 10_000,
        "中文 عربي 👩‍👩‍👧 \U0001d54f\U0010fffd",
        "a\nb\r\nc\td",
        "<script>'\"--\x01\x7f\u2028",
    ],
    ids=["long", "unicode", "lines", "markup"],
)
async def test_any_text_reaches_the_command_unchanged(edge: Client, bus: Bus, text: str) -> None:
    run_id = (await start(edge, message=text)).json()["run_id"]
    assert (await command_of(bus, run_id))["message"] == text


async def test_a_message_too_large_for_one_bus_message_is_started_too(
    edge: Client, bus: Bus
) -> None:
    text = "é" * 700_000
    run_id = (await start(edge, message=text)).json()["run_id"]
    assert (await command_of(bus, run_id))["message"] == text


async def test_a_start_that_accepts_event_streams_streams(edge: Client, bus: Bus) -> None:
    headers = {"Accept": "text/event-stream"}
    async with Stream(edge, "POST", "/v1/runs", json=START, headers=headers) as stream:
        run = PretendRun(bus, stream.run_id)
        await run.started()
        await run.completed()
        assert [frame.event for frame in await stream.rest()] == [
            "lifecycle.started",
            "lifecycle.completed",
        ]


async def test_a_start_streams_in_the_dialect_that_is_asked_for(edge: Client, bus: Bus) -> None:
    headers = {"Accept": "text/event-stream"}
    path = "/v1/runs?dialect=executions"
    async with Stream(edge, "POST", path, json=START, headers=headers) as stream:
        run = PretendRun(bus, stream.run_id)
        await run.started()
        assert (await stream.event())["data"] == {}


@pytest.mark.parametrize("plus", ["+", "%2B"])
async def test_the_plus_of_a_dialect_may_be_encoded_or_not(
    edge: Client, bus: Bus, plus: str
) -> None:
    headers = {"Accept": "text/event-stream"}
    path = f"/v1/runs?dialect=agui{plus}runs"
    async with Stream(edge, "POST", path, json=START, headers=headers) as stream:
        run = PretendRun(bus, stream.run_id)
        await run.started()
        assert (await stream.event())["type"] == "RUN_STARTED"
    session = await edge.get(f"/v1/sessions/s/events?dialect=agui{plus}runs")
    assert "must be one of" in session.json()["detail"]
    run_events = f"/v1/runs/{run.run_id}/events?dialect=agui{plus}runs&limit=1"
    page = await edge.get(run_events, headers={"Accept": "application/json"})
    assert page.status_code == 200, page.text


async def test_a_type_that_cannot_be_selected_is_422_with_the_ways_to_select(
    edge: Client, run: PretendRun
) -> None:
    path = f"/v1/runs/{run.run_id}/events?type=nope"
    untyped = (await edge.get(path)).json()["detail"]
    assert untyped.endswith("leave both out, or ask for dialect=unified")
    unknown = (await edge.get(f"{path}&dialect=unified")).json()["detail"]
    assert "no such type: nope (types: " in unknown
    assert "agent_thought" in unknown


async def test_an_unknown_agent_is_404(edge: Client) -> None:
    answer = await start(edge, agent="nobody")
    assert answer.status_code == 404
    assert "nobody" in answer.json()["detail"]


@pytest.mark.parametrize(
    ("fields", "named"),
    [
        ({"message": ""}, "message"),
        ({"message": " \t\n\u3000"}, "message"),
        ({"message": 5}, "message"),
        ({"message": None}, "message"),
        ({"agent": 5}, "agent"),
        ({"session_id": ""}, "session_id"),
        ({"session_id": 5}, "session_id"),
        ({"input": []}, "input"),
        ({"idempotency_key": ""}, "idempotency_key"),
        ({"mesage": "x"}, "mesage"),
    ],
)
async def test_a_wrong_field_is_422_and_named(
    edge: Client, fields: dict[str, Any], named: str
) -> None:
    answer = await start(edge, **fields)
    assert answer.status_code == 422
    assert named in answer.json()["detail"]
    assert answer.headers["content-type"] == "application/problem+json"


@pytest.mark.parametrize("body", [b"", b"{", b"[1]", b'"x"', b"\xff", b"null"])
async def test_a_body_that_is_no_json_object_is_422(edge: Client, body: bytes) -> None:
    headers = {"Content-Type": "application/json"}
    answer = await edge.post("/v1/runs", content=body, headers=headers)
    assert answer.status_code == 422
    if body == b"[1]":
        assert answer.json()["detail"] == "body: must be an object"


async def test_a_path_that_is_not_served_is_404_and_names_a_similar_one(edge: Client) -> None:
    detail = (await edge.get("/v1/run")).json()["detail"]
    assert detail == 'there is nothing at /v1/run: did you mean "/v1/runs"?'


async def test_another_media_type_is_415(edge: Client) -> None:
    answer = await edge.post("/v1/runs", content=b"hi", headers={"Content-Type": "text/plain"})
    assert answer.status_code == 415


async def test_a_body_over_the_limit_is_413(make_edge: MakeEdge) -> None:
    edge = await make_edge(max_body_bytes=1000)
    answer = await start(edge, message="x" * 5_000_000)
    assert answer.status_code == 413
    assert answer.headers["content-type"] == "application/problem+json"


async def test_a_body_of_unknown_length_is_bounded_too(make_edge: MakeEdge) -> None:
    edge = await make_edge(max_body_bytes=1000)

    async def endless() -> Any:
        for _ in range(100):
            yield b"x" * 10_000

    headers = {"Content-Type": "application/json"}
    assert (await edge.post("/v1/runs", content=endless(), headers=headers)).status_code == 413


@pytest.mark.parametrize(
    ("method", "path", "allow"),
    [
        ("PUT", "/v1/runs", "GET, HEAD, POST"),
        ("POST", "/v1/runs/x/events", "GET"),
        ("GET", "/v1/runs/x/cancel", "POST"),
    ],
)
async def test_a_wrong_method_is_405_with_allow(
    edge: Client, method: str, path: str, allow: str
) -> None:
    answer = await edge.request(method, path)
    assert answer.status_code == 405
    assert answer.headers["allow"] == allow


async def test_the_same_idempotency_key_gives_the_first_run(edge: Client) -> None:
    key = str(uuid_utils.uuid7())
    first = await start(edge, idempotency_key=key)
    again = await start(edge, idempotency_key=key)
    assert (first.status_code, again.status_code) == (202, 200)
    assert again.json() == first.json()


async def test_the_key_may_stand_in_the_header(edge: Client) -> None:
    headers = {"Idempotency-Key": str(uuid_utils.uuid7())}
    answers = [await edge.post("/v1/runs", json=START, headers=headers) for _ in range(2)]
    assert answers[0].json() == answers[1].json()


async def test_many_starts_at_once_with_one_key_are_one_run(edge: Client) -> None:
    key = str(uuid_utils.uuid7())
    answers = await asyncio.gather(*(start(edge, idempotency_key=key) for _ in range(10)))
    assert len({answer.json()["run_id"] for answer in answers}) == 1


async def test_the_same_key_with_another_body_is_409(edge: Client) -> None:
    key = str(uuid_utils.uuid7())
    await start(edge, idempotency_key=key)
    assert (await start(edge, idempotency_key=key, message="other")).status_code == 409


async def test_the_same_key_streams_the_first_run_from_its_beginning(
    edge: Client, bus: Bus
) -> None:
    key = str(uuid_utils.uuid7())
    run = PretendRun(bus, (await start(edge, idempotency_key=key)).json()["run_id"])
    await run.started()
    await run.completed()
    request = {"json": {**START, "idempotency_key": key}}
    headers = {"Accept": "text/event-stream"}
    async with Stream(edge, "POST", "/v1/runs", headers=headers, **request) as stream:
        assert stream.run_id == run.run_id
        assert len(await stream.rest()) == 2


async def test_runs_are_listed_newest_first_in_pages(edge: Client) -> None:
    session = str(uuid_utils.uuid7())
    made = [(await start(edge, session_id=session)).json()["run_id"] for _ in range(3)]
    query = {"session_id": session, "limit": "2"}
    first = (await edge.get("/v1/runs", params=query)).json()
    assert [run["run_id"] for run in first["runs"]] == made[:0:-1]
    query["before"] = first["next"]
    rest = (await edge.get("/v1/runs", params=query)).json()
    assert [run["run_id"] for run in rest["runs"]] == made[:1]
    assert rest["next"] is None


def id_at(time: str) -> str:
    ms = f"{int(datetime.fromisoformat(time).timestamp() * 1000):012x}"
    return f"{ms[:8]}-{ms[8:]}-{str(uuid_utils.uuid7())[14:]}"


async def test_runs_are_filtered_by_the_time_of_their_start(edge: Client, bus: Bus) -> None:
    times = [f"2020-01-01T1{hour}:00:00+00:00" for hour in range(4)]
    made = [id_at(time) for time in times]
    for run_id, time in zip(made, times, strict=True):
        await PretendRun(bus, run_id, "timed").record(created_at=time)

    async def found(**query: str) -> list[int]:
        """Return the numbers of the runs of all pages, each with one run."""
        numbers: list[int] = []
        asked = {"session_id": "timed", "limit": "1", **query}
        while True:
            page = (await edge.get("/v1/runs", params=asked)).json()
            numbers += [made.index(run["run_id"]) for run in page["runs"]]
            if page["next"] is None:
                return numbers
            asked["before"] = page["next"]

    async def all_known() -> bool:
        return await found() == [3, 2, 1, 0]

    await eventually(all_known)
    assert await found(since=times[1]) == [3, 2, 1]
    assert await found(until=times[1]) == [0]
    assert await found(since=times[1], until=times[3]) == [2, 1]
    assert await found(since="2020-01-01T14:00:00+02:00") == [3, 2]
    assert await found(since=times[3], until=times[0]) == []
    # Without the session, other indexes are used.
    for more in ({"agent": "assistant"}, {"status": "queued"}, {"user_id": "anonymous"}):
        query = {"since": times[0], "until": times[2], "limit": "9", **more}
        page = (await edge.get("/v1/runs", params=query)).json()
        assert [run["run_id"] for run in page["runs"]] == [made[1], made[0]]


@pytest.mark.parametrize("time", ["yesterday", "2020-01-01", "2020-13-01T00:00:00Z"])
async def test_a_wrong_time_of_a_list_is_422(edge: Client, time: str) -> None:
    for name in ("since", "until"):
        answer = await edge.get("/v1/runs", params={name: time})
        assert answer.status_code == 422
        assert answer.json()["detail"].startswith(f"{name}: must be a time")


async def test_runs_are_filtered_by_agent_and_status(edge: Client, bus: Bus) -> None:
    run = PretendRun(bus)
    session = str(uuid_utils.uuid7())
    await run.record(status="failed", session_id=session)
    path = f"/v1/runs?session_id={session}"
    assert len((await edge.get(f"{path}&status=failed")).json()["runs"]) == 1
    assert (await edge.get(f"{path}&status=completed")).json()["runs"] == []
    assert (await edge.get(f"{path}&agent=helper")).json()["runs"] == []
    both = (await edge.get(f"{path}&status=completed&status=failed&status=failed")).json()
    assert [each["run_id"] for each in both["runs"]] == [run.run_id]


@pytest.mark.parametrize("query", ["agent=a&agent=b", "limit=1&status=failed&limit=1"])
async def test_a_parameter_of_one_value_that_is_repeated_is_400(edge: Client, query: str) -> None:
    """One of the values would be dropped in silence."""
    answer = await edge.get(f"/v1/runs?{query}")
    assert answer.status_code == 400
    assert answer.json()["detail"] == f"{query[:5]}: takes one value, and came 2 times"


@pytest.mark.parametrize(
    "query",
    [
        "limit=0",
        "limit=x",
        "limit=99999",
        "limit=0000000019",
        f"limit=0000000010{'0' * 5000}",
        "status=odd",
        "status=failed&status=odd",
        "before=xyz",
    ],
)
async def test_a_wrong_query_is_422_and_named(edge: Client, query: str) -> None:
    answer = await edge.get(f"/v1/runs?{query}")
    assert answer.status_code == 422
    assert query.partition("=")[0] in answer.json()["detail"]


@pytest.mark.parametrize("confirmed", [True, False])
async def test_a_cancel_answers_when_the_run_is_cancelled(
    confirmed: bool, edge: Client, run: PretendRun, bus: Bus
) -> None:
    await run.started()
    asked = asyncio.create_task(edge.post(f"/v1/runs/{run.run_id}/cancel"))
    assert (await command_of(bus, run.run_id, "cancel"))["reason"] == "user_stop"
    assert not asked.done()
    await run.say("lifecycle.cancelled", reason="user_stop", confirmed=confirmed)
    answer = await asked
    assert answer.status_code == 200
    assert (answer.json()["status"], answer.json()["confirmed"]) == ("cancelled", confirmed)


async def test_a_queued_run_can_be_cancelled(edge: Client, run: PretendRun, bus: Bus) -> None:
    asked = asyncio.create_task(edge.post(f"/v1/runs/{run.run_id}/cancel"))
    await command_of(bus, run.run_id, "cancel")
    await run.started()
    await run.say("lifecycle.cancelled", reason="user_stop", confirmed=False)
    assert (await asked).status_code == 200


async def test_the_cancel_of_a_finished_run_is_409(edge: Client, finished: PretendRun) -> None:
    assert (await edge.post(f"/v1/runs/{finished.run_id}/cancel")).status_code == 409


async def test_a_run_that_completes_while_it_is_cancelled_is_409(
    edge: Client, run: PretendRun, bus: Bus
) -> None:
    await run.started()
    asked = asyncio.create_task(edge.post(f"/v1/runs/{run.run_id}/cancel"))
    await command_of(bus, run.run_id, "cancel")
    await run.completed()
    assert (await asked).status_code == 409


async def test_a_run_that_nobody_cancels_is_ended_by_the_edge(
    make_edge: MakeEdge, run: PretendRun, bus: Bus
) -> None:
    edge = await make_edge(cancel_wait_s=0.2)
    await run.started()
    asked = asyncio.create_task(edge.post(f"/v1/runs/{run.run_id}/cancel"))
    frames: list[Any] = []
    while not frames:
        frames, _ = await read(bus, streams.RAW, subjects.raw_stored(run.run_id, "edge"))
    frame = raw_frame(frames[0])
    assert frame.kind == "event"
    assert b'"type":"lifecycle.cancelled"' in frame.payload
    await run.say("lifecycle.cancelled", reason="user_stop", confirmed=False)
    assert (await asked).status_code == 200


async def test_a_replica_that_lags_makes_no_cursor_a_stranger(
    edge: Client, finished: PretendRun, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = f"/v1/runs/{finished.run_id}/events"
    async with Stream(edge, "GET", path) as stream:
        whole = await stream.rest()
    asked: set[int] = set()

    async def lagging(bus: Bus, stream: str, pattern: str, start: int, limit: int) -> Any:
        if start in asked:
            return await read(bus, stream, pattern, start, limit)
        asked.add(start)
        return [], 0

    monkeypatch.setattr(locate, "read", lagging)
    async with Stream(edge, "GET", path, headers={"last-event-id": str(whole[1].id)}) as stream:
        assert [frame.data for frame in await stream.rest()] == [each.data for each in whole[2:]]
