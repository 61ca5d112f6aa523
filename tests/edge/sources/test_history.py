"""The history of many patterns has each message once and in order, whatever the batches."""

from __future__ import annotations

import pytest

from penstock.bus import Bus, Stored, streams, subjects
from penstock_edge.sources.history import LEAST, History
from support.fakes.pretend import PretendRun

ROUNDS = 3 * LEAST


@pytest.fixture
async def runs(bus: Bus) -> list[PretendRun]:
    """Return runs whose events alternate; the first run has twice as many events."""
    runs = [PretendRun(bus) for _ in range(4)]
    for number in range(ROUNDS):
        for run in (*runs, runs[0]):
            await run.say("llm.stream" if number else "lifecycle.started", content=str(number))
    return runs


def places(runs: list[PretendRun]) -> list[int]:
    return sorted(place for run in runs for place in run.places)


def of(runs: list[PretendRun]) -> list[str]:
    return [subjects.events_of_run(run.run_id) for run in runs]


async def sequences(past: History, floor: int, limit: int) -> list[int]:
    found: list[int] = []
    while batch := await past.before(floor, limit):
        assert len(batch) <= limit
        found += [stored.sequence for stored in batch]
    return found


@pytest.mark.parametrize("limit", [1, 7, 1000])
async def test_many_patterns_are_merged(bus: Bus, runs: list[PretendRun], limit: int) -> None:
    every = places(runs)
    past = History(bus, streams.EVENTS, lambda: of(runs), every[0])
    assert await sequences(past, every[-1] + 1, limit) == every


async def test_what_two_patterns_match_is_given_once(bus: Bus, runs: list[PretendRun]) -> None:
    every = places(runs)
    patterns = [*of(runs), f"llm.*.{runs[0].run_id}", f"*.stream.{runs[1].run_id}"]
    past = History(bus, streams.EVENTS, lambda: patterns, every[0])
    assert await sequences(past, every[-1] + 1, 3) == every


async def test_a_floor_that_rises_gives_the_rest(bus: Bus, runs: list[PretendRun]) -> None:
    every = places(runs)
    past = History(bus, streams.EVENTS, lambda: of(runs), every[0])
    found = []
    for floor in (every[3], every[3], every[20], every[-1] + 1):
        found += await sequences(past, floor, 5)
        assert found == [place for place in every if place < floor]
    await runs[0].completed()
    assert await sequences(past, runs[0].places[-1] + 1, 5) == runs[0].places[-1:]


async def test_messages_after_the_end_wait_until_the_end_increases(
    bus: Bus, runs: list[PretendRun]
) -> None:
    every = places(runs)
    past = History(bus, streams.EVENTS, lambda: of(runs), every[0])
    found = []
    for floor in range(every[0], every[-1] + 2):
        found += await sequences(past, floor, 1000)
        assert found == [place for place in every if place < floor]


async def test_a_pattern_that_joins_later_is_read_from_the_current_position(
    bus: Bus, runs: list[PretendRun]
) -> None:
    known = of(runs[:1])
    past = History(bus, streams.EVENTS, lambda: known, runs[0].places[0])
    middle = runs[0].places[7]
    found = await sequences(past, middle, 5)
    known += of(runs[1:])
    found += await sequences(past, places(runs)[-1] + 1, 5)
    first = runs[0].places
    expected = [place for place in places(runs) if place in first or place > first[6]]
    assert found == expected


async def test_what_is_not_to_be_kept_is_left_out(bus: Bus, runs: list[PretendRun]) -> None:
    async def keep(stored: Stored) -> bool:
        return stored.subject.endswith(runs[2].run_id)

    past = History(bus, streams.EVENTS, lambda: ["*.*.*"], runs[0].places[0], keep)
    assert await sequences(past, places(runs)[-1] + 1, 2) == runs[2].places
