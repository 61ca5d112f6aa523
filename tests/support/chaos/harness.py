"""One round: the system is started, loaded and hurt; then every run is looked at.

```python
report = await play(Round(7, 60, shape, runs=200, runs_per_s=1), folder, agno_server, adk_server)
assert not report.violations, report
```
"""

from __future__ import annotations

import asyncio
import math
import time
from bisect import bisect
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AsyncExitStack, contextmanager, nullcontext
from dataclasses import dataclass, field
from itertools import product
from pathlib import Path

import httpx
import yaml

from support.chaos import gather, links
from support.chaos.brokers import Brokers, running
from support.chaos.checker import (
    ENDS,
    POD_TTL_S,
    Harm,
    Hurt,
    Violation,
    check_remains,
    check_run,
    outcome_of,
    reattached,
)
from support.chaos.clients import Story
from support.chaos.fleet import Fleet, Slot, fleet
from support.chaos.plans import plans
from support.chaos.recorder import Recorder, recorder
from support.chaos.report import Report, Wait
from support.chaos.schedule import Fault, Shape, schedule, shown
from support.upstreams import Upstream

# Without a broker nobody renews a lease, and nobody is judged for it. Behind one that is stopped,
# only those are cut off who were connected to it.
_SPLITS = ("broker", "pause")
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


@dataclass(slots=True)
class Done:
    """A fault as it came about. Times are the loop's; until it was made good, without end."""

    fault: Fault
    at_s: float
    pid: int | None = None  # None: of no service
    until_s: float = math.inf

    @property
    def name(self) -> str:
        return f"{self.fault.kind} {self.fault.target} {self.fault.number}"


@dataclass
class System:
    """Everything that can be hurt."""

    fleet: Fleet
    brokers: Brokers
    recorders: Sequence[Recorder]
    done: list[Done] = field(default_factory=list)
    began: float = 0.0

    @property
    def kills(self) -> list[Done]:
        return [done for done in self.done if done.fault.kind == "kill"]

    def harm(self, lease_s: float) -> Harm:
        """What of it may lose an upstream; RAW's times are seconds since 1970."""
        since_1970_s = time.time() - asyncio.get_running_loop().time()
        return Harm(
            [
                Hurt(done.pid, done.at_s + since_1970_s, done.until_s + since_1970_s)
                for done in self.done
                if done.pid is not None or (done.fault.target, done.fault.kind) == _SPLITS
            ],
            lease_s,
        )

    async def hurt(self, fault: Fault) -> None:
        """Do it, wait, and make it good."""
        match fault.target:
            case "upstream":
                with self._noted(fault):
                    self.recorders[fault.number].cut()
            case "broker":
                async with self.brokers.alone():
                    with self._noted(fault):
                        await self._hurt_broker(fault)
            case service:
                slot = self.fleet.of(service)[fault.number]
                async with slot.alone:
                    await self._hurt_slot(fault, slot)

    async def _hurt_broker(self, fault: Fault) -> None:
        number = fault.number
        if fault.kind == "kill":
            await self.brokers.kill(number)
            await asyncio.sleep(fault.for_s)
            await self.brokers.start(number)
        else:
            server = self.brokers.servers[number]
            server.pause()
            await asyncio.sleep(fault.for_s)
            server.go_on()

    async def _hurt_slot(self, fault: Fault, slot: Slot) -> None:
        pid = slot.pid
        match fault.kind:
            case "kill":
                # it may have ended by itself just then
                with self._noted(fault, pid) if slot.kill() else nullcontext():
                    await asyncio.sleep(fault.for_s)
                    await asyncio.to_thread(slot.start)
                    await self.fleet.ready(slot)
            case "pause":
                with self._noted(fault, pid):
                    slot.pause()
                    await asyncio.sleep(fault.for_s)
                    slot.go_on()
            case kind:
                with self._noted(fault, pid):
                    for link in self.brokers.links:
                        link.cut(pid) if kind == "cut" else link.hang(pid)
                    await asyncio.sleep(fault.for_s)
                    for link in self.brokers.links:
                        link.heal(pid)

    @contextmanager
    def _noted(self, fault: Fault, pid: int | None = None) -> Iterator[None]:
        """It lasts as long as this."""
        clock = asyncio.get_running_loop().time
        done = Done(fault, clock(), pid)
        self.done.append(done)
        yield
        done.until_s = clock()


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
    harm = system.harm(float(str(round_.settings.get("pod_ttl_s", POD_TTL_S))))
    report.violations += [violation for run in runs for violation in check_run(run, harm)]
    report.violations += check_remains(remains)
    report.kills = dict(Counter(done.fault.target for done in system.kills))
    report.outcomes = dict(Counter(outcome_of(run) for run in runs))
    report.events = sum(len(run.bodies) for run in runs)
    report.reconnects = sum(view.connections - 1 for run in runs for view in run.views)
    report.reattached = sum(reattached(run) for run in runs)
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
    for kill, story in product(system.kills, stories):
        seen = story.arrivals
        place = bisect(seen, kill.at_s, key=lambda arrival: arrival[0])
        if not 0 < place < len(seen):
            continue
        at, name = seen[place - 1]
        if kill.at_s - at <= STREAMING_S and name not in _SILENT:
            next_at = seen[place][0]
            meanwhile = tuple(
                other.name
                for other in system.done
                if other is not kill and other.at_s <= next_at and other.until_s >= kill.at_s
            )
            yield Wait(
                next_at - kill.at_s,
                kill.fault.target,
                kill.at_s - system.began,
                story.plan.mark,
                meanwhile,
            )
