"""Commands that cannot be carried out: their runs end, and the letters say why."""

from __future__ import annotations

from typing import Any

import orjson
import pytest

from penstock.bus import Bus
from penstock.bus.admin.replay import CannotBePutBack, put_back
from penstock.bus.records import CancelCommand
from penstock_connector.service import ConnectorService
from support.letters import buried, letter_about, the_letter
from support.misbehaving import Misbehaving, agents, plays, stalls
from support.nats import NatsServer
from support.pipeline import PIPELINE, Services, pipeline
from support.raw import agno, agno_text
from support.waiting import eventually

WITHOUT: Services = tuple(service for service in PIPELINE if service is not ConnectorService)


async def deliver_and_forget(bus: Bus, times: int) -> None:
    """As connectors do that die of a start: they take it, and nobody hears of them again."""
    config: dict[str, Any] = {
        "durable_name": "connector-start",
        "filter_subjects": ["command.connector.start.*"],
        "ack_policy": "explicit",
        "ack_wait": 30_000_000_000,
        "max_ack_pending": 10_000,
    }
    call = "CONSUMER.DURABLE.CREATE.COMMANDS.connector-start"
    await bus.api(call, {"stream_name": "COMMANDS", "config": config})
    taker = await bus.js.pull_subscribe_bind("connector-start", stream="COMMANDS")
    for _ in range(times):
        [taken] = await taker.fetch(1)
        await taken.nak()  # for not to wait for ack_wait
    await taker.unsubscribe()


async def test_a_start_that_kills_connectors_ends_its_run_and_is_not_taken_again(
    fresh_nats: NatsServer, upstream: Misbehaving
) -> None:
    upstream.script(plays(agno_text("x")))
    config = agents(upstream)
    async with pipeline(fresh_nats.url, config, WITHOUT) as penstock:
        run_id = await penstock.start_run("agno", "hello")
        await deliver_and_forget(penstock.bus, 15)
        async with pipeline(fresh_nats.url, config, (ConnectorService,)):
            *_, last = await penstock.ended(run_id)
            found = await the_letter(penstock.bus, "connector", run_id)

            async def ended() -> bool:
                return (await penstock.record(run_id)).status == "failed"

            await eventually(ended)
            with pytest.raises(CannotBePutBack, match="cannot be started again"):
                await put_back(penstock.bus, found)
    assert (last.type, last.data["code"]) == ("lifecycle.failed", "internal")
    assert "delivered 15 times and never finished" in last.data["error"]
    assert found.letter.delivered == 16
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
        assert await put_back(penstock.bus, found)
        *_, last = await penstock.ended(run_id)
        assert (last.type, last.data["by"]) == ("lifecycle.cancelled", "ada")

        async def ended() -> bool:
            return (await penstock.record(run_id)).status == "cancelled"

        await eventually(ended)
        # found before it was put back, by somebody who comes late
        with pytest.raises(CannotBePutBack, match="nothing to cancel"):
            await put_back(penstock.bus, found)
