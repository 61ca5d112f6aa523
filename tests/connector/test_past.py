"""What RAW tells of a leg: was its upstream called, how far had it come, how long did it take."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from penstock.bus.messages import RawFrame
from penstock_connector.held import Held
from penstock_connector.past import Past
from penstock_connector.upstreams.agno import AgnoUpstream
from support.raw import Frames, agno


def past(*frames: RawFrame, leg: int = 1) -> Past:
    made = Past(leg, AgnoUpstream().watch, 1024 * 1024)
    for frame in frames:
        made.feed(frame)
    return made


def claim(frames: Frames, **facts: Any) -> RawFrame:
    return frames.frame("claim", json.dumps(facts).encode())


def test_who_opens_a_leg_may_have_called() -> None:
    frames = Frames()
    assert past(frames.open()).called


def test_who_stands_in_a_queue_has_not_called_until_it_says_so() -> None:
    frames = Frames(calls=False)
    opened, handed_over = frames.open(), claim(frames, calls=False)
    assert not past(opened).called
    assert not past(opened, handed_over).called
    assert past(opened, handed_over, claim(frames, calls=True)).called


def test_the_last_event_is_the_last_that_came_whole() -> None:
    frames = Frames()
    first, second = agno("RunStarted", event_index=0), agno("RunContent", event_index=1)
    seen = past(frames.open(), frames.bytes(first + second[:-1])).seen
    assert seen.last_event_index == 0


def test_half_a_frame_is_not_joined_with_another_connections_bytes() -> None:
    frames = Frames()
    opened, half = frames.open(), frames.bytes(agno("RunStarted", event_index=0)[:40])
    frames.connection = "pod/1.1"
    again = frames.bytes(agno("RunStarted", event_index=0))
    assert past(opened, half, again).seen.last_event_index == 0


def test_an_attempt_of_which_nothing_came_is_known() -> None:
    frames = Frames()
    opened, first = frames.open(), frames.bytes(agno("RunStarted"))
    again = claim(frames, calls=True, attempt=2)
    begun = past(opened, first, again)
    assert (begun.attempt, begun.unanswered_attempt) == (2, True)
    answered = past(opened, first, again, frames.bytes(agno("RunContent")))
    assert (answered.attempt, answered.unanswered_attempt) == (2, False)


def test_other_legs_tell_nothing() -> None:
    frames = Frames()
    first = [frames.open(), frames.bytes(agno("RunStarted", event_index=4)), frames.end()]
    second = past(*first, frames.open_next("a-1"), leg=2)
    assert second.called
    assert not second.answered
    assert second.seen.last_event_index is None


def test_the_time_of_a_leg_goes_on_from_its_first_byte_else_from_its_open() -> None:
    frames = Frames()
    opened = frames.open()
    begun = datetime.fromisoformat(opened.received)
    assert past(opened).spent_s(begun + timedelta(seconds=7)) == 7
    came = frames.bytes(agno("RunStarted"))
    begun = datetime.fromisoformat(came.received)
    assert past(opened, came).spent_s(begun + timedelta(seconds=7)) == 7
    assert past(Frames(calls=False).open()).spent_s(datetime.now(UTC)) == 0


@pytest.mark.parametrize("command", [b'{"run_id":"x"}', b"\n\x00{}\n"])
def test_what_is_noted_of_a_leg_comes_back_as_it_was(command: bytes) -> None:
    noted = Held(2, 17, "continue", command, "2026-11-20T10:00:00.000Z", "a-1", "theirs")
    assert Held.parse(noted.dump()) == noted


def test_a_version_that_noted_nothing_is_understood() -> None:
    assert Held.parse(b"{}") is None
