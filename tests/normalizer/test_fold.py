"""The fold gives one order, one end and the pauses, and the same events in every process."""

from __future__ import annotations

import copy
import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.bus.messages import RawFrame
from penstock.dialects.base import AgentFacts, Draft
from penstock.dialects.decoders import DECODERS
from penstock.events import TERMINAL, is_epilogue, parse, typed_data
from penstock.sse import Frame
from penstock_normalizer.fold.envelope import CanonicalEvent
from penstock_normalizer.fold.run_fold import RunFold
from support.drive.for_each import for_each
from support.fakes.raw import RUN_ID, Frames, agno, agno_approved, agno_pause, agno_text

GOLDEN = Path(__file__).parent.parent / "golden"
RECORDINGS = sorted(
    path
    for protocol in ("agno", "adk")
    for path in GOLDEN.glob(f"{protocol}/*/*.sse")
    if "__" not in path.stem and "answer" not in path.stem and "update" not in path.stem
)


def fold(max_frame_bytes: int = 1 << 20) -> RunFold:
    return RunFold(RUN_ID, DECODERS, max_frame_bytes)


def fold_all(frames: Iterable[RawFrame], into: RunFold | None = None) -> list[CanonicalEvent]:
    into = into or fold()
    return [event for frame in frames for event in into.feed(copy.copy(frame))]


def types(events: Iterable[CanonicalEvent]) -> list[str]:
    return [event.type for event in events]


def body(event: CanonicalEvent) -> dict[str, Any]:
    decoded: dict[str, Any] = orjson.loads(event.body)
    return decoded


def paused(frames: Frames) -> list[RawFrame]:
    """Return the frames of a run up to the moment at which a person is asked."""
    return [frames.open(), frames.bytes(agno_pause()), frames.end()]


@for_each("path", RECORDINGS, lambda path: f"{path.parent.name}/{path.stem}")
def test_every_recorded_run_is_whole_and_valid(path: Path) -> None:
    protocol = path.parent.parent.name
    frames = Frames(protocol)
    events = fold_all([frames.open(), frames.bytes(path.read_bytes()), frames.end()])
    assert [event.sequence for event in events] == list(range(1, len(events) + 1))
    assert events[0].type == "lifecycle.started"
    assert events[-1].type in TERMINAL | {"approval.requested"}
    assert not TERMINAL.intersection(types(events[:-1]))
    for event in events:
        parse(event.body)
        typed_data(event.type, event.data)


@for_each("path", RECORDINGS[::7], lambda path: path.stem)
@for_each("size", [1, 7, 1000])
def test_the_cut_of_the_bytes_changes_nothing_but_the_times(path: Path, size: int) -> None:
    def folded(step: int) -> list[tuple[str, Any]]:
        frames = Frames(path.parent.parent.name)
        content = path.read_bytes()
        parts = [content[at : at + step] for at in range(0, len(content), step)]
        events = fold_all([frames.open(), *map(frames.bytes, parts), frames.end()])
        return [(event.type, event.data) for event in events]

    assert folded(size) == folded(1 << 20)


def test_a_run_starts_with_who_asked_what() -> None:
    frames = Frames()
    (started,) = fold_all([frames.open()])
    assert body(started) == {
        "run_id": RUN_ID,
        "timestamp": "2026-11-20T10:00:00.001Z",
        "sequence": 1,
        "source": None,
        "event": {"category": "lifecycle", "action": "started"},
        "data": {"agent": "assistant", "user_id": "u-1", "message": "hello"},
        "session_id": "s-1",
        "leg": 1,
    }


def test_a_failure_is_told_without_credentials_and_addresses() -> None:
    frames = Frames()
    error = "cannot reach http://agents.internal:8001 with Bearer abcdef0123456789"
    *_, failed = fold_all([frames.open(), frames.lost(error=error)])
    assert body(failed)["data"]["error"] == "cannot reach [address] with Bearer [redacted]"
    assert failed.unredacted is not None
    assert failed.unredacted["error"] == error


def test_a_pause_becomes_a_request_when_its_leg_has_closed() -> None:
    frames = Frames()
    opened, said, closed = paused(frames)
    one = fold()
    before = fold_all([opened, said], one)
    assert "approval.requested" not in types(before)
    (requested,) = fold_all([closed], one)
    assert requested.type == "approval.requested"
    assert [item["tool"] for item in requested.data["items"]] == ["delete_file"]
    assert requested.data["digest"].startswith("sha256:")
    assert one.pending is not None
    assert one.pending.resume["tools"][0]["tool_call_id"] == "t1"


def test_an_upstream_that_is_cut_after_its_pause_has_paused() -> None:
    frames = Frames()
    events = fold_all([frames.open(), frames.bytes(agno_pause()), frames.lost()])
    assert events[-1].type == "approval.requested"


def test_paused_is_published_once_for_the_open_request_only() -> None:
    frames = Frames()
    one = fold()
    fold_all(paused(frames), one)
    other = frames.event("lifecycle.paused", reason="approval_required", approval_id="other")
    assert fold_all([other], one) == []
    right = frames.event(
        "lifecycle.paused", reason="approval_required", approval_id=one.approval_id
    )
    again = frames.event(
        "lifecycle.paused", reason="approval_required", approval_id=one.approval_id
    )
    assert types(fold_all([right, again], one)) == ["lifecycle.paused"]


def escalated(frames: Frames, approval_id: str | None, step: object) -> RawFrame:
    to = {"roles": ["leads"], "users": []}
    return frames.event("approval.escalated", approval_id=approval_id, step=step, to=to)


@pytest.mark.parametrize("ending", ["approval.expired", "approval.decided"])
def test_escalations_are_taken_once_with_rising_steps_until_the_approval_ends(ending: str) -> None:
    frames, one = Frames(), fold()
    assert fold_all([frames.open(), escalated(frames, None, 1)], one)[1:] == []
    frames, one = Frames(), fold()
    fold_all(paused(frames), one)
    asked = one.approval_id
    steps = [escalated(frames, asked, step) for step in (1, 1, 3, 2, 3, None, "4")]
    others = [escalated(frames, "other", 4)]
    over = [frames.event(ending, approval_id=asked), escalated(frames, asked, 4)]
    told = fold_all([*steps, *others, *over], one)
    assert [(e.type, e.data.get("step")) for e in told] == [
        ("approval.escalated", 1),
        ("approval.escalated", 3),
        (ending, None),
    ]
    resumed = [frames.open_next(asked or "", t1="approve"), escalated(frames, asked, 5)]
    assert "approval.escalated" not in types(fold_all(resumed, one))


def test_escalations_and_reminders_have_one_order() -> None:
    frames, one = Frames(), fold()
    fold_all(paused(frames), one)
    asked = one.approval_id
    at = "2025-12-31T11:00:00.000Z"
    steps = [escalated(frames, asked, 1)]
    for step in (2, 2, 1):
        steps.append(frames.event("approval.reminded", approval_id=asked, step=step, expires_at=at))
    told = fold_all([*steps, escalated(frames, asked, 2)], one)
    assert [(e.type, e.data["step"]) for e in told] == [
        ("approval.escalated", 1),
        ("approval.reminded", 2),
    ]


def test_a_snapshot_has_the_escalations_and_may_be_of_a_release_without_them() -> None:
    frames, one = Frames(), fold()
    fold_all(paused(frames), one)
    fold_all([escalated(frames, one.approval_id, 1)], one)
    state = one.snapshot()
    older = {name: value for name, value in state.items() if name not in ("escalated", "expired")}
    again = escalated(frames, one.approval_id, 1)
    for snapshot, expected in ((state, []), (older, ["approval.escalated"])):
        restored = fold()
        restored.restore(json.loads(json.dumps(snapshot)))
        assert types(fold_all([again], restored)) == expected


def test_a_decision_resumes_the_run_in_its_next_leg() -> None:
    frames = Frames()
    one = fold()
    fold_all(paused(frames), one)
    approval_id = one.approval_id or ""
    events = fold_all(
        [
            frames.event("lifecycle.paused", approval_id=approval_id),
            frames.event("approval.decided", approval_id=approval_id, outcome="approved"),
            frames.open_next(approval_id, t1="approve"),
            frames.bytes(agno_approved()),
            frames.end(),
        ],
        one,
    )
    assert types(events) == [
        "lifecycle.paused",
        "approval.decided",
        "lifecycle.resumed",
        "llm.tool_progress",
        "llm.tool_result",
        "llm.message_started",
        "llm.stream",
        "llm.message_completed",
        "lifecycle.completed",
    ]
    assert {body(event)["leg"] for event in events[:2]} == {1}
    assert {body(event)["leg"] for event in events[2:]} == {2}


def test_resumed_is_not_published_when_no_person_was_asked() -> None:
    frames = Frames()
    one = fold()
    fold_all(paused(frames), one)
    events = fold_all([frames.open_next(one.approval_id or "", t1="approve")], one)
    assert "lifecycle.resumed" not in types(events)


def test_a_leg_that_nobody_waits_for_is_not_opened() -> None:
    frames = Frames()
    one = fold()
    fold_all([frames.open(), frames.bytes(agno("RunStarted"))], one)
    assert fold_all([frames.open_next("any")], one) == []


def test_the_first_end_wins_and_only_an_epilogue_follows() -> None:
    frames = Frames()
    events = fold_all(
        [
            frames.open(),
            frames.event("lifecycle.cancelled", "edge", reason="user_stop", confirmed=False),
            frames.bytes(agno_text("too late")),
            frames.end(),
            frames.lost(),
            frames.event("automation.triggered", "automations", automation="a"),
            frames.event("approval.withdrawn", approval_id="x", reason="ended"),
            frames.event("system.warning", message="late", code="late"),
        ]
    )
    assert types(events) == [
        "lifecycle.started",
        "lifecycle.cancelled",
        "automation.triggered",
        "approval.withdrawn",
    ]


def test_what_is_open_is_closed_before_the_end_is_said() -> None:
    frames = Frames()
    events = fold_all(
        [
            frames.open(),
            frames.bytes(agno("RunStarted") + agno("RunContent", content="half a ")),
            frames.event("lifecycle.cancelled", "edge", reason="user_stop", confirmed=False),
        ]
    )
    assert types(events)[-2:] == ["llm.message_completed", "lifecycle.cancelled"]


def test_an_event_that_comes_before_the_start_waits_for_it() -> None:
    frames = Frames()
    early = frames.event("lifecycle.cancelled", "edge", reason="user_stop", confirmed=False)
    events = fold_all([early, frames.open(), frames.bytes(agno_text("x"))])
    assert types(events) == ["lifecycle.started", "lifecycle.cancelled"]


def test_a_lost_upstream_ends_with_its_own_words() -> None:
    frames = Frames()
    facts = {"status_code": 503, "detail": "overloaded"}
    events = fold_all([frames.open(), frames.lost("upstream_http", "answered 503", **facts)])
    assert events[-1].type == "lifecycle.failed"
    assert events[-1].data == {"code": "upstream_http", "error": "answered 503", **facts}


@pytest.mark.parametrize(
    ("content", "code"),
    [
        (b"data: {half", "upstream_lost"),
        (agno("RunStarted") + b"event: RunContent\ndata: {", "upstream_lost"),
        (b"garbage\r\n\r\n\xff\xfe\n\n", "upstream_lost"),
        (b"data: " + b"x" * 5000, "limit"),
        (b"", "upstream_lost"),
    ],
)
def test_a_body_that_makes_no_sense_ends_in_a_clear_event(content: bytes, code: str) -> None:
    frames = Frames()
    events = fold_all([frames.open(), frames.bytes(content), frames.end()], fold(4096))
    assert events[-1].type == "lifecycle.failed"
    assert events[-1].data["code"] == code


def test_what_came_before_a_frame_that_is_too_large_is_kept() -> None:
    frames = Frames()
    content = agno("RunStarted") + agno("RunContent", content="kept") + b"data: " + b"x" * 5000
    events = fold_all([frames.open(), frames.bytes(content)], fold(4096))
    assert "llm.stream" in types(events)
    assert events[-1].data["code"] == "limit"


def test_a_stream_that_is_attached_again_does_not_join_with_the_cut_one() -> None:
    frames = Frames()
    opened = frames.open()
    cut = frames.bytes(agno("RunStarted") + b"event: RunContent\ndata: {cut")
    frames.connection = "pod/1.1"
    rest = frames.bytes(agno_text("whole").removeprefix(agno("RunStarted")))
    events = fold_all([opened, cut, rest, frames.end()])
    assert events[-1].type == "lifecycle.completed"
    assert events[-1].data["summary"] == "whole"


def test_parts_are_one_frame() -> None:
    whole = agno_text("in", " parts")
    frames = Frames()
    opened = frames.open()
    third = len(whole) // 3
    parts = [frames.frame("part", piece) for piece in (whole[:third], whole[third:])]
    for number, part in enumerate(parts, 1):
        part.part = (number, 2)
    events = fold_all([opened, *parts, frames.end()])
    assert events[-1].data["summary"] == "in parts"


def test_times_never_run_backwards() -> None:
    frames = Frames()
    opened = frames.open()
    early = frames.bytes(agno_text("x"))
    early.received = "2020-01-01T00:00:00.000Z"
    events = fold_all([opened, early])
    assert {body(event)["timestamp"] for event in events} == {opened.received}


def test_a_frame_that_was_fed_before_gives_nothing() -> None:
    frames = Frames()
    one = fold()
    opened = frames.open()
    assert fold_all([opened, opened], one) == fold_all([opened], fold())


def test_a_fold_continues_from_the_snapshot_of_its_pause() -> None:
    frames = Frames()
    whole = fold()
    fold_all(paused(frames), whole)
    restored = fold()
    restored.restore(json.loads(json.dumps(whole.snapshot())))
    rest = [
        frames.event("lifecycle.paused", approval_id=whole.approval_id),
        frames.open_next(whole.approval_id or "", t1="reject"),
        frames.bytes(agno("RunContinued") + agno_text("fine")),
        frames.end(),
    ]
    expected = fold_all(rest, whole)
    assert fold_all(rest, restored) == expected
    assert [e.data["outcome"] for e in expected if e.type == "llm.tool_result"] == ["rejected"]


class _Broken:
    """A decoder that raises an error."""

    def __init__(self, facts: AgentFacts) -> None:
        self.facts = facts

    def open(self, leg: int) -> list[Draft]:
        return []

    def decided(self, items: object) -> list[Draft]:
        return []

    def feed(self, frame: Frame) -> list[Draft]:
        if frame.data == b"deep":
            nested: Any = "x"
            for _ in range(2000):
                nested = [nested]
            return [Draft("custom.event", {"protocol": "x", "name": "deep", "value": nested})]
        raise RuntimeError("a bug")

    def end(self) -> list[Draft]:
        return [Draft("lifecycle.completed", {"summary": ""})]

    def abort(self) -> list[Draft]:
        return []

    def snapshot(self) -> dict[str, Any]:
        return {}

    def restore(self, state: dict[str, Any]) -> None: ...


def test_a_decoder_that_raises_ends_its_run_and_says_so() -> None:
    frames = Frames("broken")
    one = RunFold(RUN_ID, {"broken": _Broken})
    events = fold_all([frames.open(), frames.bytes(b"data: x\n\n"), frames.end()], one)
    assert types(events) == ["lifecycle.started", "lifecycle.failed"]
    assert events[-1].data["code"] == "internal"
    assert "a bug" in events[-1].data["error"]


def test_an_event_that_is_no_json_is_replaced_by_an_error() -> None:
    frames = Frames("broken")
    one = RunFold(RUN_ID, {"broken": _Broken})
    events = fold_all([frames.open(), frames.bytes(b"data: deep\n\n"), frames.end()], one)
    assert types(events) == ["lifecycle.started", "system.error", "lifecycle.completed"]
    assert [event.sequence for event in events] == [1, 2, 3]


_CONTENT = st.one_of(
    st.binary(max_size=60),
    st.sampled_from(
        [
            agno_text("a", "b"),
            agno_pause(),
            agno_approved(),
            agno("RunError", content="no"),
            agno("RunCancelled", reason="r"),
            agno("RunContent", content="more"),
        ]
    ),
)
_STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("bytes"), _CONTENT),
        st.tuples(st.sampled_from(["open", "open_next", "end", "cancelled", "lost"]), st.none()),
        st.tuples(
            st.just("event"),
            st.sampled_from(
                [
                    "lifecycle.paused",
                    "lifecycle.cancelled",
                    "lifecycle.completed",
                    "approval.decided",
                    "approval.withdrawn",
                    "automation.triggered",
                    "llm.stream",
                    "nonsense",
                ]
            ),
        ),
    ),
    max_size=20,
)


@given(_STEPS)
def test_whatever_comes_a_run_has_one_order_and_at_most_one_end(
    steps: list[tuple[str, Any]],
) -> None:
    frames = Frames()
    one = fold(4096)
    raw: list[RawFrame] = []
    events: list[CanonicalEvent] = []
    for kind, what in steps:
        match kind:
            case "bytes":
                frame = frames.bytes(what)
            case "open_next":
                frame = frames.open_next(one.approval_id or "none", t1="approve")
            case "cancelled":
                frame = frames.end("cancelled", by="u")
            case "event":
                frame = frames.event(what, approval_id=one.approval_id, reason="r")
            case _:
                frame = getattr(frames, kind)()
        raw.append(copy.copy(frame))
        events += one.feed(frame)
        assert one.error is None
    assert [event.sequence for event in events] == list(range(1, len(events) + 1))
    said = types(events)
    assert said[:1] in ([], ["lifecycle.started"])
    ends = [at for at, name in enumerate(said) if name in TERMINAL]
    assert len(ends) <= 1
    if ends:
        assert all(is_epilogue(name) for name in said[ends[0] + 1 :])
    assert fold_all(raw, fold(4096)) == events


def test_each_event_of_a_workflow_step_names_the_workflow_run_and_the_step() -> None:
    child: dict[str, Any] = {"parent_run_id": "parent", "step_id": "step_lint", "workflow_depth": 1}
    frames = Frames(**child)
    events = fold_all([frames.open(), frames.bytes(agno_text("fine")), frames.end()])
    assert all(child.items() <= body(event).items() for event in events)
    other = Frames(parent_run_id="parent")
    for event in fold_all([other.open(), other.bytes(agno_text("fine")), other.end()]):
        assert body(event)["parent_run_id"] == "parent"
        assert body(event).keys().isdisjoint({"step_id", "workflow_depth"})


def test_a_step_of_the_agent_servers_own_workflow_keeps_its_id() -> None:
    frames = Frames(kind="workflow", parent_run_id="parent", step_id="step_lint", workflow_depth=1)
    step = {"step_id": "inner", "step_name": "Inner", "step_index": 0, "workflow_name": "Own"}
    started = agno("WorkflowStarted", workflow_name="Own"), agno("StepStarted", **step)
    events = fold_all([frames.open(), frames.bytes(b"".join(started))])
    ids = {event.type: body(event)["step_id"] for event in events}
    assert ids["lifecycle.started"] == "step_lint"
    assert ids["workflow.step_started"] == "inner"
