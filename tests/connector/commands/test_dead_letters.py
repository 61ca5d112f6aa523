"""If a command cannot be carried out, its run ends, and the dead letter gives the reason."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import orjson
import pytest

from penstock.bus import Bus
from penstock.bus.admin.replay import CannotReplay, replay_letter
from penstock.bus.records.runs import CancelCommand
from penstock.bus.state import attempts
from penstock_connector.service import ConnectorService
from support.drive.dead_letters import buried, letter_about, the_letter
from support.drive.pipeline import PIPELINE, Services, pipeline
from support.drive.steps import Step
from support.drive.waiting import eventually
from support.fakes.misbehaving import Misbehaving, agents, plays, stalls
from support.fakes.raw import agno, agno_approved, agno_pause, agno_text
from support.real.connectors import FAST, Hurt, connector_process
from support.real.nats import NatsServer

WITHOUT: Services = tuple(service for service in PIPELINE if service is not ConnectorService)


async def deliver_and_forget(bus: Bus, kind: str, times: int) -> None:
    """Take the command without acknowledging it, as connectors do that are killed."""
    durable = f"connector-{kind}"
    config: dict[str, Any] = {
        "durable_name": durable,
        "filter_subjects": [f"command.connector.{kind}.*"],
        "ack_policy": "explicit",
        "ack_wait": 30_000_000_000,
        "max_ack_pending": 10_000,
    }
    call = f"CONSUMER.DURABLE.CREATE.COMMANDS.{durable}"
    await bus.api(call, {"stream_name": "COMMANDS", "config": config})
    taker = await bus.jetstream.nats.pull_subscribe_bind(durable, stream="COMMANDS")
    for _ in range(times):
        [taken] = await taker.fetch(1)
        await taken.nak()  # so that the test need not wait for ack_wait
    await taker.unsubscribe()


async def test_a_start_that_was_with_many_connectors_when_they_died_is_carried_out(
    fresh_nats: NatsServer, upstream: Misbehaving
) -> None:
    upstream.script(plays(agno_text("x")))
    config = agents(upstream)
    async with pipeline(fresh_nats.url, config, WITHOUT) as penstock:
        run_id = await penstock.start_run("agno", "hello")
        await deliver_and_forget(penstock.bus, "start", 40)
        async with pipeline(fresh_nats.url, config, (ConnectorService,)):
            *_, last = await penstock.ended(run_id)
        assert await penstock.bus.bucket("claims").keys("attempts.>") == []
    assert last.type == "lifecycle.completed"
    assert len(upstream.calls) == 1


async def test_a_decision_that_was_with_many_connectors_when_they_died_is_sent(
    fresh_nats: NatsServer, upstream: Misbehaving
) -> None:
    upstream.script(plays(agno_pause()), plays(agno_approved()))
    config = agents(upstream)
    async with pipeline(fresh_nats.url, config, WITHOUT) as penstock:
        async with pipeline(fresh_nats.url, config, (ConnectorService,)):
            run_id = await penstock.start_run("agno", "delete")
            *_, asked = await penstock.events_until(run_id, "lifecycle.paused")
        await penstock.decide(asked.data["approval_id"])
        await deliver_and_forget(penstock.bus, "continue", 40)
        async with pipeline(fresh_nats.url, config, (ConnectorService,)):
            *_, last = await penstock.ended(run_id)
    assert last.type == "lifecycle.completed"
    assert len(upstream.calls) == 2


async def test_a_start_that_waits_for_a_leg_is_not_blamed_when_its_connectors_die(
    fresh_nats: NatsServer, upstream: Misbehaving, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Waiting for a leg is no attempt, so an ended connector leaves no record of one."""
    monkeypatch.setattr(attempts, "UNCOUNTED", 0)
    upstream.script(plays(agno("RunStarted"), stalls))
    async with pipeline(fresh_nats.url, agents(upstream), max_legs=1) as penstock:
        await penstock.start_run("agno", "first")
        await upstream.called()
        await penstock.start_run("agno", "waits")
        connector = next(each for each in penstock.services if isinstance(each, ConnectorService))

        async def waits() -> bool:
            return len(connector._commands.waiting) == 1

        await eventually(waits)
        assert await penstock.bus.bucket("claims").keys("attempts.>") == []


async def test_a_start_that_kills_connectors_ends_its_run_and_is_not_taken_again(
    fresh_nats: NatsServer, upstream: Misbehaving, tmp_path: Path
) -> None:
    upstream.script(plays(agno_text("x")))
    config = agents(upstream)
    async with pipeline(fresh_nats.url, config, WITHOUT) as penstock:
        run_id = await penstock.start_run("agno", "hello")
        await deliver_and_forget(penstock.bus, "start", attempts.UNCOUNTED)
        command = await penstock.bus.tail("COMMANDS", f"command.connector.start.{run_id}")
        assert command is not None
        # This is the record that connectors leave if the start ends their process each time.
        key = f"attempts.connector.begin.{command.sequence}.{command.subject}"
        left = str(attempts.MAX_UNSURVIVED - 1).encode()
        await penstock.bus.bucket("claims").create(key, left)
        dies = Hurt(Step.CLAIM)
        async with connector_process(penstock.bus, config, tmp_path, dies, ack_wait_s=1) as victim:
            await victim.died()
        assert (await penstock.record(run_id)).status == "queued"
        async with pipeline(fresh_nats.url, config, (ConnectorService,), **FAST, ack_wait_s=1):
            *_, last = await penstock.ended(run_id)
            found = await the_letter(penstock.bus, "connector", run_id)

            async def ended() -> bool:
                return (await penstock.record(run_id)).status == "failed"

            await eventually(ended)
            with pytest.raises(CannotReplay, match="cannot be started again"):
                await replay_letter(penstock.bus, found)
    assert (last.type, last.data["code"]) == ("lifecycle.failed", "internal")
    assert "and never finished" in last.data["error"]
    assert orjson.loads(found.letter.payload)["run_id"] == run_id
    assert not upstream.calls


async def test_a_cancel_that_was_given_up_cancels_when_it_is_put_back(
    nats_server: NatsServer, upstream: Misbehaving
) -> None:
    upstream.script(plays(agno("RunStarted"), stalls))
    async with pipeline(nats_server.url, agents(upstream), cancel_grace_s=0.1) as penstock:
        run_id = await penstock.start_run("agno", "hello")
        await upstream.called()
        cancel = CancelCommand(run_id=run_id, by="ada").dump()
        subject = f"command.connector.cancel.{run_id}"
        found = await buried(penstock.bus, letter_about(subject, cancel))
        assert await replay_letter(penstock.bus, found)
        *_, last = await penstock.ended(run_id)
        assert (last.type, last.data["by"]) == ("lifecycle.cancelled", "ada")

        async def ended() -> bool:
            return (await penstock.record(run_id)).status == "cancelled"

        await eventually(ended)
        # A replay of the letter fails, because the run has already ended.
        with pytest.raises(CannotReplay, match="nothing to cancel"):
            await replay_letter(penstock.bus, found)
