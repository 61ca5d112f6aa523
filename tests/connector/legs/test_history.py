"""LegHistory reads from RAW whether a leg's upstream was called, how far it came, and how long."""

from __future__ import annotations

import json
from dataclasses import replace
from datetime import datetime, timedelta
from typing import Any

import httpx
import pytest

from penstock.bus.messages import RawFrame
from penstock.sse import Frame
from penstock_connector.legs.progress import LegHistory
from penstock_connector.state.leg_record import LegRecord
from penstock_connector.upstreams.agno import AgnoUpstream
from penstock_connector.upstreams.base import ReattachState
from support.fakes.raw import Frames, agno


def past(*frames: RawFrame, leg: int = 1) -> LegHistory:
    made = LegHistory(leg, AgnoUpstream(httpx.AsyncClient()).watch, 1024 * 1024)
    for frame in frames:
        made.feed(frame, frame.received)
    return made


def spent_s(made: LegHistory, begun: datetime, later_s: float) -> float:
    made.taken((begun + timedelta(seconds=later_s)).isoformat())
    return made.spent_s


def claim(frames: Frames, **facts: Any) -> RawFrame:
    return frames.frame("claim", json.dumps(facts).encode())


def test_a_connector_that_has_opened_a_leg_may_have_called_the_server() -> None:
    frames = Frames()
    assert past(frames.open()).may_have_called_server


def test_a_queued_leg_has_not_called_until_its_called_frame() -> None:
    frames = Frames(calls=False)
    opened, handed_over = frames.open(), claim(frames, calls=False)
    assert not past(opened).may_have_called_server
    assert not past(opened, handed_over).may_have_called_server
    assert past(opened, handed_over, claim(frames, calls=True)).may_have_called_server


def test_the_last_event_is_the_last_that_came_whole() -> None:
    frames = Frames()
    first, second = agno("RunStarted", event_index=0), agno("RunContent", event_index=1)
    seen = past(frames.open(), frames.bytes(first + second[:-1])).progress.seen
    assert seen.last_event_index == 0


def test_half_a_frame_is_not_joined_with_another_connections_bytes() -> None:
    frames = Frames()
    opened, half = frames.open(), frames.bytes(agno("RunStarted", event_index=0)[:40])
    frames.connection = "pod/1.1"
    again = frames.bytes(agno("RunStarted", event_index=0))
    assert past(opened, half, again).progress.seen.last_event_index == 0


def test_an_attempt_of_which_nothing_came_is_known() -> None:
    frames = Frames()
    opened, first = frames.open(), frames.bytes(agno("RunStarted"))
    again = claim(frames, calls=True, attempt=2)
    begun = past(opened, first, again).progress
    assert (begun.attempt, begun.attempt_unanswered) == (2, True)
    assert not begun.can_reattach
    answered = past(opened, first, again, frames.bytes(agno("RunContent"))).progress
    assert (answered.attempt, answered.attempt_unanswered) == (2, False)
    assert answered.can_reattach


def test_a_frame_that_breaks_the_adapter_ends_no_takeover_and_forbids_reattaching() -> None:
    """If the exception passed, each connector that takes the leg over would fail on the frame.

    So the leg would never end.
    """

    def breaks(frame: Frame, seen: ReattachState) -> None:
        raise RuntimeError("an adapter's bug")

    frames = Frames()
    history = LegHistory(1, breaks, 1024 * 1024)
    for frame in (frames.open(), frames.bytes(agno("RunStarted", event_index=0))):
        history.feed(frame, frame.received)
    assert history.may_have_called_server
    assert history.progress.answered
    assert not history.progress.can_reattach


def test_other_legs_tell_nothing() -> None:
    frames = Frames()
    first = [frames.open(), frames.bytes(agno("RunStarted", event_index=4)), frames.end()]
    second = past(*first, frames.open_next("a-1"), leg=2)
    assert second.may_have_called_server
    assert not second.progress.answered
    assert second.progress.seen.last_event_index is None


def test_a_leg_whose_open_is_not_found_may_have_called() -> None:
    frames = Frames(calls=False)
    frames.open()
    assert past().may_have_called_server
    assert past(claim(frames, calls=False)).may_have_called_server


def test_an_open_in_parts_is_read_as_a_whole() -> None:
    frames = Frames(calls=False)
    whole = frames.open().payload
    parts = [
        replace(frames.frame("part", piece), part=(number, 2), whole="open")
        for number, piece in enumerate((whole[:9], whole[9:]), 1)
    ]
    assert not past(*parts).may_have_called_server
    assert past(parts[0]).may_have_called_server, "half of it tells nothing"


def test_the_time_of_a_leg_continues_from_its_first_byte_else_from_its_open() -> None:
    frames = Frames()
    opened = frames.open()
    begun = datetime.fromisoformat(opened.received)
    assert spent_s(past(opened), begun, 7) == 7
    came = frames.bytes(agno("RunStarted"))
    begun = datetime.fromisoformat(came.received)
    assert spent_s(past(opened, came), begun, 7) == 7
    assert spent_s(past(Frames(calls=False).open()), begun, 7) == 0


@pytest.mark.parametrize("command", [b'{"run_id":"x"}', b"\n\x00{}\n"])
def test_the_record_of_a_leg_is_read_back_unchanged(command: bytes) -> None:
    noted = LegRecord(2, 17, "continue", command, 41, "a-1", "theirs")
    assert LegRecord.parse(noted.dump()) == noted


def test_what_another_version_notes_besides_is_left_out() -> None:
    noted = b'{"leg":2,"sequence":17,"kind":"start","noted_at":"2026-11-20T10:00:00Z"}\n{}'
    assert LegRecord.parse(noted) == LegRecord(2, 17, "start", b"{}")
