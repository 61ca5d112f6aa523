"""A collector that is away, silent or broken changes nothing but the traces."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Mapping
from functools import partial
from pathlib import Path

import pytest

from e2e.test_traces import RULES
from support.drive.bus import connected
from support.drive.waiting import eventually
from support.drive.workflows import define
from support.fakes.collector import collector
from support.fakes.receiver import SECRET, receiver
from support.real.deployment import Deployment, Instance, deployment
from support.real.nats import NatsServer
from support.real.upstreams import Upstream

pytestmark = [
    pytest.mark.real,
    pytest.mark.timeout(300),  # six services start and stop, which takes long under load
]

SERVICES = ("normalizer", "approvals", "workflows", "connector", "edge", "automations")
KINDS = ("closed", "silent", "refusing")  # the collectors, in turn for one service after another
FLOW = {
    **{"dsl": "penstock/1", "name": "flow", "version": "1", "output": "ask.output"},
    "steps": {"ask": {"run": {"agent": "assistant", "message": '"text"'}, "output": "result.text"}},
}
SAYS = {
    "closed": "Connection refused",
    "silent": "it did not answer in time",
    "refusing": "it answers with status 500",
}
QUICK = {"OTEL_BSP_SCHEDULE_DELAY": "50", "OTEL_EXPORTER_OTLP_TIMEOUT": "1"}


@pytest.mark.parametrize(
    "turn", [0, *(pytest.param(turn, marks=pytest.mark.chaos) for turn in (1, 2))]
)
async def test_services_start_serve_and_stop_with_a_dead_collector_and_say_so_once(
    turn: int, tmp_path: Path, nats_server: NatsServer, agno_server: Upstream
) -> None:
    kinds = {name: KINDS[(turn + number) % 3] for number, name in enumerate(SERVICES)}
    assistant = {"id": "assistant", "protocol": "agno", "agent": "demo-agent"}
    agents = [{**assistant, "url": agno_server.url}, {"id": "flow", "protocol": "workflow"}]
    rules = tmp_path / "rules.yaml"
    with collector() as silent, collector() as refusing:
        silent.hangs, refusing.status = True, 500
        urls = {"closed": "http://127.0.0.1:9", "silent": silent.url, "refusing": refusing.url}
        async with receiver() as hooks:
            rules.write_text(RULES.format(url=hooks.url(), secret=SECRET))
            settings = {"rules": rules, "webhook_allow_hosts": "127.0.0.1", **QUICK}
            none: Mapping[str, int] = dict.fromkeys(SERVICES, 0)
            async with (
                deployment(nats_server.url, tmp_path, agents, none, **settings) as penstock,
                connected(nats_server.url) as bus,
            ):
                named = {
                    name: {"OTEL_EXPORTER_OTLP_ENDPOINT": urls[kind]}
                    for name, kind in kinds.items()
                }
                await asyncio.gather(
                    *(penstock.start(name, environment=named[name]) for name in SERVICES)
                )
                await define(bus, FLOW)
                await serve(penstock)
                for instance in penstock.instances:
                    await eventually(partial(has_lost, penstock, instance), 60)
                # The exporters fail or hang now. Nothing else has changed.
                await serve(penstock)
                await hooks.count(6)  # of the three runs of each round
                for instance in penstock.instances:
                    instance.process.popen.send_signal(signal.SIGTERM)
                for instance in penstock.instances:
                    assert await asyncio.to_thread(instance.process.popen.wait, 60) == 0
                for instance in penstock.instances:
                    lines = said(instance)
                    assert len(lines) == 1, (instance.service, lines)
                    assert SAYS[kinds[instance.service]] in lines[0]


async def serve(penstock: Deployment) -> None:
    """Run an agent with an approval, and a workflow with a step."""
    approved = await penstock.run("assistant", "confirm")
    *_, paused = await penstock.until(approved, "lifecycle.paused")
    answer = await penstock.decide(paused.data["approval_id"], "approve")
    assert answer.is_success, answer.text
    for run_id in (approved, await penstock.run("flow", "text")):
        assert (await penstock.all(run_id))[-1].type == "lifecycle.completed"


async def has_lost(penstock: Deployment, instance: Instance) -> bool:
    """Return whether the service's metric counts lost spans, and its log says so."""
    metrics = (await penstock.http.get(f"{instance.probes}/metrics")).text
    counted = [
        float(line.rpartition(" ")[2])
        for line in metrics.splitlines()
        if line.startswith('penstock_spans_total{outcome="failed"}')
    ]
    return sum(counted) > 0 and bool(said(instance))


def said(instance: Instance) -> list[str]:
    """Return the lines of the service's log about spans that are lost."""
    lines = instance.process.log.read_text().splitlines()
    return [line for line in lines if "spans are lost" in line]
