"""One round: the system is started, loaded and hurt; then every run is looked at.

```python
report = await play(Round(7, 60, shape, runs=200, runs_per_s=1), folder, agno_server, adk_server)
assert not report.violations, report
```
"""

from __future__ import annotations

import asyncio
import time
from bisect import bisect
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from itertools import product
from pathlib import Path

import httpx
import yaml

from support.chaos import gather, links
from support.chaos.brokers import Brokers, running
from support.chaos.checker import ENDS, Harm, Violation, check_remains, check_run, outcome_of
from support.chaos.clients import Story
from support.chaos.fleet import Fleet, Slot, fleet
from support.chaos.plans import plans
from support.chaos.recorder import Recorder, recorder
from support.chaos.schedule import Fault, Shape, schedule, shown
from support.upstreams import Upstream

STREAMING_S = 1.0  # a run that said something within the last second is streaming
_SILENT = {
    *ENDS,
    "approval.requested",
    "lifecycle.paused",
    "approval.decided",
}  # unless after these


@dataclass(frozen=True, slots=True)
class Round:
    """What is played: by the same seed the same runs are asked for, and the same is done."""

    seed: int
    kills: int
    shape: Shape
    runs: int  # at least; more are started as long as there are faults to come
    runs_per_s: float
    settings: Mapping[str, object] = field(default_factory=dict)  # as PENSTOCK_<NAME>
    launchers: Mapping[str, Sequence[str]] = field(default_factory=dict)
    end_timeout_s: float = 120.0  # for the last runs to end, when all is whole again
    faults: Sequence[Fault] = ()  # instead of those that the seed makes


@dataclass(frozen=True, order=True, slots=True)
class Wait:
    """From a kill to the next new event of a run that was streaming then."""

    took_s: float
    target: str
    killed_at_s: float  # since the first fault was waited for
    run: str


@dataclass(slots=True)
class Report:
    """What came of it."""

    seed: int
    kills: dict[str, int] = field(default_factory=dict)  # what was killed, how often
    outcomes: dict[str, int] = field(default_factory=dict)
    events: int = 0
    reconnects: int = 0
    violations: list[Violation] = field(default_factory=list)
    waits: list[Wait] = field(default_factory=list)
    took_s: float = 0.0

    def __str__(self) -> str:
        lines = [
            f"seed {self.seed}: {sum(self.outcomes.values())} runs, {self.events} events, "
            f"{self.reconnects} reconnects in {self.took_s:.0f} s",
            f"  kills: {sum(self.kills.values())} ({_told(self.kills)})",
            f"  runs: {_told(self.outcomes)}",
            *_waits(self.waits),
            f"  violations: {len(self.violations)}",
            *(f"    {violation}"[:2000] for violation in self.violations[:20]),
        ]
        return "\n".join(lines)


def _told(counts: Mapping[str, int]) -> str:
    return ", ".join(f"{count} {name}" for name, count in sorted(counts.items()))


def _waits(waits: Sequence[Wait]) -> list[str]:
    """Percentiles of the time from a kill to the next new event of a run that was streaming."""
    by_target: dict[str, list[float]] = {"anything": [wait.took_s for wait in waits]}
    for wait in waits:
        by_target.setdefault(wait.target, []).append(wait.took_s)
    lines = [
        f"  from the kill of {target} to the next event (n={len(found)}): "
        f"p50 {percentile(found, 50):.2f} s, p99 {percentile(found, 99):.2f} s, "
        f"max {max(found):.2f} s"
        for target, found in sorted(by_target.items())
        if found
    ]
    slowest = [
        f"{wait.took_s:.1f} s {wait.run} after {wait.target} at {wait.killed_at_s:.0f} s"
        for wait in sorted(waits, reverse=True)[:5]
    ]
    return [*lines, f"  the slowest: {'; '.join(slowest)}"] if slowest else lines


def percentile(values: Sequence[float], percent: float) -> float:
    """Of a list that is not empty: the value that so many percent do not exceed."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(len(ordered) * percent / 100))]


@dataclass
class System:
    """Everything that can be hurt."""

    fleet: Fleet
    brokers: Brokers
    recorders: Sequence[Recorder]
    killed_at: list[tuple[float, str]] = field(default_factory=list)
    hurt_pids: set[int] = field(default_factory=set)
    began: float = 0.0

    async def hurt(self, fault: Fault) -> None:
        """Do it, wait, and make it good."""
        match fault.target:
            case "upstream":
                self.recorders[fault.number].cut()
            case "broker":
                async with self.brokers.alone():
                    await self._hurt_broker(fault)
            case service:
                slot = self.fleet.of(service)[fault.number]
                async with slot.alone:
                    await self._hurt_slot(fault, slot)

    async def _hurt_broker(self, fault: Fault) -> None:
        number = fault.number
        if fault.kind == "kill":
            self._note(fault)
            await self.brokers.kill(number)
            await asyncio.sleep(fault.for_s)
            await self.brokers.start(number)
        else:
            server = self.brokers.servers[number]
            server.pause()
            await asyncio.sleep(fault.for_s)
            server.go_on()

    async def _hurt_slot(self, fault: Fault, slot: Slot) -> None:
        self.hurt_pids.add(slot.pid)
        match fault.kind:
            case "kill":
                if slot.kill():
                    self._note(fault)
                await asyncio.sleep(fault.for_s)
                await asyncio.to_thread(slot.start)
                await self.fleet.ready(slot)
            case "pause":
                slot.pause()
                await asyncio.sleep(fault.for_s)
                slot.go_on()
            case kind:
                pid = slot.pid
                for link in self.brokers.links:
                    link.cut(pid) if kind == "cut" else link.hang(pid)
                await asyncio.sleep(fault.for_s)
                for link in self.brokers.links:
                    link.heal(pid)

    def _note(self, fault: Fault) -> None:
        self.killed_at.append((asyncio.get_running_loop().time(), fault.target))


async def play(round_: Round, folder: Path, agno: Upstream, adk: Upstream) -> Report:
    """Play a round. The report has every violation."""
    faults = list(round_.faults) or schedule(round_.seed, round_.kills, round_.shape)
    report = Report(round_.seed)
    begun = time.monotonic()
    counts = dict(round_.shape.count)
    brokers, _ = counts.pop("broker"), counts.pop("upstream")
    async with AsyncExitStack() as stack:
        recorders = [await stack.enter_async_context(recorder(each.url)) for each in (agno, adk)]
        proxies = await stack.enter_async_context(links.links(brokers))
        servers = await stack.enter_async_context(running(brokers, proxies, folder))
        http = await stack.enter_async_context(
            httpx.AsyncClient(
                timeout=httpx.Timeout(15, read=60), limits=httpx.Limits(max_connections=None)
            )
        )
        made = Brokers(servers, proxies)
        environment = _environment(round_, folder, made.url, recorders, brokers)
        services = await stack.enter_async_context(
            fleet(folder, counts, environment, round_.launchers, http)
        )
        system = System(services, made, recorders)
        print(f"\n{shown(round_.seed, faults)}", flush=True)
        stories, report.violations = await _load(round_, faults, system, http)
        await made.whole()
        runs = await gather.runs(made, recorders, stories, [*agno.tool_runs(), *adk.tool_runs()])
        remains = await gather.remains(made, services, stories)
    harm = Harm(system.hurt_pids)
    report.violations += [violation for run in runs for violation in check_run(run, harm)]
    report.violations += check_remains(remains)
    report.kills = dict(Counter(target for _, target in system.killed_at))
    report.outcomes = dict(Counter(outcome_of(run) for run in runs))
    report.events = sum(len(run.bodies) for run in runs)
    report.reconnects = sum(view.connections - 1 for run in runs for view in run.views)
    report.waits = list(waits_after(system, stories))
    report.took_s = time.monotonic() - begun
    return report


def _environment(
    round_: Round, folder: Path, url: str, recorders: Sequence[Recorder], replicas: int
) -> dict[str, str]:
    folder.mkdir(parents=True, exist_ok=True)
    agno, adk = (each.url for each in recorders)
    config = folder / "penstock.yaml"
    agents = [
        {"id": "agno", "protocol": "agno", "url": agno, "agent": "demo-agent"},
        {"id": "adk", "protocol": "adk", "url": adk, "agent": "demo"},
    ]
    config.write_text(yaml.safe_dump({"agents": agents}))
    settings = {"config": config, "nats_url": url, "replicas": replicas, **round_.settings}
    return {f"PENSTOCK_{name.upper()}": str(value) for name, value in settings.items()}


async def _load(
    round_: Round, faults: Sequence[Fault], system: System, http: httpx.AsyncClient
) -> tuple[list[Story], list[Violation]]:
    """Start runs at a steady pace while the faults happen, and see them all through."""
    hurting = asyncio.create_task(_hurt(faults, system))
    stories: list[Story] = []
    living: list[asyncio.Task[None]] = []
    for plan in plans(round_.seed, _nonce()):
        if hurting.done() and len(stories) >= round_.runs:
            break
        story = Story(plan, system.fleet.of("edge"), system.fleet.of("approvals"), http)
        stories.append(story)
        living.append(asyncio.create_task(story.live(), name=plan.mark))
        await asyncio.sleep(1 / round_.runs_per_s)
    broken = await hurting
    _, late = await asyncio.wait(living, timeout=round_.end_timeout_s)
    for task in late:
        task.cancel()
    ends = await asyncio.gather(*living, return_exceptions=True)
    broken += [
        Violation("client", plan.mark, repr(end))
        for plan, end in zip((story.plan for story in stories), ends, strict=True)
        if isinstance(end, BaseException)
    ]
    return stories, broken


def _nonce() -> str:
    """Digits that no other round on the same servers has: what its runs did is told by them."""
    return str(time.time_ns() // 1_000_000 % 1_000_000_000)


async def _hurt(faults: Sequence[Fault], system: System) -> list[Violation]:
    """Do each at its time; what could not be made good again."""
    clock = asyncio.get_running_loop().time
    system.began = clock()
    hurting = []
    for fault in faults:
        await asyncio.sleep(max(0.0, system.began + fault.at_s - clock()))
        hurting.append(asyncio.create_task(system.hurt(fault)))
    ends = await asyncio.gather(*hurting, return_exceptions=True)
    return [
        Violation("not made good", "", f"{fault}: {end!r}")
        for fault, end in zip(faults, ends, strict=True)
        if end is not None
    ]


def waits_after(system: System, stories: Sequence[Story]) -> Iterator[Wait]:
    """For each kill, and each run that was streaming then: how long its next event took."""
    for (killed, target), story in product(system.killed_at, stories):
        seen = story.arrivals
        place = bisect(seen, killed, key=lambda arrival: arrival[0])
        if not 0 < place < len(seen):
            continue
        at, name = seen[place - 1]
        if killed - at <= STREAMING_S and name not in _SILENT:
            yield Wait(seen[place][0] - killed, target, killed - system.began, story.plan.mark)
