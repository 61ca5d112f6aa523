"""A caller that has stored a run's id starts the run once, however often it repeats the start."""

from __future__ import annotations

from dataclasses import replace

import pytest

from penstock.bus import Bus, BusUnavailable
from penstock.bus.records import RunRecord, StartCommand
from penstock.bus.streams import COMMANDS
from penstock.bus.subjects import command
from penstock.bus.write.objects import unwrap
from penstock.runs.open_runs import OpenRuns
from penstock.runs.session_shards import SessionShards
from penstock.runs.start import Origin, Start, Starter
from penstock.settings import AgnoAgent
from support.drive.bus import connected
from support.real.nats import NatsServer

AGENT = AgnoAgent(id="assistant", protocol="agno", url="http://127.0.0.1:9", agent="demo")
TRACE = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
ORIGIN = Origin("019aab00-0000-7000-8000-000000000001", ("first", "second"), 2, "step_lint", 2)


def starter(bus: Bus) -> Starter:
    return Starter(bus, OpenRuns(bus, 0, 0), SessionShards(bus, (AGENT.id,)), callers_known=True)


async def commands_of(bus: Bus, run_id: str) -> int:
    info = await bus.api(
        f"STREAM.INFO.{COMMANDS}", {"subjects_filter": command("connector", "start", run_id)}
    )
    return sum((info["state"].get("subjects") or {}).values())


async def test_a_start_with_a_stored_id_is_repeated_without_a_second_run(
    nats_server: NatsServer,
) -> None:
    async with connected(nats_server.url) as bus:
        run_id = await starter(bus).new_run_id("alice", "s1")
        asked = Start(
            AGENT, "Hello", "s1", "alice", run_id=run_id, origin=ORIGIN, traceparent=TRACE
        )
        first = await starter(bus).start(asked)
        again = await starter(bus).start(asked)
        assert (first.new, again.new) == (True, False)
        assert first.record.run_id == again.record.run_id == run_id
        assert await commands_of(bus, run_id) == 1
        stored = await bus.tail(COMMANDS, command("connector", "start", run_id))
        assert stored is not None
        sent = StartCommand.model_validate_json(await unwrap(bus, stored.payload))
        assert (sent.parent_run_id, sent.traceparent) == (ORIGIN.parent_run_id, TRACE)
        assert (sent.step_id, sent.workflow_depth) == ("step_lint", 2)
        entry = await bus.bucket("runs").get(run_id)
        assert entry is not None
        record = RunRecord.model_validate_json(entry.value)
        assert (record.automations, record.depth) == (["first", "second"], 2)
        assert record.parent_run_id == ORIGIN.parent_run_id
        assert (record.step_id, record.workflow_depth) == ("step_lint", 2)


async def test_a_run_that_has_begun_is_not_started_again(nats_server: NatsServer) -> None:
    async with connected(nats_server.url) as bus:
        run_id = await starter(bus).new_run_id("alice", None)
        asked = Start(AGENT, "Hello", None, "alice", run_id=run_id)
        started = await starter(bus).start(asked)
        ended = started.record.model_copy(update={"status": "completed"})
        await bus.bucket("runs").put(run_id, ended.dump())
        stored = await bus.tail(COMMANDS, command("connector", "start", run_id))
        assert stored is not None
        await bus.delete(COMMANDS, stored.sequence)
        assert (await starter(bus).start(asked)).record.status == "completed"
        assert await bus.tail(COMMANDS, command("connector", "start", run_id)) is None


async def test_a_start_that_was_cut_before_its_command_is_completed_by_its_repeat(
    nats_server: NatsServer,
) -> None:
    async def cut(_: str) -> None:
        raise BusUnavailable("cut")

    async with connected(nats_server.url) as bus:
        run_id = await starter(bus).new_run_id("alice", None)
        asked = Start(AGENT, "Hello", None, "alice", run_id=run_id)
        with pytest.raises(BusUnavailable):
            await starter(bus).start(replace(asked, prepare=cut))
        assert await commands_of(bus, run_id) == 0
        assert (await starter(bus).start(asked)).new
        assert await commands_of(bus, run_id) == 1
