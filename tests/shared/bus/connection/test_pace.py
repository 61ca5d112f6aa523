"""A connection with many live messages rests between reads, but never while an answer is awaited.

The rests of these tests take an hour, so a test would not end if a rest did not end early.
"""

from __future__ import annotations

import asyncio
from typing import cast

import pytest

from penstock.bus import Bus, Incoming
from penstock.bus.connection.wire import Wire
from penstock.busyness import Pace
from support.drive.waiting import eventually

HOUR_S = 3600.0


class Paused:
    """A transport that only counts."""

    def __init__(self) -> None:
        self.is_paused = False

    def set_write_buffer_limits(self, high: int) -> None:
        return

    def is_closing(self) -> bool:
        return False

    def pause_reading(self) -> None:
        assert not self.is_paused
        self.is_paused = True

    def resume_reading(self) -> None:
        assert self.is_paused
        self.is_paused = False


async def resting() -> tuple[Wire, Paused]:
    wire, transport = Wire(), Paused()
    wire.connection_made(cast(asyncio.BaseTransport, transport))
    wire._loop = asyncio.get_running_loop()
    wire.rest(HOUR_S)
    assert transport.is_paused
    return wire, transport


async def test_a_rest_ends_by_itself() -> None:
    wire, transport = await resting()
    wire.end_rest()
    wire.rest(0.001)

    async def is_over() -> bool:
        return not transport.is_paused

    await eventually(is_over)


async def test_a_rest_that_ends_does_not_resume_a_wire_that_is_held() -> None:
    wire, transport = await resting()
    wire.hold()
    wire.end_rest()
    assert transport.is_paused
    wire.release()
    assert not transport.is_paused


async def test_a_lost_connection_ends_the_rest() -> None:
    wire, _ = await resting()
    wire.connection_lost(None)
    wire.rest(HOUR_S)
    assert wire._resting is None


async def heard_with(bus: Bus, subject: str, is_patient: bool) -> list[bytes]:
    heard: list[bytes] = []

    def on_message(message: Incoming) -> None:
        heard.append(message.data)

    await bus.jetstream.listen(subject, on_message, is_patient=is_patient)
    return heard


async def test_an_answer_ends_the_rest_and_comes_at_once(
    bus: Bus, run_id: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    heard = await heard_with(bus, f"test.{run_id}", is_patient=True)
    monkeypatch.setattr(Pace, "wait_s", property(lambda pace: HOUR_S if pace.messages else 0.0))
    wire = bus.client._wire

    async def rests() -> bool:
        return wire._resting is not None

    for number in range(3):
        await bus.client.publish(f"test.{run_id}", b"%d" % number)
        if number == 0:
            await eventually(rests)
        elif number == 1:
            assert heard == [b"0"]
            await bus.jetstream.api("INFO")  # an answer to `expect`
        else:
            await bus.client.flush()  # an answer to a ping
        assert heard == [b"%d" % each for each in range(number + 1)]


async def test_messages_that_are_not_patient_cause_no_rest(
    bus: Bus, run_id: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    heard = await heard_with(bus, f"test.{run_id}", is_patient=False)
    monkeypatch.setattr(Pace, "wait_s", property(lambda pace: HOUR_S if pace.messages else 0.0))
    monkeypatch.setattr(Wire, "rest", lambda wire, rest_s: pytest.fail("it rests"))
    for _ in range(3):
        await bus.client.publish(f"test.{run_id}", b"x")

    async def all_heard() -> bool:
        return len(heard) == 3

    await eventually(all_heard)
