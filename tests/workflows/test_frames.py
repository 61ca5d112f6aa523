"""The frames of a run are written once and in order, whichever process writes them."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from penstock.bus import Bus, streams, subjects
from penstock.bus.read import direct
from penstock.dialects.workflow import WRITER
from penstock_workflows.effects.frames import Frames
from penstock_workflows.engine.records import End, Record, Started
from penstock_workflows.journal.journal import EMPTY, RECORD, Journals, Position
from penstock_workflows.journal.memory import RunInMemory, Values, fold_new_records
from support.drive.bus import connected, new_run_id
from support.real.nats import NatsServer

WHOLE = ["1/0", "2/0"]  # the frames of a run that is refused at once


@pytest.fixture
async def bus(nats_server: NatsServer) -> AsyncIterator[Bus]:
    async with connected(nats_server.url) as made:
        yield made


class Process:
    """A process that knows one run."""

    def __init__(self, bus: Bus, name: str, run_id: str) -> None:
        self.journals = Journals(bus)
        self.values = Values(self.journals)
        self.frames = Frames(bus, name)
        self.run = RunInMemory(run_id)

    async def read(self) -> None:
        """Read the journal on."""
        await fold_new_records(self.run, self.journals, self.values, self.frames.find_last_frame)

    async def follow(self) -> None:
        """Read the journal on, and write the frames that are missing."""
        await self.read()
        await self.frames.write(self.run)


async def append(bus: Bus, run_id: str, after: Position, record: Record) -> Position:
    """Append a record to the run's journal."""
    return await Journals(bus).append(run_id, after, [record])


async def written(bus: Bus, run_id: str) -> list[str]:
    """Return the records and parts of the frames in RAW."""
    pattern = subjects.raw_stored(run_id, WRITER)
    found = direct.replay(bus, streams.raw_for(run_id), pattern)
    return [stored.headers[RECORD] async for stored in found]


def started(run_id: str) -> Record:
    return Started(1, run_id, {}, {"agent": "a", "protocol": "workflow"})


async def test_a_process_that_is_behind_writes_no_frame_again(bus: Bus) -> None:
    """Another process goes on between the two reads of a run: its journal, its last frame."""
    run_id = new_run_id()
    first, late = Process(bus, "first", run_id), Process(bus, "late", run_id)
    end = await append(bus, run_id, EMPTY, started(run_id))
    await first.follow()

    async def meanwhile(run: RunInMemory) -> None:
        await append(bus, run_id, end, End(2, "failed"))
        await first.follow()
        await late.frames.find_last_frame(run)

    await fold_new_records(late.run, late.journals, late.values, meanwhile)
    await late.follow()
    assert await written(bus, run_id) == WHOLE


async def test_two_processes_write_the_same_frames_once(bus: Bus) -> None:
    run_id = new_run_id()
    processes = [Process(bus, name, run_id) for name in ("a", "b")]
    end = await append(bus, run_id, EMPTY, started(run_id))
    for process in processes:
        await process.read()
    await append(bus, run_id, end, End(2, "failed"))
    for process in processes:
        await process.read()
    for process in processes:
        await process.frames.write(process.run)
    assert await written(bus, run_id) == WHOLE
