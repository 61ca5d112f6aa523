"""With default settings: the time from the kill of a connector to the next event of its runs."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path
from typing import Any

import pytest

from penstock.bus import messages
from penstock.bus.state.leases import owner_of
from penstock.settings import Config
from penstock_approvals.service import ApprovalsService
from penstock_connector.settings import ConnectorSettings
from penstock_normalizer.service import NormalizerService
from support.drive.figures import report
from support.drive.pipeline import Event, Pipeline, pipeline
from support.drive.waiting import eventually
from support.fakes.misbehaving import Misbehaving, plays, stalls
from support.fakes.raw import agno
from support.real.connectors import FAST, ConnectorProcess, connector_process
from support.real.nats import NatsServer
from support.real.upstreams import Upstream

pytestmark = [pytest.mark.chaos, pytest.mark.real]

DEFAULTS: dict[str, Any] = {
    name: ConnectorSettings.model_fields[name].default for name in (*FAST, "ack_wait_s")
}
LIMIT_S = 5.0


async def test_a_dead_connectors_runs_continue_or_end_within_5_s(
    fresh_nats: NatsServer, agno_server: Upstream, upstream: Misbehaving, tmp_path: Path
) -> None:
    upstream.script(plays(agno("RunStarted"), stalls))
    common = {"protocol": "agno"}
    config = Config.model_validate(
        {
            "agents": [
                {"id": "again", "agent": "demo-agent", "url": agno_server.url, **common},
                {"id": "lost", "url": upstream.url, **common},
            ]
        }
    )
    folders = [tmp_path / name for name in ("peer", "victim")]
    for folder in folders:
        folder.mkdir()
    async with (
        pipeline(fresh_nats.url, config, (NormalizerService, ApprovalsService)) as penstock,
        connector_process(penstock.bus, config, folders[1], **DEFAULTS) as victim,
    ):
        again = [await penstock.start_run("again", "slow") for _ in range(5)]
        lost = [await penstock.start_run("lost", "hello") for _ in range(5)]
        for run_id in (*again, *lost):
            await penstock.events_until(run_id, lambda event: event.sequence > 1)
        async with connector_process(penstock.bus, config, folders[0], **DEFAULTS):
            # This is the worst case: the lease was just renewed, so it is valid for the longest
            # time.
            await renewed(penstock, victim)
            killed_at = time.monotonic()
            await victim.kill()
            times = await asyncio.gather(
                *(next_after(penstock, run_id, victim.pod, killed_at) for run_id in again + lost)
            )
    ends = {event.data.get("code") for event, _ in times[5:]}
    waited_s = sorted(after_s for _, after_s in times)
    report("connector killed: to its runs' next event", first_s=waited_s[0], last_s=waited_s[-1])
    assert ends == {"upstream_lost"}
    assert waited_s[-1] < LIMIT_S


async def renewed(penstock: Pipeline, connector: ConnectorProcess) -> None:
    """Wait until the connector has renewed its lease."""
    leases = penstock.bus.bucket("leases")
    before = await leases.get(f"pod.{connector.pod}")
    assert before is not None
    assert owner_of(before) == connector.pod

    async def probe() -> bool:
        entry = await leases.get(f"pod.{connector.pod}")
        return entry is not None and entry.revision > before.revision

    await eventually(probe, what="a renewal")


async def next_after(
    penstock: Pipeline, run_id: str, pod: str, since: float
) -> tuple[Event, float]:
    """Return the first event from a frame of another pod, and its delay after `since`."""

    async def others() -> int | None:
        frames = await penstock.raw(run_id)
        by_peer = [each for each in frames if not each.connection.startswith(pod)]
        return next((each.sequence for each in by_peer if each.kind != "claim"), None)

    first = await eventually(others, 30, "a peer's frame")
    after_s = time.monotonic() - since
    assert first is not None
    *_, event = await penstock.events_until(
        run_id, lambda event: int(event.headers[messages.RAW_POSITION]) >= first
    )
    return event, after_s
