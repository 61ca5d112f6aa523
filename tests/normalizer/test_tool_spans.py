"""Each call of a tool or a model gets one span, in its leg, and without content."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, cast

import pytest

from penstock.bus import Stored
from penstock.bus.messages import RawFrame
from penstock.dialects.decoders import DECODERS
from penstock.tracing import spans
from penstock.tracing.spans import Span
from penstock_normalizer.fold.envelope import CanonicalEvent
from penstock_normalizer.fold.run_fold import RunFold
from penstock_normalizer.runs.context import RunContext
from penstock_normalizer.runs.feeder import Feeder
from penstock_normalizer.runs.run_output import ReadyEvents, RunOutput
from penstock_normalizer.runs.spans import CallSpans
from support.fakes.raw import RUN_ID, Frames, agno, agno_approved, agno_pause
from support.fakes.recorder import recording

CLIENT = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"
SECRET = "zebra-4711"


@pytest.fixture
def tracing() -> Iterator[None]:
    with recording():
        yield


@dataclass
class Output:
    """The part of a run's output that the feeder uses: what EVENTS has of the run."""

    sequence: int = 0
    raw_position: int = 0
    last_type: str = ""
    run_id: str = RUN_ID


class Context:
    """The part of a run's context that the feeder uses; it stores no pause."""

    @property
    def pauses(self) -> Context:
        return self

    async def store(self, fold: RunFold) -> None:
        pass

    async def give_up(self, stored: Stored, error: Exception) -> None:
        raise error


@dataclass
class Normalizer:
    """A normalizer's work on one run; `ready` has the events that it would publish."""

    output: Output = field(default_factory=Output)
    ready: ReadyEvents = field(default_factory=ReadyEvents)

    def __post_init__(self) -> None:
        self.fold = RunFold(RUN_ID, DECODERS)
        self.feeder = Feeder(cast("RunContext", Context()), cast("RunOutput", self.output))

    async def feed(self, *frames: RawFrame) -> tuple[Span, ...]:
        """Return the spans of all tool calls that have ended."""
        for frame in frames:
            stored = Stored(f"rawp.0.{RUN_ID}.{frame.writer}", frame.sequence, {}, frame.payload)
            if frame.kind == "bytes":
                self.feeder.feed_at_once(self.fold, frame, stored, self.ready)
            else:
                await self.feeder.feed(self.fold, frame, stored, self.ready)
        return self.ready.spans


def tool(id: str = "t1", **fields: Any) -> dict[str, Any]:
    arguments = {"path": SECRET}
    return {"tool_call_id": id, "tool_name": "look_up", "tool_args": arguments, **fields}


def started(id: str = "t1") -> bytes:
    return agno("ToolCallStarted", tool=tool(id))


def completed(id: str = "t1", **fields: Any) -> bytes:
    return agno("ToolCallCompleted", tool=tool(id, result=SECRET, **fields))


def run(*, traced: bool = True) -> Frames:
    return Frames(traceparent=CLIENT) if traced else Frames()


@pytest.mark.usefixtures("tracing")
async def test_a_call_is_a_span_of_its_leg_from_its_start_to_its_result() -> None:
    frames = run()
    frames_ = [frames.open(), frames.bytes(agno("RunStarted") + started())]
    frames_.append(frames.bytes(agno("RunContent", content="meanwhile")))
    frames_.append(frames.bytes(completed()))
    [span] = await Normalizer().feed(*frames_)
    assert span.name == "execute_tool look_up"
    assert span.parent == spans.of_leg(CLIENT, RUN_ID, 1)
    assert span.attributes == {
        "gen_ai.operation.name": "execute_tool",
        "gen_ai.tool.name": "look_up",
        "gen_ai.tool.call.id": "t1",
        "gen_ai.tool.type": "function",
        "penstock.run.id": RUN_ID,
        "penstock.leg": 1,
        "penstock.tool.outcome": "ok",
    }
    assert span.ended_ns - span.began_ns == 2_000_000  # two frames, at 1 ms each
    assert (span.error, span.links) == (None, ())
    assert SECRET not in str(span)


@pytest.mark.usefixtures("tracing")
async def test_a_failed_call_is_an_error_without_its_text() -> None:
    frames = run()
    failed = completed(tool_call_error=True)
    [span] = await Normalizer().feed(frames.open(), frames.bytes(started()), frames.bytes(failed))
    assert (span.error, span.attributes["penstock.tool.outcome"]) == ("error", "error")
    assert SECRET not in str(span)


@pytest.mark.usefixtures("tracing")
async def test_the_span_of_an_approved_call_begins_after_the_decision_and_links_to_it() -> None:
    frames, normalizer = run(), Normalizer()
    paused = frames.open(), frames.bytes(agno_pause()), frames.end()
    assert await normalizer.feed(*paused) == ()
    stored, approval_id = normalizer.fold.snapshot(), normalizer.fold.approval_id
    assert approval_id is not None
    opened = frames.open_next(approval_id, t1="approve")
    rest = frames.bytes(agno_approved())
    [span] = await normalizer.feed(opened, rest)
    assert span.parent == spans.of_leg(CLIENT, RUN_ID, 2)
    assert span.links == (spans.of_approval(CLIENT, RUN_ID, approval_id),)
    assert span.began_ns >= spans.nanoseconds(opened.received)
    # A normalizer that continues the run from the stored pause knows only this leg.
    other = Normalizer()
    other.fold.restore(stored)
    [same] = await other.feed(opened, rest)
    assert (same.context, same.parent, same.links) == (span.context, span.parent, span.links)


@pytest.mark.usefixtures("tracing")
async def test_a_call_that_is_rejected_never_runs_and_has_no_span() -> None:
    frames, normalizer = run(), Normalizer()
    await normalizer.feed(frames.open(), frames.bytes(agno_pause()), frames.end())
    assert normalizer.fold.approval_id is not None
    opened = frames.open_next(normalizer.fold.approval_id, t1="reject")
    assert await normalizer.feed(opened, frames.bytes(agno("RunCompleted", content=""))) == ()


@pytest.mark.usefixtures("tracing")
async def test_a_call_that_runs_when_the_run_fails_is_unfinished() -> None:
    frames = run()
    begun = [frames.open(), frames.bytes(started())]
    [span] = await Normalizer().feed(*begun, frames.lost())
    assert (span.error, span.attributes["penstock.tool.outcome"]) == ("unfinished", "unfinished")
    frames.sequence = 2
    [span] = await Normalizer().feed(*begun, frames.end("cancelled"))
    assert (span.error, span.attributes["penstock.tool.outcome"]) == (None, "unfinished")


@pytest.mark.usefixtures("tracing")
async def test_a_call_that_the_server_reports_late_has_the_duration_that_it_reports() -> None:
    frames = run()
    opened = frames.open()
    for _ in range(20):
        frames.frame("bytes")
    late = frames.bytes(completed(metrics={"duration": 0.004}))
    [span] = await Normalizer().feed(opened, late)
    assert span.ended_ns - span.began_ns == 4_000_000
    late = frames.bytes(completed(metrics={"duration": 3600.0}))
    [span] = await Normalizer().feed(opened, late)
    assert span.began_ns == spans.nanoseconds(opened.received)  # never before its leg


@pytest.mark.usefixtures("tracing")
async def test_a_normalizer_that_takes_the_run_over_makes_the_same_span() -> None:
    """The earlier normalizer was killed after it had published the start of the call."""
    frames = run()
    begun = [frames.open(), frames.bytes(agno("RunStarted") + started())]
    ended = frames.bytes(completed())
    first = Normalizer()
    [span] = await first.feed(*begun, ended)
    position = Output(first.fold.sequence - 1, begun[-1].sequence)
    [again] = await Normalizer(position).feed(*begun, ended)
    assert again == span
    # After the result is published, no normalizer makes the span again.
    position = Output(first.fold.sequence, ended.sequence)
    assert await Normalizer(position).feed(*begun, ended) == ()


@pytest.mark.usefixtures("tracing")
async def test_a_run_without_a_trace_has_no_spans() -> None:
    frames = run(traced=False)
    both = frames.bytes(started() + completed())
    assert await Normalizer().feed(frames.open(), both) == ()


async def test_nothing_is_done_for_a_token_and_while_tracing_is_off_for_no_event(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    seen: list[object] = []

    def ended_by(*given: object) -> tuple[Span, ...]:
        seen.append(given)
        return ()

    monkeypatch.setattr(CallSpans, "ended_by", ended_by)
    frames = run()
    words = agno("RunContent", content="one") + agno("RunContent", content="two")
    body = [frames.open(), frames.bytes(started()), frames.bytes(words), frames.bytes(completed())]
    assert await Normalizer().feed(*body) == ()
    assert seen == []
    with recording():
        await Normalizer().feed(*body)
    assert len(seen) == 2  # with tracing on: of the call's start and of its result


def event(type_: str, at_s: int, **data: Any) -> CanonicalEvent:
    stamp = f"2026-11-20T10:00:{at_s:02d}.000Z"
    return CanonicalEvent(type_, 1, stamp, {"tool_call_id": "t1", "tool": "dig", **data}, b"")


@pytest.mark.usefixtures("tracing")
def test_a_call_that_the_server_begins_again_after_the_decision_begins_there() -> None:
    """An AG-UI server announces the call before it pauses, and starts it again afterwards."""
    frames, fold, tools = run(), RunFold(RUN_ID, DECODERS), CallSpans(RUN_ID)
    fold.facts, fold.leg = {"traceparent": CLIENT}, 1
    ordinary = frames.bytes(b"")
    assert tools.ended_by(event("llm.tool_call", 1), ordinary, fold) == ()
    fold.leg, tools.leg_began = 2, "2026-11-20T10:00:05.000Z"
    assert tools.ended_by(event("llm.tool_progress", 7, status="running"), ordinary, fold) == ()
    # A report of progress does not move the beginning.
    assert tools.ended_by(event("llm.tool_progress", 8, status="running"), ordinary, fold) == ()
    [span] = tools.ended_by(event("llm.tool_result", 9, outcome="ok"), ordinary, fold)
    assert span.began_ns == spans.nanoseconds("2026-11-20T10:00:07.000Z")
    assert len(span.links) == 1


@pytest.mark.usefixtures("tracing")
def test_a_call_that_the_decision_answers_has_no_span() -> None:
    """A person or a client has given the result; nothing ran at the agent server."""
    frames, fold, tools = run(), RunFold(RUN_ID, DECODERS), CallSpans(RUN_ID)
    fold.facts, fold.leg = {"traceparent": CLIENT}, 2
    tools.leg_began = "2026-11-20T10:00:05.000Z"
    assert tools.ended_by(event("llm.tool_result", 5, outcome="ok"), frames.open(), fold) == ()


@pytest.mark.usefixtures("tracing")
async def test_a_model_call_is_a_span_from_the_end_of_the_call_before_it_with_its_cost() -> None:
    cost = {"micros": 597, "currency": "EUR", "source": "table", "version": "7"}
    normalizer = Normalizer()
    normalizer.fold.cost_of = lambda *_: cost
    used = {"input_tokens": 412, "output_tokens": 37, "cache_read_tokens": 256}
    asked = agno("ModelRequestCompleted", model="gpt-5", model_provider="OpenAI", **used)
    frames = run()
    bodies = [agno("RunStarted"), asked, started(), completed(), asked]
    fed = [frames.open(), *map(frames.bytes, bodies)]
    for second, frame in enumerate(fed):
        frame.received = f"2026-11-26T10:00:{second:02}.000Z"
    first, tool_span, last = await normalizer.feed(*fed)
    assert tool_span.name == "execute_tool look_up"
    assert [span.name for span in (first, last)] == ["chat gpt-5"] * 2
    assert [(span.ended_ns - span.began_ns) / 1e9 for span in (first, last)] == [2, 1]
    assert first.parent == spans.of_leg(CLIENT, RUN_ID, 1)
    assert first.context != last.context
    assert last.attributes == {
        "gen_ai.operation.name": "chat",
        "gen_ai.response.model": "gpt-5",
        "gen_ai.provider.name": "OpenAI",
        "gen_ai.usage.input_tokens": 412,
        "gen_ai.usage.output_tokens": 37,
        "gen_ai.usage.cache_read.input_tokens": 256,
        "penstock.run.id": RUN_ID,
        "penstock.leg": 1,
        "penstock.cost.micros": 597,
        "penstock.cost.currency": "EUR",
    }


@pytest.mark.usefixtures("tracing")
async def test_calls_of_models_that_are_counted_together_are_no_span() -> None:
    frames = run()
    counted = {"input_tokens": 3, "output_tokens": 1}
    ended = agno("RunCompleted", content="x", metrics=counted)
    fed = [frames.open(), frames.bytes(agno("RunStarted") + ended), frames.end()]
    assert await Normalizer().feed(*fed) == ()
