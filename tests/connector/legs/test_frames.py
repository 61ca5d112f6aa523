"""RAW has the upstream's answer byte for byte, and a leg ends once, whatever happens."""

from __future__ import annotations

import asyncio
import logging
import resource
from collections.abc import AsyncIterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

import orjson
import pytest
import pytest_asyncio

from penstock.bus.messages import RawFrame
from penstock.settings import Config
from penstock.sse import Frame
from penstock_connector.legs.response import MAX_BYTES
from penstock_connector.upstreams.agno import AgnoUpstream
from penstock_connector.upstreams.base import ReattachState
from support.drive.pipeline import Event, Pipeline, pipeline
from support.drive.short import in_short
from support.drive.waiting import eventually
from support.fakes.misbehaving import (
    Answer,
    Misbehaving,
    Script,
    agents,
    cuts,
    misbehaving,
    plays,
    stalls,
)
from support.fakes.raw import agno, agno_text
from support.real.nats import NatsServer
from support.real.nats_choice import new_server

STARTED = agno("RunStarted")
HALF = b'event: RunContent\ndata: {"event":"RunContent","con'
SEPARATORS = "a\u2028b\u2029c\u0085d \U0001f600"


def as_it_is(text: str) -> bytes:
    """Return a frame whose JSON is not escaped, as in frames of Agno and ADK."""
    return f'event: RunContent\ndata: {{"event":"RunContent","content":"{text}"}}\n\n'.encode()


async def drips(answer: Answer) -> None:
    """Send an answer byte by byte."""
    await answer.head()
    for byte in agno_text("slow"):
        await answer.send(bytes([byte]))
    await answer.end()


async def answers_without_chunks(answer: Answer) -> None:
    body = agno_text("plain")
    answer.sent += body
    head = f"HTTP/1.1 200 OK\r\ncontent-length: {len(body)}\r\n\r\n".encode()
    await answer.raw(head + body)


async def breaks_the_chunks(answer: Answer) -> None:
    await answer.head()
    await answer.send(STARTED)
    await answer.raw(b"no length\r\n")


def terminal(frames: list[RawFrame]) -> list[RawFrame]:
    return [frame for frame in frames if frame.kind in ("end", "lost")]


async def only_end(penstock: Pipeline, run_id: str) -> tuple[str, dict[str, Any]]:
    """Return the kind and payload of the only terminal frame, which must be the last frame."""
    frames = await penstock.raw(run_id)
    assert frames[0].kind == "open"
    assert [frames[-1]] == terminal(frames)
    return frames[-1].kind, orjson.loads(frames[-1].payload)


BODIES: dict[str, Script] = {
    "a whole answer": plays(agno_text("Hello ", "you")),
    "byte by byte": drips,
    "no body": plays(b"", lambda answer: answer.end()),
    "not chunked": answers_without_chunks,
    "CR LF": plays(agno_text("x").replace(b"\n", b"\r\n")),
    "CR alone": plays(agno_text("x").replace(b"\n", b"\r")),
    "separators of Unicode": plays(STARTED + as_it_is(SEPARATORS) + agno("RunCompleted")),
    "comments and fields of its own": plays(b": hi\nfoo: bar\nid: 1\n\n" + agno_text("x")),
    "a byte order mark": plays(b"\xef\xbb\xbf" + agno_text("x")),
    "garbage": plays(bytes(range(256)) * 40),
    "half a frame and a clean end": plays(STARTED + HALF),
    "cut in the middle of a frame": plays(STARTED + HALF, cuts),
    "broken chunks": breaks_the_chunks,
    "parts": plays(agno("RunContent", content="x" * 1_500_000) + agno("RunCompleted")),
}


@dataclass(frozen=True, slots=True)
class Served:
    """Services that run for all tests of this module, and their agents' server.

    The agents `agno`, `adk` and `agui` wait for 30 s; `hasty`, of Agno, waits for one.
    """

    upstream: Misbehaving
    penstock: Pipeline

    async def ended(self, script: Script, agent: str = "agno") -> tuple[str, Event]:
        """Run the agent, whose server answers by the script; return the run and its last event."""
        self.upstream.requests.clear()
        self.upstream.script(script)
        run_id = await self.penstock.start_run(agent, "hello")
        return run_id, (await self.penstock.ended(run_id))[-1]


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def served(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Served]:
    # On a server of their own, the services take no run of another test.
    nats = new_server(tmp_path_factory.mktemp("served"))
    nats.start()
    async with misbehaving() as upstream:
        upstream.scripted = lambda request: request.path != "/" and "/sessions/" not in request.path
        common = {"url": f"{upstream.url}/x", "timeout_s": 30}
        found = [{"id": each, "protocol": each, **common} for each in ("agno", "adk", "agui")]
        hasty = {"id": "hasty", "protocol": "agno", **common, "timeout_s": 1}
        config = Config.model_validate({"agents": [*found, hasty]})
        async with pipeline(nats.url, config) as penstock:
            yield Served(upstream, penstock)
    nats.remove()


@pytest.mark.parametrize("script", BODIES.values(), ids=BODIES.keys())
async def test_the_body_is_on_the_bus_byte_for_byte(served: Served, script: Script) -> None:
    sent: list[Answer] = []

    async def remembered(answer: Answer) -> None:
        sent.append(answer)
        await script(answer)

    run_id, _ = await served.ended(remembered)
    assert await served.penstock.body(run_id) == bytes(sent[0].sent)
    await only_end(served.penstock, run_id)


async def test_a_frame_that_breaks_the_adapter_is_passed_on_unchanged(
    nats_server: NatsServer, upstream: Misbehaving, monkeypatch: pytest.MonkeyPatch
) -> None:
    def breaks(self: AgnoUpstream, frame: Frame, seen: ReattachState) -> None:
        raise RuntimeError("an adapter's bug")

    monkeypatch.setattr(AgnoUpstream, "watch", breaks)
    upstream.script(plays(agno_text("x")))
    async with pipeline(nats_server.url, agents(upstream)) as penstock:
        run_id = await penstock.start_run("agno", "hello")
        await penstock.ended(run_id)
        assert await penstock.body(run_id) == agno_text("x")
        assert await only_end(penstock, run_id) == ("end", {"outcome": "eof"})


async def test_source_frames_say_where_they_belong(
    nats_server: NatsServer, upstream: Misbehaving
) -> None:
    upstream.script(plays(agno_text("x")))
    async with pipeline(nats_server.url, agents(upstream)) as penstock:
        run_id = await penstock.start_run("agno", "hello", session_id="s-1", user_id="ada")
        await penstock.ended(run_id)
        frames = await penstock.raw(run_id)
    assert [frame.kind for frame in frames] == ["open", "bytes", "end"]
    assert {frame.leg for frame in frames} == {1}
    assert len({frame.connection for frame in frames}) == 1
    for frame in frames:
        age = datetime.now(UTC) - datetime.fromisoformat(frame.received)
        assert timedelta(0) <= age < timedelta(seconds=20)
    opened = orjson.loads(frames[0].payload)
    assert opened == {
        "agent": "agno",
        "protocol": "agno",
        "kind": "agent",
        "hosts": ["127.0.0.1"],
        "session_id": "s-1",
        "user_id": "ada",
        "message": "hello",
    }


async def test_the_run_has_started_before_the_upstream_answers(
    nats_server: NatsServer, upstream: Misbehaving
) -> None:
    go = asyncio.Event()

    async def waits(answer: Answer) -> None:
        await go.wait()
        await plays(agno_text("x"))(answer)

    upstream.script(waits)
    async with pipeline(nats_server.url, agents(upstream)) as penstock:
        run_id = await penstock.start_run("agno", "hello")
        await penstock.events_until(run_id, "lifecycle.started")
        await upstream.called()
        go.set()
        *_, last = await penstock.ended(run_id)
    assert last.type == "lifecycle.completed"


async def test_a_slow_broker_holds_back_the_reading_and_nothing_is_lost(
    fresh_nats: NatsServer, upstream: Misbehaving
) -> None:
    frame = agno("RunContent", content="x" * 100_000)
    count = 300
    began = asyncio.Event()

    async def floods(answer: Answer) -> None:
        await answer.head()
        await answer.send(STARTED)
        await began.wait()
        for _ in range(count):
            await answer.send(frame)
        await answer.send(agno("RunCompleted", content="x"))
        answer.sent.clear()
        await answer.end()

    sent: list[Answer] = []

    async def remembered(answer: Answer) -> None:
        sent.append(answer)
        await floods(answer)

    upstream.script(remembered)
    async with pipeline(
        fresh_nats.url, agents(upstream), max_buffered_bytes=256 * 1024
    ) as penstock:
        run_id = await penstock.start_run("agno", "hello")
        await penstock.events_until(run_id, "lifecycle.started")
        await eventually(lambda: _has(penstock, run_id, STARTED), what="the first frame")
        fresh_nats.stop()
        began.set()
        stuck_at = await _settled(sent[0])
        fresh_nats.start()
        *_, last = await penstock.ended(run_id, timeout_s=30)
        body = await penstock.body(run_id)
        await only_end(penstock, run_id)
    # The waiting bytes are bounded: 256 KiB in the connector, and a few MiB in the sockets.
    assert stuck_at < count * len(frame) / 2
    assert last.type == "lifecycle.completed"
    assert body == STARTED + frame * count + agno("RunCompleted", content="x")


async def _has(penstock: Pipeline, run_id: str, body: bytes) -> bool:
    return await penstock.body(run_id) == body


async def _settled(answer: Answer) -> int:
    """Return the number of bytes that were sent when the client reads no more."""
    before = -1
    while len(answer.sent) != before or not before:
        before = len(answer.sent)
        await asyncio.sleep(0.5)
    return before


# Failures: each gives one terminal frame and one clear event.


async def says_nothing(answer: Answer) -> None:
    answer.cut()


async def too_many(answer: Answer) -> None:
    body = b'{"detail":"slow down, ' + b"x" * 100_000 + b'"}'
    await answer.whole(body, 429, content_type="application/json")


async def breaks_while_refusing(answer: Answer) -> None:
    await answer.head(503)
    await answer.send(b"overloaded: come b")
    answer.cut()


Failure = tuple[Script, str, str]

FAILURES: dict[str, Failure] = {
    "closed before an answer": (says_nothing, "outcome_unknown", "nobody knows"),
    "garbage instead of HTTP": (
        lambda answer: answer.raw(b"SSH-2.0-OpenSSH_9.6\r\n\r\n"),
        "outcome_unknown",
        "nobody knows",
    ),
    "404": (
        lambda answer: answer.whole(b'{"detail":"Agent not found"}', 404),
        "upstream_http",
        'answered 404: {"detail":"Agent not found"}',
    ),
    "422": (
        lambda answer: answer.whole("{'detail': 'Fläche'}".encode(), 422),
        "upstream_http",
        "Fläche",
    ),
    "500 without a word": (
        lambda answer: answer.whole(b"", 500),
        "upstream_http",
        "answered 500",
    ),
    "a long refusal": (too_many, "upstream_http", "slow down"),
    "a refusal that breaks off": (breaks_while_refusing, "upstream_http", "overloaded: come b"),
    "a redirect": (lambda answer: answer.whole(b"over there", 307), "upstream_http", "307"),
    "cut between frames": (plays(STARTED, cuts), "upstream_lost", "cut"),
    "cut in a frame": (plays(STARTED + HALF, cuts), "upstream_lost", "cut"),
    "an end in a frame": (plays(STARTED + HALF), "upstream_lost", "in the middle of a frame"),
    "an end too early": (plays(STARTED), "upstream_lost", ""),
    "a page that is called a stream": (
        plays(b"<html>It works!</html>"),
        "not_a_stream",
        "what it calls text/event-stream and is none",
    ),
    "its own error": (
        plays(STARTED + agno("RunError", content="model broke")),
        "upstream_error",
        "model broke",
    ),
    "silence": (stalls, "timeout", "timeout after 1 second"),
    "silence in the middle": (plays(STARTED, stalls), "timeout", "timeout after 1 second"),
}


@pytest.mark.parametrize("failure", FAILURES.values(), ids=FAILURES.keys())
async def test_a_failure_ends_the_run_once_and_says_why(served: Served, failure: Failure) -> None:
    script, code, words = failure
    # Only a server that sends nothing may time out here: on a busy machine, the other failures may
    # take a second.
    run_id, last = await served.ended(script, "hasty" if code == "timeout" else "agno")
    await only_end(served.penstock, run_id)
    events = await served.penstock.ended(run_id)
    assert [event.type for event in events if "lifecycle" in event.type] == [
        "lifecycle.started",
        "lifecycle.failed",
    ]
    assert last.data["code"] == code
    assert words in last.data["error"]
    assert len(last.data["error"]) < 5000
    assert len(served.upstream.calls) == 1


async def test_a_line_without_an_end_is_stopped_at_the_limit_of_a_frame(
    nats_server: NatsServer, upstream: Misbehaving
) -> None:
    upstream.script(plays(STARTED + b"data: " + b"x" * 70_000, stalls))
    async with pipeline(nats_server.url, agents(upstream), max_frame_bytes=65536) as penstock:
        run_id = await penstock.start_run("agno", "hello")
        *_, failed = await penstock.ended(run_id)
        await only_end(penstock, run_id)
    assert failed.data["code"] == "limit"
    assert "larger than 65536 bytes" in failed.data["error"]


async def test_the_log_does_not_repeat_what_a_server_answers(
    nats_server: NatsServer, upstream: Misbehaving, caplog: pytest.LogCaptureFixture
) -> None:
    """A server that refuses a request may repeat the user's message."""
    upstream.script(lambda answer: answer.whole(b'{"detail": {"input": "zebra-4711"}}', 422))
    caplog.set_level(logging.INFO)
    async with pipeline(nats_server.url, agents(upstream)) as penstock:
        run_id = await penstock.start_run("agno", "zebra-4711")
        events = await penstock.ended(run_id)

        async def is_logged() -> bool:
            return all(text in caplog.text for text in ("upstream_http", f"run {run_id} failed"))

        await eventually(is_logged, 30, "the leg's and the run's end are in the log")
    assert "zebra-4711" in events[-1].data["error"]
    assert "zebra-4711" not in caplog.text


JSON_TYPE = "application/json; charset=utf-8"
EVENTS_OF_ADK = b'[{"author":"a","invocationId":"e","content":{"parts":[{"text":"Hi"}]}}]'

# By name: the body, its content type, and a part of the error text.
OTHER_BODIES: dict[str, tuple[bytes, str, str]] = {
    "an object": (b'{"run_id":"r","status":"COMPLETED"}', JSON_TYPE, "with application/json"),
    "a list of events": (EVENTS_OF_ADK, JSON_TYPE, "as ADK's /run gives it"),
    "lines of objects": (b'{"a":1}\n\n{"a":2}\n\n', "application/x-ndjson", "application/x-ndjson"),
    "a page": (b"<!doctype html>\n\n<title>Welcome</title>", "text/html", "a page for people"),
    "a text": (b"It works!\n\n", "text/plain", "with text/plain"),
    "an object that is called a stream": (b' \n{"ok":true}\n\n', "text/event-stream", "is none"),
    "nothing": (b"", "text/html", "The answer was empty"),
    "a few bytes": (b"dat", "text/plain", "It said: dat"),
    "no type": (b"[]\n\n", "", "without a content type"),
}


@pytest.mark.parametrize(
    ("case", "protocol"),
    in_short(
        [(case, protocol) for case in OTHER_BODIES for protocol in ("agno", "adk", "agui")],
        [*((case, "agno") for case in OTHER_BODIES), ("an object", "adk"), ("an object", "agui")],
    ),
)
async def test_an_answer_that_is_no_stream_is_told_as_what_it_is_and_kept(
    served: Served, case: str, protocol: str
) -> None:
    body, content_type, words = OTHER_BODIES[case]
    run_id, failed = await served.ended(
        lambda answer: answer.whole(body, content_type=content_type), protocol
    )
    kind, facts = await only_end(served.penstock, run_id)
    assert (failed.type, failed.data["code"]) == ("lifecycle.failed", "not_a_stream")
    assert words in failed.data["error"]
    assert repr(protocol) in facts["error"] or "a page for people" in facts["error"]
    assert kind == "lost"
    assert await served.penstock.body(run_id) == body


async def test_of_an_endless_answer_that_is_no_stream_a_beginning_is_read(
    nats_server: NatsServer, upstream: Misbehaving
) -> None:
    async def endless(answer: Answer) -> None:
        await answer.head(content_type="application/json")
        while True:
            await answer.send(b'{"a":1}\n\n' * 10_000)

    upstream.script(endless)
    async with pipeline(nats_server.url, agents(upstream)) as penstock:
        run_id = await penstock.start_run("agno", "hello")
        *_, failed = await penstock.ended(run_id)
        stored = await penstock.body(run_id)
        await upstream.dropped()
    assert failed.data["code"] == "not_a_stream"
    assert len(failed.data["error"]) < 2000
    assert len(stored) == MAX_BYTES


async def test_a_stream_that_is_called_something_else_is_taken_as_it_is(served: Served) -> None:
    body = agno_text("Hello")

    async def called_a_text(answer: Answer) -> None:
        await answer.head(content_type="text/plain")
        for place in range(0, len(body), 3):
            await answer.send(body[place : place + 3])
        await answer.end()

    run_id, last = await served.ended(called_a_text)
    assert last.type == "lifecycle.completed"
    assert await served.penstock.body(run_id) == body


async def test_a_response_without_end_is_ended_at_its_limit(
    nats_server: NatsServer, upstream: Misbehaving
) -> None:
    words = agno("RunContent", content="x" * 1000) * 200
    upstream.script(plays(STARTED + words, stalls))
    config = agents(upstream)
    async with pipeline(nats_server.url, config, max_response_bytes=100_000) as penstock:
        run_id = await penstock.start_run("agno", "hello")
        *_, failed = await penstock.ended(run_id)
        stored = sum(len(frame.payload) for frame in await penstock.raw(run_id))
    assert failed.data["code"] == "limit"
    assert "a response is larger than 100000 bytes" in failed.data["error"]
    assert stored < 110_000


async def test_a_refusal_carries_status_and_words(served: Served) -> None:
    run_id, _ = await served.ended(lambda answer: answer.whole(b'{"detail":"nope"}', 403))
    kind, facts = await only_end(served.penstock, run_id)
    assert kind == "lost"
    assert facts["status_code"] == 403
    assert facts["detail"] == '{"detail":"nope"}'


async def test_a_server_that_is_not_there_is_said_to_be_out_of_reach(
    nats_server: NatsServer,
) -> None:
    config = Config.model_validate(
        {"agents": [{"id": "gone", "protocol": "agno", "url": "http://127.0.0.1:1"}]}
    )
    async with pipeline(nats_server.url, config) as penstock:
        run_id = await penstock.start_run("gone", "hello")
        *_, failed = await penstock.ended(run_id)
    assert failed.data["code"] == "not_sent"
    assert "cannot reach the agent server" in failed.data["error"]
    assert failed.data["retryable"] is True


async def test_an_agent_that_is_not_configured_ends_the_run(
    nats_server: NatsServer, upstream: Misbehaving
) -> None:
    async with pipeline(nats_server.url, agents(upstream)) as penstock:
        run_id = await penstock.start_run("nobody", "hello")
        *_, failed = await penstock.ended(run_id)
    assert failed.data["code"] == "internal"
    assert "nobody" in failed.data["error"]


async def test_a_connection_that_was_cut_is_closed_by_us_too(
    nats_server: NatsServer, upstream: Misbehaving
) -> None:
    upstream.script(plays(STARTED, stalls))
    async with pipeline(nats_server.url, agents(upstream, timeout_s=1)) as penstock:
        run_id = await penstock.start_run("agno", "hello")
        await penstock.ended(run_id)
        await upstream.dropped()


@pytest.mark.chaos
async def test_a_line_of_200_mb_is_stopped_at_the_limit_in_bounded_memory(
    nats_server: NatsServer, upstream: Misbehaving
) -> None:
    sent = 0
    piece = b"x" * 1024 * 1024

    async def endless(answer: Answer) -> None:
        nonlocal sent
        await answer.head()
        await answer.send(b"data: ")
        for _ in range(200):
            await answer.raw(f"{len(piece):x}\r\n".encode() + piece + b"\r\n")
            sent += len(piece)

    upstream.script(endless)
    before = _peak_bytes()
    async with pipeline(nats_server.url, agents(upstream)) as penstock:
        run_id = await penstock.start_run("agno", "hello")
        *_, failed = await penstock.ended(run_id, timeout_s=40)
    assert failed.data["code"] == "limit"
    assert sent < 100 * len(piece)
    # The connector's reader and the normalizer's reader each hold a frame of 64 MiB and its pieces.
    assert _peak_bytes() - before < 600 * 1024 * 1024


def _peak_bytes() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
