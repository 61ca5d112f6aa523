"""One round: start the system, put load and faults on it, then check every run.

```python
servers = {"agno": agno_server, "adk": adk_server}
report = await play(Round(7, 60, shape, runs=200, runs_per_s=1), folder, servers)
assert not report.faults, report
```
"""

from __future__ import annotations

import asyncio
import math
import time
from bisect import bisect
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import AsyncExitStack, contextmanager, nullcontext
from dataclasses import dataclass, field
from itertools import product
from pathlib import Path

import httpx
import yaml

from support.chaos import deliveries, flows, gather, links
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
from support.chaos.evidence import Evidence, told
from support.chaos.fleet import Clocks, Fleet, Slot, fleet
from support.chaos.load import measured
from support.chaos.plans import ASKING, Agent, agui_scripts, plans
from support.chaos.recorder import Recorder, recorder
from support.chaos.report import Report, Wait
from support.chaos.schedule import EVERYTHING, MAJORITY, Fault, Shape, schedule, shown
from support.real.upstreams import Upstream
from support.recorded.older_store import copied, put_back


def _splits(fault: Fault) -> bool:
    """Return whether the fault cuts off some processes and not others.

    While a broker is down, no process can renew its lease, and no lease is judged. While one broker
    is paused, only the processes that are connected to that broker are cut off.
    """
    return (fault.target, fault.kind) == ("broker", "pause")


_LOOK_S = 1.0
CRASHED_S = 3.0  # time until the fleet has started a crashed process again
SETTLED_S = 10.0  # a loss may include messages written this long around it
STREAMING_S = 1.0  # a run with an event within the last second is streaming
_SILENT = {
    *ENDS,
    "approval.requested",
    "lifecycle.paused",
    "approval.decided",
}  # a run is not streaming after these events


@dataclass(frozen=True, slots=True)
class Round:
    """The parameters of a round. The same seed gives the same runs and the same faults."""

    seed: int
    kills: int
    shape: Shape
    runs: int  # at least; further runs start while faults are left
    runs_per_s: float
    settings: Mapping[str, object] = field(default_factory=dict)  # as PENSTOCK_<NAME>
    launchers: Mapping[str, Sequence[str]] = field(default_factory=dict)
    # The round ends if, after the last fault, no client has seen a new event for this long.
    end_timeout_s: float = 120.0
    faults: Sequence[Fault] = ()  # used in place of the faults that the seed gives
    clocks: Clocks = field(default_factory=dict)  # seconds ahead, by process
    crashes: Mapping[str, Iterable[str]] = field(default_factory=dict)  # see `Slot.crashes`
    asking: float = ASKING  # the share of the runs that wait for a decision
    older: Sequence[str] = ()  # the streams whose older store a fault puts back


@dataclass(slots=True)
class Done:
    """A fault that was carried out. Times are the loop's; `until_s` is infinite until its end."""

    fault: Fault
    at_s: float
    pids: frozenset[int] = frozenset()  # of services
    until_s: float = math.inf

    @property
    def name(self) -> str:
        return f"{self.fault.kind} {self.fault.target} {self.fault.number}"


@dataclass
class System:
    """Everything that faults can hit, and the record of the faults."""

    fleet: Fleet
    brokers: Brokers
    recorders: Sequence[Recorder]
    older: Sequence[str] = ()
    done: list[Done] = field(default_factory=list)
    late_s: list[float] = field(default_factory=list)  # the delay of each fault
    began: float = 0.0

    @property
    def kills(self) -> list[Done]:
        return [done for done in self.done if done.fault.kind == "kill"]

    def note_crashes(self) -> None:
        """Record processes that killed themselves on purpose as kills."""
        for crash in self.fleet.crashes:
            fault = Fault(crash.at_s - self.began, "kill", crash.slot.service, crash.slot.number, 0)
            done = Done(fault, crash.at_s, frozenset({crash.pid}), crash.at_s + CRASHED_S)
            self.done.append(done)

    def lost_by(self, story: Story) -> frozenset[str]:
        """Return the streams that may have lost messages of this run."""
        hit = any(
            done.fault.kind == "older"
            and story.began <= done.until_s + SETTLED_S
            and story.ended >= done.at_s - SETTLED_S
            for done in self.done
        )
        return frozenset(self.older if hit else ())

    def harm(self, lease_s: float) -> Harm:
        """Return the faults that may cause the loss of an upstream, in seconds since 1970."""
        since_1970_s = time.time() - asyncio.get_running_loop().time()
        return Harm(
            [
                Hurt(pid, done.at_s + since_1970_s, done.until_s + since_1970_s)
                for done in self.done
                for pid in done.pids or ((None,) if _splits(done.fault) else ())
            ],
            lease_s,
        )

    async def hurt(self, fault: Fault) -> None:
        """Carry out the fault, wait, and repair it."""
        match fault.target:
            case "upstream":
                with self._noted(fault):
                    self.recorders[fault.number].cut()
            case "broker":
                async with self.brokers.alone():
                    with self._noted(fault):
                        await self._hurt_broker(fault)
            case target if target == MAJORITY:
                async with self.brokers.alone():
                    with self._noted(fault):
                        others = {*range(len(self.brokers.servers))} - {fault.number}
                        await self._kill_brokers(others, fault.for_s)
            case target if target == EVERYTHING:
                await self._kill_everything(fault)
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
        elif fault.kind == "older":
            server = self.brokers.servers[number]
            kept = await asyncio.to_thread(copied, server, *self.older)
            await asyncio.sleep(fault.for_s)
            await asyncio.to_thread(put_back, server, kept, *self.older)
        else:
            server = self.brokers.servers[number]
            server.pause()
            await asyncio.sleep(fault.for_s)
            server.go_on()

    async def _kill_brokers(self, numbers: Iterable[int], for_s: float) -> None:
        numbers = tuple(numbers)
        await asyncio.gather(*map(self.brokers.kill, numbers))
        await asyncio.sleep(for_s)
        await asyncio.gather(*map(self.brokers.start, numbers))

    async def _kill_everything(self, fault: Fault) -> None:
        """Kill all processes at once, as in a crash of the machine in which no disk loses data."""
        slots = self.fleet.slots
        async with AsyncExitStack() as stack:
            await stack.enter_async_context(self.brokers.alone())
            for slot in slots:
                await stack.enter_async_context(slot.alone)
            with self._noted(fault, *(slot.pid for slot in slots)):
                for slot in slots:
                    slot.kill()
                await self._kill_brokers(range(len(self.brokers.servers)), fault.for_s)
                await asyncio.gather(*(asyncio.to_thread(slot.start) for slot in slots))
                await asyncio.gather(*map(self.fleet.ready, slots))

    async def _hurt_slot(self, fault: Fault, slot: Slot) -> None:
        pid = slot.pid
        match fault.kind:
            case "kill":
                # If the process had just ended without this fault, no kill is recorded.
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
    def _noted(self, fault: Fault, *pids: int) -> Iterator[None]:
        """Record the fault with the duration of the `with` block."""
        clock = asyncio.get_running_loop().time
        done = Done(fault, clock(), frozenset(pids))
        self.done.append(done)
        yield
        done.until_s = clock()


async def play(round_: Round, folder: Path, upstreams: Mapping[str, Upstream]) -> Report:
    """Play a round. The report has every violation.

    `upstreams`: the agent servers of the round by their names `agno`, `adk`, `agui`.
    """
    faults = list(round_.faults)
    if round_.kills:
        faults += schedule(round_.seed, round_.kills, round_.shape)
    report = Report(round_.seed)
    begun = time.monotonic()
    counts = dict(round_.shape.count)
    brokers, _ = counts.pop("broker"), counts.pop("upstream")
    async with AsyncExitStack() as stack:
        recorders = [
            await stack.enter_async_context(recorder(each.url)) for each in upstreams.values()
        ]
        proxies = await stack.enter_async_context(links.links(brokers))
        servers = await stack.enter_async_context(running(brokers, proxies, folder))
        http = await stack.enter_async_context(
            httpx.AsyncClient(
                timeout=httpx.Timeout(15, read=60), limits=httpx.Limits(max_connections=None)
            )
        )
        made = Brokers(servers, proxies)
        urls = {name: each.url for name, each in zip(upstreams, recorders, strict=True)}
        hooks, settings = None, dict[str, object]()
        if deliveries.SERVICE in counts:
            found = await stack.enter_async_context(deliveries.hooks(folder, round_.seed))
            hooks, settings = found
        flowing = await stack.enter_async_context(flows.flows(made.url, flows.SERVICE in counts))
        environment = _environment(
            round_, folder, made.url, urls, brokers, settings, flowing.agents
        )
        services = await stack.enter_async_context(
            fleet(
                folder, counts, environment, round_.launchers, http, round_.clocks, round_.crashes
            )
        )
        await flowing.begin()
        system = System(services, made, recorders, round_.older)
        print(f"\n{shown(round_.seed, faults)}", flush=True)
        report.load = await stack.enter_async_context(measured())
        stories, report.violations = await _load(round_, faults, system, http, tuple(upstreams))
        report.load.faults_late_s += system.late_s
        await made.whole()
        report.violations += await flowing.check()
        runs = await gather.runs(
            made,
            recorders,
            stories,
            lambda: [ran for each in upstreams.values() for ran in each.tool_runs()],
            hooks,
        )
        remains = await gather.remains(made, services, stories)
    system.note_crashes()
    for run, story in zip(runs, stories, strict=True):
        run.loses = system.lost_by(story)
    harm = system.harm(float(str(round_.settings.get("pod_ttl_s", POD_TTL_S))))
    report.violations += [violation for run in runs for violation in check_run(run, harm)]
    report.violations += check_remains(remains)
    if hooks is not None:
        report.violations += [Violation("signature", "", each) for each in hooks.bad_signatures]
    _write_down(folder, runs, report)
    report.kills = dict(Counter(done.fault.target for done in system.kills))
    report.outcomes = dict(Counter(outcome_of(run) for run in runs))
    report.events = sum(len(run.bodies) for run in runs)
    report.reconnects = sum(view.connections - 1 for run in runs for view in run.views)
    report.reattached = sum(reattached(run) for run in runs)
    report.waits = list(waits_after(system, stories))
    report.took_s = time.monotonic() - begun
    return report


def _environment(
    round_: Round,
    folder: Path,
    url: str,
    urls: Mapping[str, str],
    replicas: int,
    more: Mapping[str, object],
    further: Sequence[dict[str, object]] = (),
) -> dict[str, str]:
    folder.mkdir(parents=True, exist_ok=True)
    config = folder / "penstock.yaml"
    agents: list[dict[str, object]] = [*further]
    if "agno" in urls:
        agents.append(
            {"id": "agno", "protocol": "agno", "url": urls["agno"], "agent": "demo-agent"}
        )
    if "adk" in urls:
        common = {"protocol": "adk", "url": urls["adk"]}
        agents.append({"id": "adk", "agent": "demo", **common})
        agents.append({"id": "resumable", "agent": "resumable", "resumable": True, **common})
    agents += [
        {"id": f"agui-{script}", "protocol": "agui", "url": f"{urls['agui']}/{script}"}
        for script in (agui_scripts() if "agui" in urls else ())
    ]
    config.write_text(yaml.safe_dump({"agents": agents}))
    settings = {"config": config, "nats_url": url, "replicas": replicas, **_OPEN, **more}
    settings |= round_.settings
    return {f"PENSTOCK_{name.upper()}": str(value) for name, value in settings.items()}


# The agents that runs use, by agent server. A repeated agent gets more of the runs.
_ASKED: dict[str, tuple[Agent, ...]] = {
    "agno": ("agno", "agno", "agno"),
    "adk": ("adk", "resumable"),
    "agui": ("agui",),
}
# All clients are one user, so the limits per user are off. No check here is about quotas.
_OPEN = {
    "max_open_runs_per_user": 0,
    "max_queued_runs_per_user": 0,
    "max_connections_per_user": 0,
    "max_streams_per_user": 0,
    "max_requests_per_s": 0,
}


def _write_down(folder: Path, runs: Sequence[Evidence], report: Report) -> None:
    """Write a file with all data of each run that has a violation, to help find the cause."""
    for run in runs:
        name = f"{run.plan.mark} {run.run_id}"
        found = [str(each) for each in report.violations if each.run == name]
        if found:
            (folder / f"wrong-{run.plan.mark}.txt").write_text(told(run, found))


async def _load(
    round_: Round,
    faults: Sequence[Fault],
    system: System,
    http: httpx.AsyncClient,
    servers: Sequence[str],
) -> tuple[list[Story], list[Violation]]:
    """Start runs at a steady pace during the faults, and wait for their ends."""
    hurting = asyncio.create_task(_hurt(faults, system))
    stories: list[Story] = []
    living: list[asyncio.Task[None]] = []
    agents = [agent for name in servers for agent in _ASKED[name]]
    for plan in plans(round_.seed, _nonce(), agents, round_.asking):
        if hurting.done() and len(stories) >= round_.runs:
            break
        story = Story(plan, system.fleet.of("edge"), system.fleet.of("approvals"), http)
        stories.append(story)
        living.append(asyncio.create_task(story.live(), name=plan.mark))
        await asyncio.sleep(1 / round_.runs_per_s)
    broken = await hurting
    for task in await _until_still(living, stories, round_.end_timeout_s):
        task.cancel()
    ends = await asyncio.gather(*living, return_exceptions=True)
    broken += [
        Violation("client", plan.mark, repr(end), isinstance(end, _NOT_IN_TIME))
        for plan, end in zip((story.plan for story in stories), ends, strict=True)
        if isinstance(end, BaseException)
    ]
    return stories, broken


_NOT_IN_TIME = (TimeoutError, asyncio.CancelledError)


async def _until_still(
    living: Sequence[asyncio.Task[None]], stories: Sequence[Story], still_s: float
) -> set[asyncio.Task[None]]:
    """Wait until all tasks have ended, or no client has seen a new event for `still_s`.

    Return the tasks that have not ended. On a starved machine events come late, so the wait
    continues as long as events come.
    """
    left = set(living)
    clock = asyncio.get_running_loop().time
    moved_at, before = clock(), -1
    while left and clock() - moved_at < still_s:
        _, left = await asyncio.wait(left, timeout=_LOOK_S)
        stands = sum(len(story.arrivals) for story in stories) - len(left)
        if stands != before:
            moved_at, before = clock(), stands
    return left


def _nonce() -> str:
    """Return digits that no other round on the same servers has, to recognize the round's runs."""
    return str(time.time_ns() // 1_000_000 % 1_000_000_000)


async def _hurt(faults: Sequence[Fault], system: System) -> list[Violation]:
    """Carry out each fault at its time. Return the faults whose repair failed."""
    clock = asyncio.get_running_loop().time
    system.began = clock()
    hurting = []
    for fault in faults:
        await asyncio.sleep(max(0.0, system.began + fault.at_s - clock()))
        system.late_s.append(clock() - system.began - fault.at_s)
        hurting.append(asyncio.create_task(system.hurt(fault)))
    ends = await asyncio.gather(*hurting, return_exceptions=True)
    return [
        Violation("not made good", "", f"{fault}: {end!r}", isinstance(end, _NOT_IN_TIME))
        for fault, end in zip(faults, ends, strict=True)
        if end is not None
    ]


def waits_after(system: System, stories: Sequence[Story]) -> Iterator[Wait]:
    """For each kill and each run that was streaming then, yield the time to its next event."""
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
