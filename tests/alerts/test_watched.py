"""A real Prometheus watches a deployment for a quarter of an hour, with faults.

It evaluates each query of the dashboards and each alert. Run by `make watched`, which draws the
panels into PENSTOCK_WATCHED (default: .penstock/watched).
"""

from __future__ import annotations

import asyncio
import json
import os
import re
import time
from collections.abc import Mapping
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any, Final

import pytest
import yaml

from alerts.faults import FAULTS, NOT_PROVOKED, Fault
from alerts.hurried import LABEL, hurried
from alerts.load import Load, loaded
from alerts.pictures import Band, Panel, draw, draw_alerts
from alerts.prometheus import Line, Prometheus, program
from alerts.queries import DASHBOARDS, RULES, rules
from support.drive.repository import ROOT
from support.drive.waiting import eventually
from support.fakes.clocks import libfaketime
from support.real.nats import NatsServer

PLOTS = Path(os.environ.get("PENSTOCK_WATCHED") or ROOT / ".penstock/watched")
CALM_S: Final = 60.0
STEP_S: Final = 5.0
RESOLVED_S: Final = 180.0
# Queries that may give nothing, with the reason. By dashboard, panel and number of the query.
MAY_BE_EMPTY: Final[Mapping[str, str]] = {
    "penstock-overview: Refused by a limit A": "no user reaches a limit",
    "penstock-overview: Refused by a limit B": "no edge is full",
    "penstock-bus: Refusals of NATS, reconnects A": "a server that is away may refuse nothing",
    "penstock-bus: Streams, of their limit A": "streams have limits only where they are set",
}


@pytest.mark.chaos
@pytest.mark.timeout(1800)
@pytest.mark.skipif(
    program() is None, reason="there is no Prometheus: `make kubernetes` builds it with Go"
)
async def test_every_query_has_data_and_the_alerts_of_real_faults_fire_and_resolve(
    tmp_path: Path,
) -> None:
    file = tmp_path / "hurried.rules.yaml"
    file.write_text(yaml.safe_dump(hurried()))
    nats = NatsServer(tmp_path / "nats")
    nats.start()
    bands: list[Band] = []
    async with AsyncExitStack() as stack:
        stack.callback(nats.remove)
        prometheus = Prometheus(tmp_path / "prometheus", [RULES, file])
        stack.push_async_callback(prometheus.stop)
        await prometheus.ready()
        load = await stack.enter_async_context(loaded(tmp_path, nats, prometheus))
        await scraped(prometheus, len(load.penstock.instances))
        begin = time.time()
        load.begin()
        await asyncio.sleep(CALM_S)
        early = await fired(prometheus, begin, time.time(), hurried_only=False)
        faults = [each for each in FAULTS if each.name != "wrong clock" or libfaketime()]
        await provoke(load, faults, bands)
        await load.decide_all()
        resolved = await all_resolve(prometheus)
        end = time.time()
        seen = await fired(prometheus, begin, end, hurried_only=True)
        unhurried = await fired(prometheus, begin, end, hurried_only=False)
        health = await prometheus.rules()
        empty = await look_at(prometheus, bands, begin, end)
    print(f"\n{end - begin:.0f} s. Fired with the times of a deployment: {sorted(unhurried)}")
    for name, (first, last) in sorted(seen.items(), key=lambda each: each[1]):
        print(f"  {name:28} fired {first - begin:4.0f} s to {last - begin:4.0f} s")
    print(f"  without data: {empty}")
    causes: dict[str, str] = {}
    for fault in faults:
        for alert in fault.alerts:
            causes[alert] = f"{causes[alert]}; {fault.name}" if alert in causes else fault.name
    bars = {name: (first - begin, last - begin) for name, (first, last) in seen.items()}
    (PLOTS / "alerts.svg").write_text(draw_alerts(bars, causes, end - begin))

    assert all(rule["health"] == "ok" for rule in health), [
        (rule["name"], rule["lastError"]) for rule in health if rule["health"] != "ok"
    ]
    assert len(health) == 2 * len(rules())
    assert not early, "alerts fire while nothing is wrong"
    wanted = {alert for fault in faults for alert in fault.alerts}
    assert wanted <= seen.keys(), f"these did not fire: {sorted(wanted - seen.keys())}"
    assert resolved == [], "these did not resolve"
    assert {rule["alert"] for rule in rules()} - wanted <= NOT_PROVOKED.keys() | {
        alert for each in FAULTS for alert in each.alerts
    }
    assert set(empty) <= MAY_BE_EMPTY.keys(), sorted(set(empty) - MAY_BE_EMPTY.keys())


async def provoke(load: Load, faults: list[Fault], bands: list[Band]) -> None:
    """Make one fault after another, or some at the same time, as the table says."""

    async def make(fault: Fault) -> None:
        begun = time.time()
        async with fault.make(load):
            await asyncio.sleep(fault.lasts_s)
        bands.append(Band(fault.name, begun, time.time()))
        print(f"{fault.name}: {time.time() - begun:.0f} s", flush=True)

    together: list[asyncio.Task[None]] = []
    for fault in faults:
        together.append(asyncio.create_task(make(fault)))
        if fault.then_s is not None:
            await asyncio.gather(*together)
            together = []
            await asyncio.sleep(fault.then_s)
    await asyncio.gather(*together)


async def scraped(prometheus: Prometheus, count: int) -> None:
    """Wait until all processes are scraped, and no alert fires for their absence."""

    async def all_are() -> bool:
        up = await prometheus.now("up == 1")
        return len(up) == count and not await prometheus.now('ALERTS{alertstate="firing"}')

    await eventually(all_are, 60, "all processes are scraped")


async def fired(
    prometheus: Prometheus, begin: float, end: float, *, hurried_only: bool
) -> dict[str, tuple[float, float]]:
    """Return the alerts that fired, with their first and their last moment."""
    wanted = "yes" if hurried_only else ""
    query = f'ALERTS{{alertstate="firing",{LABEL}="{wanted}"}}'
    found: dict[str, tuple[float, float]] = {}
    for line in await prometheus.over(query, begin, end, 2.0):
        name, first, last = line.labels["alertname"], line.points[0][0], line.points[-1][0]
        known = found.get(name, (first, last))
        found[name] = min(known[0], first), max(known[1], last)
    return found


async def all_resolve(prometheus: Prometheus) -> list[str]:
    """Wait until no hurried alert fires; return those that still do."""

    async def still() -> list[str]:
        firing = await prometheus.now(f'ALERTS{{alertstate="firing",{LABEL}="yes"}}')
        return sorted({each["alertname"] for each in firing})

    async def none() -> bool:
        await asyncio.sleep(1)
        return not await still()

    try:
        await eventually(none, RESOLVED_S, "every alert resolves")
    except TimeoutError:
        return await still()
    return []


async def look_at(prometheus: Prometheus, bands: list[Band], begin: float, end: float) -> list[str]:
    """Evaluate all queries of the dashboards, and draw their panels. Return those without data."""
    PLOTS.mkdir(parents=True, exist_ok=True)
    empty = []
    for path in DASHBOARDS:
        panels = []
        for panel in json.loads(path.read_text("utf-8"))["panels"]:
            lines: list[tuple[str, Line]] = []
            for target in panel["targets"]:
                found = await prometheus.over(target["expr"], begin, end, STEP_S)
                lines += [(_legend(target, each.labels), each) for each in found]
                if not found:
                    empty.append(f"{path.stem}: {panel['title']} {target['refId']}")
            unit = panel["fieldConfig"]["defaults"].get("unit", "")
            panels.append(Panel(panel["title"], unit, lines))
        (PLOTS / f"{path.stem}.svg").write_text(draw(panels, bands, begin, end))
    return empty


def _legend(target: dict[str, Any], labels: Mapping[str, str]) -> str:
    return re.sub(r"\{\{(\w+)\}\}", lambda found: labels.get(found[1], ""), target["legendFormat"])
