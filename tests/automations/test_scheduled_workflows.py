"""The schedule of a workflow starts one run for each time, for whom the version was stored."""

from __future__ import annotations

import asyncio
import contextlib
import signal
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from penstock.bus import Bus, Entry, streams
from penstock.bus.records.runs import RunRecord, StartCommand
from penstock.bus.records.workflows import LatestWorkflow
from penstock.bus.state.kv import Bucket
from penstock.settings import Config
from penstock.web.auth.identity import RunUser
from penstock_automations.rules.store import CurrentRules
from penstock_automations.service import AutomationsService
from penstock_automations.triggers.firing import Firing, schedule_subject
from penstock_workflows.definition import load_value
from penstock_workflows.registry import WorkflowStore
from support.drive.pipeline import pipeline
from support.drive.waiting import eventually
from support.real.automating import automations_process
from support.real.nats import NatsServer

MISSED = (datetime.now(UTC) - timedelta(minutes=2)).replace(second=0, microsecond=0)


def nightly(version: str = "1", **schedule: Any) -> dict[str, Any]:
    cron = f"{MISSED.minute} {MISSED.hour} * * *"
    return {
        "dsl": "penstock/1",
        "name": "Nightly",
        "version": version,
        "steps": {"a": {"set": "input.city"}},
        "schedule": {"cron": cron, "input": {"city": "{{ Oslo }}"}, **schedule},
    }


class Earlier(WorkflowStore):
    """Stores versions whose schedules came into force before the missed time."""

    async def _point(self, name: str, wanted: LatestWorkflow) -> LatestWorkflow:
        ago = (MISSED - timedelta(hours=1)).isoformat().replace("+00:00", "Z")
        return await super()._point(name, wanted.model_copy(update={"updated_at": ago}))


async def stored_an_hour_ago(bus: Bus, definition: dict[str, Any]) -> None:
    user = RunUser(definition["schedule"].get("user", "ada"), ["ops"], ["ada"], "acme")
    await Earlier(bus).put(load_value(definition), "ada", "acme", runs_for=user)


async def runs_of(bus: Bus) -> list[RunRecord]:
    entries = await bus.bucket("runs").entries()
    return [RunRecord.model_validate_json(each.value) for each in entries]


async def next_day(bus: Bus) -> bool:
    tail = await bus.tail(streams.SCHEDULES, schedule_subject("workflow=Nightly"))
    at = (MISSED + timedelta(days=1)).timestamp()
    return tail is not None and Firing.parse(tail.payload).at == at


async def test_a_time_starts_one_run_of_the_user_and_a_retired_workflow_has_no_times(
    fresh_nats: NatsServer,
) -> None:
    services = (AutomationsService, AutomationsService)
    async with pipeline(fresh_nats.url, Config(agents=[]), services) as penstock:
        bus = penstock.bus
        await stored_an_hour_ago(bus, nightly(user="grace"))
        [run] = await eventually(lambda: runs_of(bus), what="that the missed time is fired")
        assert (run.user_id, run.tenant, run.started_by) == ("grace", "acme", ["ada"])
        assert run.roles == ["ops"]
        assert (run.agent, run.target, run.automations) == (
            "Nightly",
            "workflows",
            ["workflow=Nightly"],
        )
        stored = await eventually(
            lambda: bus.tail(streams.COMMANDS, f"command.workflows.start.{run.run_id}")
        )
        assert stored is not None
        command = StartCommand.model_validate_json(stored.payload)
        assert (command.workflow, command.version) == ("Nightly", "1")
        assert command.input == {"city": "{{ Oslo }}"}
        await eventually(lambda: next_day(bus), what="the next day's time")
        await WorkflowStore(bus).name_latest("Nightly", None, "ada")
        current = CurrentRules(bus)
        await current.refresh_all()
        assert current.get("workflow=Nightly") is None
        assert len(await runs_of(bus)) == 1


async def test_a_slow_read_of_the_schedules_does_not_put_older_ones_back(
    fresh_nats: NatsServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first of two reads at once is answered before a change, and ends after it."""
    async with pipeline(fresh_nats.url, Config(agents=[]), ()) as penstock:
        bus = penstock.bus
        await stored_an_hour_ago(bus, nightly())
        current, read = CurrentRules(bus), Bucket.entries
        answered, others = asyncio.Event(), set[asyncio.Task[None]]()

        async def entries(self: Bucket, pattern: str = ">") -> list[Entry]:
            found = await read(self, pattern)
            if not answered.is_set():
                answered.set()
                # The other read ends first, or it waits for this one.
                while not others:
                    await asyncio.sleep(0)
                await asyncio.wait(others, timeout=0.3)
            return found

        monkeypatch.setattr(Bucket, "entries", entries)
        slow = asyncio.create_task(current.refresh_all())
        await answered.wait()
        await WorkflowStore(bus).name_latest("Nightly", None, "ada")
        others.add(asyncio.create_task(current.refresh_all()))
        await asyncio.gather(slow, *others)
        assert current.get("workflow=Nightly") is None


@pytest.mark.chaos
@pytest.mark.parametrize("write", range(1, 8))
async def test_a_kill_at_any_write_leaves_one_run_for_the_time(
    fresh_nats: NatsServer, write: int
) -> None:
    async with pipeline(fresh_nats.url, Config(agents=[]), ()) as base:
        await stored_an_hour_ago(base.bus, nightly())
        with contextlib.suppress(RuntimeError):  # the process may be killed before it is ready
            async with automations_process(fresh_nats.url, dies_before=write) as victim:
                assert await victim.process.ended() == -signal.SIGKILL
        async with automations_process(fresh_nats.url) as other:
            await eventually(lambda: next_day(base.bus), 60, what="the next day's time")

            async def nothing_left() -> bool:
                return await base.bus.tail(streams.DELIVERIES, "delivery.>") is None

            await eventually(nothing_left, 60, what="that the delivery has its outcome")
            assert await other.stop() == 0
        [run] = await runs_of(base.bus)
        assert run.user_id == "ada"
