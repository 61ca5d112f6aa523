"""The checks find each kind of defect, and nothing in a correct run."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from penstock.dialects.decoders import DECODERS
from penstock_normalizer.fold.run_fold import RunFold
from support.chaos import wire
from support.chaos.checker import (
    CHECKS,
    POD_TTL_S,
    Harm,
    Hurt,
    check_remains,
    check_run,
    outcome_of,
    reattached,
)
from support.chaos.evidence import Answer, Evidence, RawFrame, Remains, View
from support.chaos.plans import Plan
from support.chaos.recorder import Exchange
from support.fakes.raw import RUN_ID, Frames, agno, agno_approved, agno_pause, agno_text

KILLED = 4711
CONNECTION = f"connector-host-{KILLED}-abcdef/1"
SUCCESSOR = "connector-host-4712-abcdef/1"
OPENED_S, LOST_S = 1000.0, 1020.0  # of the run whose upstream is lost
HARM = Harm([Hurt(KILLED, 1003.0, 1003.0)])
PAUSE, APPROVED = agno_pause(), agno_approved()
APPROVAL = "0d0fa0c4-0000-5000-8000-000000000000"


def evidence(plan: Plan, feed: Callable[[Frames, RunFold], Any], *legs: bytes) -> Evidence:
    """Return the evidence of a correct run with these source frames and upstream bodies."""
    frames, fold = Frames(plan.agent), RunFold(RUN_ID, DECODERS)
    frames.connection = CONNECTION
    bodies, raw = [], []
    for frame in feed(frames, fold):
        at = LOST_S if frame.kind == "lost" else OPENED_S
        raw.append(
            RawFrame(frame.writer, frame.kind, frame.leg, frame.connection, frame.payload, at)
        )
        bodies += [placed.body for placed in fold.feed(frame)]
    requests = [
        ("start" if number == 0 else "continue", exchange(body)) for number, body in enumerate(legs)
    ]
    seen = [json.loads(body) for body in bodies]
    view = View(seen, [f"{n}-0" for n in range(1, len(seen) + 1)], finished=True)
    run = Evidence(plan, RUN_ID, bodies, list(bodies), raw, requests, [view])  # type: ignore[arg-type]
    run.status = outcome_of(run).partition(" ")[0]
    return run


def exchange(body: bytes, ended: Any = "whole", path: str = "/agents/demo-agent/runs") -> Exchange:
    return Exchange("POST", path, b"", 200, bytearray(body), ended)


def plan(**fields: Any) -> Plan:
    return Plan("1", 7, "agno", "text", "s-1", **fields)


def approved() -> Evidence:
    def feed(frames: Frames, fold: RunFold) -> Any:
        yield frames.open()
        yield frames.bytes(PAUSE[:100])
        yield frames.bytes(PAUSE[100:])
        yield frames.end()
        approval_id = str(fold.approval_id)
        yield frames.event("lifecycle.paused", approval_id=approval_id, reason="approval_required")
        decided: dict[str, Any] = {
            "approval_id": approval_id,
            "outcome": "approved",
            "by": "ada",
            "items": [],
        }
        yield frames.event("approval.decided", **decided)
        yield frames.open_next(approval_id, t1="approve")
        yield frames.bytes(APPROVED)
        yield frames.end()

    run = evidence(plan(decision="approve"), feed, PAUSE, APPROVED)
    run.tool_runs = 1
    run.decisions = [Answer("approve", None), Answer("approve", 200), Answer("approve", 409)]
    return run


def lost() -> Evidence:
    """Return a run whose connector was killed, and whose answer was cut."""
    body = agno_text("Hello", " world")

    def feed(frames: Frames, fold: RunFold) -> Any:
        yield frames.open()
        yield frames.bytes(body[:-40])
        yield frames.lost()

    run = evidence(plan(), feed, body)
    run.exchanges[0][1].ended = "client left"
    return run


def waiting() -> Evidence:
    """Return a run that stays paused."""

    def feed(frames: Frames, fold: RunFold) -> Any:
        yield frames.open()
        yield frames.bytes(PAUSE)
        yield frames.end()
        yield frames.event("lifecycle.paused", approval_id=str(fold.approval_id), reason="x")

    return evidence(plan(decision="none"), feed, PAUSE)


def cancelled() -> Evidence:
    body = agno_text("one", "two")

    def feed(frames: Frames, fold: RunFold) -> Any:
        yield frames.open()
        yield frames.bytes(body[:-40])
        yield frames.end("cancelled", reason="user_stop", by="ada", confirmed=True)

    run = evidence(plan(cancel_after=3), feed, body[:-40])
    run.exchanges[0][1].ended = "client left"
    run.cancels = [Answer("cancel", 200)]
    return run


@pytest.mark.parametrize(
    ("run", "outcome"),
    [
        (approved(), "completed"),
        (lost(), "failed (upstream_lost)"),
        (waiting(), "paused"),
        (cancelled(), "cancelled"),
    ],
)
def test_nothing_is_found_in_a_run_that_went_as_it_should(run: Evidence, outcome: str) -> None:
    assert check_run(run, HARM) == []
    assert outcome_of(run) == outcome


def changed(body: bytes, **fields: Any) -> bytes:
    return json.dumps(json.loads(body) | fields).encode()


def twice(run: Evidence) -> None:
    run.bodies.insert(3, run.bodies[3])


def left_out(run: Evidence) -> None:
    del run.bodies[4]


def later_than_the_next(run: Evidence) -> None:
    run.bodies[2] = changed(run.bodies[2], timestamp="2027-01-01T00:00:00.000Z")


def of_another_run(run: Evidence) -> None:
    run.bodies[2] = changed(run.bodies[2], run_id="another")


def without_its_start(run: Evidence) -> None:
    run.bodies = [changed(body, sequence=n) for n, body in enumerate(run.bodies[1:], 1)]


def started_twice(run: Evidence) -> None:
    run.bodies.append(changed(run.bodies[0], sequence=len(run.bodies) + 1))


def ended_twice(run: Evidence) -> None:
    run.bodies.append(changed(run.bodies[-1], sequence=len(run.bodies) + 1))


def text_after_the_end(run: Evidence) -> None:
    text = next(body for body in run.bodies if b'"action":"stream"' in body)
    run.bodies.append(changed(text, sequence=len(run.bodies) + 1))


def without_an_end(run: Evidence) -> None:
    del run.bodies[-1]


def seen_with_a_gap(run: Evidence) -> None:
    del run.views[0].seen[5]


def seen_twice(run: Evidence) -> None:
    run.views[0].seen.insert(5, run.views[0].seen[5])


def seen_out_of_order(run: Evidence) -> None:
    seen = run.views[0].seen
    seen[4], seen[5] = seen[5], seen[4]


def seen_otherwise(run: Evidence) -> None:
    run.views[0].seen[3] = run.views[0].seen[3] | {"data": {}}


def never_seen_to_its_end(run: Evidence) -> None:
    run.views[0].finished = False


def met_a_404(run: Evidence) -> None:
    run.views[0].odd.append("404")


def one_cursor_twice(run: Evidence) -> None:
    run.views[0].cursors[1] = run.views[0].cursors[0]


def a_byte_missing_in_raw(run: Evidence) -> None:
    run.frames[2] = replace(run.frames[2], payload=run.frames[2].payload[1:])


def a_byte_of_another(run: Evidence) -> None:
    run.frames[2] = replace(run.frames[2], payload=b"x" + run.frames[2].payload[1:])


def bytes_twice_in_raw(run: Evidence) -> None:
    run.frames.insert(2, run.frames[2])


def an_end_before_all_was_there(run: Evidence) -> None:
    run.frames[-2] = replace(run.frames[-2], payload=APPROVED[:-30])


def bytes_that_nobody_sent(run: Evidence) -> None:
    run.exchanges.clear()


def a_second_start(run: Evidence) -> None:
    run.exchanges.insert(0, ("start", exchange(b"")))


def a_second_decision(run: Evidence) -> None:
    run.exchanges.append(("continue", exchange(b"")))


def another_run_for_its_key(run: Evidence) -> None:
    run.other_ids = {"another"}


def other_words(run: Evidence) -> None:
    run.bodies = [body.replace(b'"content":"Done."', b'"content":"Gone."') for body in run.bodies]
    run.folded = run.bodies
    run.views = []


def other_arguments(run: Evidence) -> None:
    run.bodies = run.folded = [body.replace(b'"/x"', b'"/y"') for body in run.bodies]
    run.views = []


def a_result_too_many(run: Evidence) -> None:
    run.bodies = run.folded = [
        changed(body, event={"category": "llm", "action": "tool_result"}, data={"outcome": "ok"})
        if b"tool_progress" in body
        else body
        for body in run.bodies
    ]
    run.views = []


def another_content(run: Evidence) -> None:
    run.folded[4] = changed(run.folded[4], data={"more": 1})


def its_tool_ran_twice(run: Evidence) -> None:
    run.tool_runs = 2


def its_tool_never_ran(run: Evidence) -> None:
    run.tool_runs = 0


def two_decisions_won(run: Evidence) -> None:
    run.decisions = [Answer("approve", 200), Answer("reject", 200)]


def the_other_decision_won(run: Evidence) -> None:
    run.decisions = [Answer("reject", 200), Answer("approve", 409)]


def no_decision_won(run: Evidence) -> None:
    run.decisions = [Answer("reject", 409), Answer("approve", 409)]


def a_decision_was_refused(run: Evidence) -> None:
    run.decisions = [Answer("approve", 404), Answer("approve", 200)]


def cancelled_in_words_only(run: Evidence) -> None:
    run.cancels = [Answer("cancel", 200)]


def listed_otherwise(run: Evidence) -> None:
    run.status = "running"


@pytest.mark.parametrize(
    ("wrong", "check"),
    [
        (twice, "numbers"),
        (left_out, "numbers"),
        (later_than_the_next, "numbers"),
        (of_another_run, "numbers"),
        (without_its_start, "start"),
        (started_twice, "start"),
        (ended_twice, "end"),
        (text_after_the_end, "end"),
        (without_an_end, "end"),
        (seen_with_a_gap, "views"),
        (seen_twice, "views"),
        (seen_out_of_order, "views"),
        (seen_otherwise, "views"),
        (never_seen_to_its_end, "views"),
        (met_a_404, "views"),
        (one_cursor_twice, "views"),
        (a_byte_missing_in_raw, "bytes"),
        (a_byte_of_another, "bytes"),
        (bytes_twice_in_raw, "bytes"),
        (an_end_before_all_was_there, "bytes"),
        (bytes_that_nobody_sent, "bytes"),
        (a_second_start, "at most once"),
        (a_second_decision, "at most once"),
        (another_run_for_its_key, "at most once"),
        (other_words, "words"),
        (other_arguments, "words"),
        (a_result_too_many, "words"),
        (another_content, "content"),
        (its_tool_ran_twice, "tools"),
        (its_tool_never_ran, "tools"),
        (two_decisions_won, "decision"),
        (the_other_decision_won, "decision"),
        (no_decision_won, "decision"),
        (a_decision_was_refused, "decision"),
        (cancelled_in_words_only, "outcome"),
        (listed_otherwise, "outcome"),
    ],
)
def test_what_is_wrong_with_a_run_is_found(wrong: Callable[[Evidence], None], check: str) -> None:
    run = approved()
    wrong(run)
    assert check in {violation.check for violation in check_run(run, HARM)}


# The defects of a run that was only slow. All other defects are faults on any machine.
LATE = {"without_an_end", "never_seen_to_its_end", "listed_otherwise"}


def not_written_yet(run: Evidence) -> None:
    """Remove the last events, as if the normalizer and the clients were not done."""
    del run.bodies[-6:]
    run.views[0].seen = run.events
    del run.views[0].cursors[-6:]
    run.views[0].finished = False
    run.status = "running"


def test_what_only_takes_longer_is_late_and_what_is_wrong_is_not() -> None:
    (parameters,) = test_what_is_wrong_with_a_run_is_found.pytestmark  # type: ignore[attr-defined]
    for wrong, check in parameters.args[1]:
        run = approved()
        wrong(run)
        found = [violation for violation in check_run(run, HARM) if violation.check == check]
        is_late = all(violation.late for violation in found)
        assert is_late == (wrong.__name__ in LATE), f"{wrong.__name__}: {found}"


def test_a_run_that_is_only_behind_has_no_other_content_and_no_other_words() -> None:
    run = approved()
    not_written_yet(run)
    found = check_run(run, HARM)
    assert {violation.check for violation in found} >= {"end", "views", "content"}
    assert all(violation.late for violation in found), found
    run.bodies[3] = changed(run.bodies[3], data={})
    assert "content" in {
        violation.check for violation in check_run(run, HARM) if not violation.late
    }


def test_a_run_that_was_there_when_a_stream_lost_its_end_may_end_with_that() -> None:
    run = lost()
    run.bodies[-1] = changed(run.bodies[-1], data={"code": "history_lost", "error": "x"})
    assert {"outcome", "content"} <= {violation.check for violation in check_run(run, HARM)}
    run.loses = frozenset({"RAW"})
    assert check_run(run, HARM) == []
    a_second_start(run)
    assert [violation.check for violation in check_run(run, HARM)] == ["at most once"]


def test_every_check_is_shown_to_find_something() -> None:
    (parameters,) = test_what_is_wrong_with_a_run_is_found.pytestmark  # type: ignore[attr-defined]
    shown_elsewhere = {"reason", "gone on", "deliveries"}
    assert {check for _, check in parameters.args[1]} | shown_elsewhere == set(CHECKS)


def found(run: Evidence, *hurts: Hurt) -> set[str]:
    return {violation.check for violation in check_run(run, Harm(hurts))}


def test_an_upstream_that_nobody_hurt_may_not_be_lost() -> None:
    run = lost()
    assert "reason" in found(run)
    run.exchanges[0][1].ended = "cut"
    assert found(run) == set()


@pytest.mark.parametrize(
    "hurt",
    [
        Hurt(KILLED, OPENED_S + 5, OPENED_S + 5),
        Hurt(KILLED, OPENED_S - 30, OPENED_S + 1),
        Hurt(KILLED, OPENED_S - 20, OPENED_S - POD_TTL_S + 1),
        Hurt(KILLED, LOST_S - 1, float("inf")),
        Hurt(None, OPENED_S + 1, OPENED_S + 17),
    ],
    ids=["in its time", "until its time", "a lease before", "still", "a broker"],
)
def test_an_upstream_may_be_lost_where_its_connector_was_hurt_meanwhile(hurt: Hurt) -> None:
    assert found(lost(), hurt) == set()


@pytest.mark.parametrize(
    "hurt",
    [
        Hurt(KILLED, OPENED_S - 60, OPENED_S - POD_TTL_S - 1),
        Hurt(KILLED, LOST_S + 1, LOST_S + 2),
        Hurt(4713, OPENED_S + 5, OPENED_S + 6),
    ],
    ids=["long before", "after it was lost", "another process"],
)
def test_harm_at_another_time_is_no_reason_for_a_loss(hurt: Hurt) -> None:
    assert found(lost(), hurt) == {"reason"}


def numbered(count: int, first: int = 0) -> bytes:
    """Return events of an Agno 3 server, which numbers them."""
    return b"".join(
        agno("RunStarted" if n == 0 else "RunContent", content="x", event_index=n)
        for n in range(first, first + count)
    )


def abandoned(body: bytes, plan: Plan, code: str = "upstream_lost") -> Evidence:
    """Return a run whose connector was killed after the server had sent this body."""

    def feed(frames: Frames, fold: RunFold) -> Any:
        yield frames.open()
        if body:
            yield frames.bytes(body)
        frames.connection = SUCCESSOR
        yield frames.frame("claim", b'{"calls":false}')
        yield frames.lost(code)

    run = evidence(plan, feed, body)
    run.exchanges[0][1].ended = "client left"
    return run


def test_a_run_that_took_longer_than_its_agent_may_is_late() -> None:
    found = check_run(abandoned(b"", plan(), "timeout"), HARM)
    assert {(violation.check, violation.late) for violation in found} == {("outcome", True)}


@pytest.mark.parametrize("code", ["upstream_lost", "outcome_unknown"])
def test_what_agno_keeps_is_gone_on_with_and_not_given_up(code: str) -> None:
    run = abandoned(numbered(40), plan(), code)
    assert "gone on" in {violation.check for violation in check_run(run, HARM)}
    run.exchanges[0][1].ended = "cut"  # after one cut, its own connector reconnects
    assert "gone on" in {violation.check for violation in check_run(run, HARM)}


def test_what_agno_does_not_keep_may_be_given_up() -> None:
    of_adk = replace(abandoned(numbered(40), plan()), plan=replace(plan(), agent="adk"))
    cut_often = abandoned(numbered(40), plan())
    cut_often.exchanges[0][1].ended = "cut"
    cut_often.exchanges.append(("resume", exchange(b"", "cut")))
    nothing_came = abandoned(b"", plan(), "outcome_unknown")
    forgotten = abandoned(numbered(30, first=980), plan())
    for run in (of_adk, cut_often, nothing_came, forgotten):
        assert not list(CHECKS["gone on"](run, HARM))


def test_a_leg_has_been_gone_on_with_when_two_processes_wrote_its_bytes() -> None:
    def feed(frames: Frames, fold: RunFold) -> Any:
        yield frames.open()
        yield frames.bytes(numbered(3))
        frames.connection = SUCCESSOR
        yield frames.frame("claim", b'{"calls":false}')
        yield frames.bytes(numbered(3, first=3))
        yield frames.end()

    assert reattached(evidence(plan(), feed, numbered(6))) == 1
    assert [reattached(run) for run in (approved(), abandoned(numbered(3), plan()))] == [0, 0]


def test_a_run_that_waits_is_not_to_end() -> None:
    run = replace(waiting(), plan=plan(decision="approve"))
    assert "end" in {violation.check for violation in check_run(run, Harm())}
    run = replace(approved(), plan=plan(decision="none"))
    assert "outcome" in {violation.check for violation in check_run(run, Harm())}


def test_a_tool_that_was_rejected_may_not_have_run() -> None:
    run = waiting()
    run.tool_runs = 1
    assert "tools" in {violation.check for violation in check_run(run, Harm())}


def test_a_leg_may_have_come_by_several_connections() -> None:
    body = agno_text("Hello", " world")
    half = body.index(b"event: RunContent", 400)

    def feed(frames: Frames, fold: RunFold) -> Any:
        yield frames.open()
        yield frames.bytes(body[: half + 9])
        frames.connection = f"{CONNECTION}.1"
        yield frames.bytes(body[half:])
        yield frames.end()

    run = evidence(plan(), feed, body)
    run.exchanges[0][1].ended = "cut"
    resumed = exchange(body[half:], path=f"/agents/demo-agent/runs/{RUN_ID}/resume")
    run.exchanges.append(("resume", resumed))
    assert check_run(run, Harm()) == []
    run.exchanges.pop()
    assert "bytes" in {violation.check for violation in check_run(run, Harm())}


def test_whatever_is_left_is_found() -> None:
    assert check_remains(Remains()) == []
    left = Remains(commands=["command.connector.start.x"], strangers=["y"])
    assert [str(violation) for violation in check_remains(left)] == [
        "commands: : command.connector.start.x",
        "strangers: : y",
    ]


def test_half_a_frame_is_none() -> None:
    assert wire.frames(b"id: 1\nevent: a\ndata: x\ndata: y\n\n: comment\n\ndata: z\n") == [
        wire.Sse("1", "a", "x\ny")
    ]


def test_what_adk_says_is_read_once() -> None:
    def frame(*parts: Any, **fields: Any) -> bytes:
        return b"data: " + json.dumps({"content": {"parts": parts}, **fields}).encode() + b"\n\n"

    call = {"functionCall": {"id": "c1", "name": "weather", "args": {"city": "Rome"}}}
    answer = {"functionResponse": {"id": "c1", "name": "weather", "response": {"sky": "clear"}}}
    body = b"".join(
        [
            frame({"text": "Let "}, partial=True),
            frame({"text": "me see"}, partial=True),
            frame(call, partial=True),
            frame({"text": "Let me see"}, call, partial=False),
            frame(answer),
        ]
    )
    assert wire.adk([[body]]) == wire.Said("Let me see", [("weather", '{"city": "Rome"}')], 1)


def test_what_ag_ui_says_is_read_over_both_legs() -> None:
    def frames(*events: Any) -> bytes:
        return b"".join(b"data: " + json.dumps(event).encode() + b"\n\n" for event in events)

    call = {"toolCallId": "c1"}
    asks = frames(
        {"type": "TEXT_MESSAGE_CONTENT", "delta": "Let "},
        {"type": "TOOL_CALL_START", "toolCallName": "delete", **call},
        {"type": "TOOL_CALL_ARGS", "delta": '{"path": ', **call},
        {"type": "TOOL_CALL_ARGS", "delta": '"/x"}', **call},
        {"type": "TOOL_CALL_END", **call},
        {"type": "RUN_FINISHED", "outcome": {"type": "interrupt"}},
    )
    said = wire.Said("Let ", [("delete", '{"path": "/x"}')], 0, "paused")
    assert wire.agui([[asks]]) == said
    goes_on = frames(
        {"type": "TOOL_CALL_RESULT", "content": "gone", **call},
        {"type": "TEXT_MESSAGE_CONTENT", "delta": "me."},
        {"type": "RUN_FINISHED"},
    )
    assert wire.agui([[asks], [goes_on]]) == wire.Said("Let me.", said.calls, 1, "completed")
