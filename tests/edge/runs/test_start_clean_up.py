"""A start that fails before its command leaves no run; a broken record blocks no start."""

from __future__ import annotations

import pytest
import uuid_utils

from penstock.bus import Bus, BusUnavailable
from penstock.runs import open_runs
from penstock.runs.open_runs import OpenRuns
from penstock.runs.settings import StartSettings
from penstock.runs.start import Start, Starter
from penstock.settings import AgnoAgent, Config
from penstock.turns import TenantUser
from penstock.web.auth.identity import RunUser
from penstock_edge.sources.sessions import ActiveRuns
from support.fakes.pretend import PretendRun

AGENT = AgnoAgent(id="assistant", protocol="agno", url="http://127.0.0.1:9", agent="demo")


async def test_a_run_that_cannot_be_prepared_is_not_in_the_list(bus: Bus) -> None:
    prepared: list[str] = []

    async def prepare(run_id: str) -> None:
        prepared.append(run_id)
        raise BusUnavailable("KV does not answer")

    starter = Starter(bus, Config(agents=[AGENT]), StartSettings())
    with pytest.raises(BusUnavailable):
        await starter.start(
            Start(AGENT, "Hello", None, RunUser("alice", (), (), ""), prepare=prepare)
        )
    assert await bus.bucket("runs").get(prepared[0]) is None


async def test_a_record_that_cannot_be_read_does_not_refuse_the_starts_of_its_user(
    bus: Bus, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(open_runs, "LOST_S", -1.0)
    run_id = str(uuid_utils.uuid7())
    counted = OpenRuns(bus, 1, 1)
    alice = TenantUser("", "alice")
    counted.begin(alice, run_id)
    await bus.bucket("runs").put(run_id, b'{"run_id": 1}')
    try:
        assert await counted.has_room(alice)
    finally:
        await bus.bucket("runs").delete(run_id)


async def test_a_record_that_cannot_be_read_hides_no_active_run(bus: Bus) -> None:
    active, run, bad = ActiveRuns(), PretendRun(bus), str(uuid_utils.uuid7())
    await active.now(bus)
    await bus.bucket("runs").put(bad, b'{"run_id": 1}')
    try:
        await run.record()
        assert run.run_id in [each.run_id for each in await active.now(bus)]
    finally:
        await bus.bucket("runs").delete(bad)
