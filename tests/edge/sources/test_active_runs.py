"""The runs under way are read once, however many streams need them."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from penstock.bus import Bus
from penstock.bus.read.direct import replay
from penstock_edge.sources import sessions as module
from penstock_edge.sources.sessions import ActiveRuns, Session, idle_since
from support.fakes.pretend import PretendRun


async def of(active_runs: ActiveRuns, bus: Bus, *runs: PretendRun) -> list[str]:
    """Return which of these runs are under way, by their ids."""
    ids = {run.run_id for run in runs}
    return [each.run_id for each in await active_runs.now(bus) if each.run_id in ids]


async def test_a_run_is_there_from_its_record_to_its_end_or_pause(bus: Bus) -> None:
    active_runs, first, second = ActiveRuns(), PretendRun(bus), PretendRun(bus)
    assert await of(active_runs, bus, first, second) == []
    await first.record()
    await second.record(status="running")
    assert await of(active_runs, bus, first, second) == [first.run_id, second.run_id]
    await first.record(status="completed")
    assert await of(active_runs, bus, first, second) == [second.run_id]
    await second.record(status="paused")
    assert await of(active_runs, bus, first, second) == []
    await second.record(status="running")
    assert await of(active_runs, bus, second) == [second.run_id]
    await bus.bucket("runs").delete(second.run_id)
    assert await of(active_runs, bus, second) == []


async def test_each_record_is_read_once_however_many_ask(
    bus: Bus, monkeypatch: pytest.MonkeyPatch
) -> None:
    read = 0

    async def counted(*where: Any) -> Any:
        nonlocal read
        async for stored in replay(*where):
            read += 1
            yield stored

    monkeypatch.setattr(module, "replay", counted)
    active_runs, run = ActiveRuns(), PretendRun(bus)
    await active_runs.now(bus)
    read = 0
    await run.record()
    found = await asyncio.gather(*(of(active_runs, bus, run) for _ in range(50)))
    assert found == [[run.run_id]] * 50
    assert read == 1


async def test_a_session_with_a_run_that_no_connector_has_taken_is_not_idle(bus: Bus) -> None:
    run = PretendRun(bus, session_id="queued-session")
    session = Session("alice", "queued-session", ("assistant",), any_agent=False)
    assert await idle_since(bus, session) == 0
    await run.record(user_id="alice")
    assert await idle_since(bus, session) is None
    await run.record(user_id="alice", status="cancelled")
    assert await idle_since(bus, session) == 0
