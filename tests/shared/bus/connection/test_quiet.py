"""A process does not wake for an acknowledgement that nobody waits for, and reads it in time.

A quiet connection of these tests listens again after half an hour at the earliest, so a test would
not end if nothing else ended the quiet.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine
from typing import Any

import pytest

from penstock.bus import Bus, BusError, Incoming, Msg, streams, subjects
from penstock.bus.connection import clock, dialing, supervision, wire
from penstock.bus.connection.wire import QUIET_BYTES, Wire
from penstock.bus.state import recovery
from support.drive.bus import connected, event
from support.drive.waiting import eventually

Act = Callable[[Bus, str], Coroutine[Any, Any, object]]
HOUR_S = 3600.0
# what a connection asks NATS by itself, which would end the quiet
ASKS = (
    *((dialing, "PING_S"), (supervision, "PROBE_S"), (clock, "ASK_S")),
    *((recovery, "NOTE_S"), (recovery, "LEARN_S")),
)


@pytest.fixture
async def mine(bus: Bus, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Bus]:
    """A bus that asks nothing by itself, and whose quiet ends after half an hour."""
    for module, name in (*ASKS, (wire, "QUIET_S")):
        monkeypatch.setattr(module, name, HOUR_S)
    async with connected(bus.settings.url) as made:
        yield made


async def posted(bus: Bus, other: Bus, run_id: str) -> list[int | BusError]:
    """Post an event patiently; return the list of its outcome once NATS has acknowledged it."""
    outcomes: list[int | BusError] = []
    assert bus.publisher.post(event(run_id, 1), outcomes.append, HOUR_S, is_patient=True)

    async def is_stored() -> bool:
        return await other.tail(streams.EVENTS, subjects.events_of_run(run_id)) is not None

    await eventually(is_stored)
    return outcomes


async def until_settled(outcomes: list[int | BusError]) -> None:
    async def is_settled() -> bool:
        return bool(outcomes)

    await eventually(is_settled, 10, "the outcome of the event")
    [outcome] = outcomes
    assert isinstance(outcome, int)


async def test_an_acknowledgement_is_read_together_with_the_next_message(
    mine: Bus, bus: Bus, run_id: str
) -> None:
    outcomes_then: list[list[int | BusError]] = []

    def on_message(message: Incoming) -> None:
        outcomes_then.append(outcomes.copy())

    await mine.jetstream.listen(f"test.{run_id}", on_message)
    outcomes = await posted(mine, bus, run_id)
    assert not outcomes
    await bus.client.publish(f"test.{run_id}", bytes(QUIET_BYTES))
    await until_settled(outcomes)

    async def has_come() -> bool:
        return bool(outcomes_then)

    await eventually(has_come)
    assert outcomes_then == [outcomes]


async def _publishes(bus: Bus, run_id: str) -> object:
    return await bus.publisher.publish(event(run_id, 2))


async def _asks(bus: Bus, run_id: str) -> object:
    """The answer and an acknowledgement have too few bytes together to wake a process."""
    return await bus.client.request(f"ask.{run_id}", timeout=10)


async def _pings(bus: Bus, run_id: str) -> object:
    await bus.client.flush()
    return None


@pytest.fixture(params=[_publishes, _asks, _pings])
async def act(bus: Bus, run_id: str, request: pytest.FixtureRequest) -> AsyncIterator[Act]:
    """Something for whose outcome a caller waits."""

    async def answer(asked: Msg) -> None:
        await bus.client.publish(asked.reply)

    answering = await bus.subscribe(f"ask.{run_id}", answer)
    await bus.client.flush()
    yield request.param
    await answering.unsubscribe()


async def test_who_waits_for_something_ends_the_quiet(
    mine: Bus, bus: Bus, run_id: str, act: Act
) -> None:
    outcomes = await posted(mine, bus, run_id)
    assert not outcomes
    async with asyncio.timeout(10):
        await act(mine, run_id)
    await until_settled(outcomes)


async def test_a_patient_message_does_not_delay_what_is_waited_for(
    mine: Bus, run_id: str, act: Act
) -> None:
    outcomes: list[int | BusError] = []
    async with asyncio.timeout(10):
        acting = asyncio.create_task(act(mine, run_id))
        await asyncio.sleep(0)
        assert mine.publisher.post(event(run_id, 1), outcomes.append, HOUR_S, is_patient=True)
        await acting


async def test_the_quiet_ends_by_itself(
    mine: Bus, bus: Bus, run_id: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(wire, "QUIET_S", 0.01)
    await until_settled(await posted(mine, bus, run_id))


async def test_where_the_system_cannot_be_quiet_acknowledgements_come_at_once(
    mine: Bus, bus: Bus, run_id: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Wire, "_wakes_for", lambda *_: False)
    await until_settled(await posted(mine, bus, run_id))
