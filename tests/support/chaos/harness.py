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

from support.chaos.brokers import Brokers
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
from support.chaos.load import measured
from support.chaos.recorder import Recorder
from support.chaos.report import Report, Wait
from support.chaos.schedule import EVERYTHING, MAJORITY, Fault, schedule, shown
from support.chaos.stage import AROUND, NOT_IN_TIME, Round, gathered, load, staged, write_down
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
    counts = round_.shape.count
    async with AsyncExitStack() as stack:
        stage = await stack.enter_async_context(staged(round_, folder, upstreams))
        services = await stack.enter_async_context(
            fleet(
                folder,
                {name: count for name, count in counts.items() if name not in AROUND},
                stage.environment,
                round_.launchers,
                stage.http,
                round_.clocks,
                round_.crashes,
            )
        )
        await stage.flowing.begin()
        system = System(services, stage.brokers, stage.recorders, round_.older)
        print(f"\n{shown(round_.seed, faults)}", flush=True)
        report.load = await stack.enter_async_context(measured())
        stories, report.violations = await load(
            round_,
            asyncio.create_task(_hurt(faults, system)),
            stage.http,
            tuple(upstreams),
            services.of("edge"),
            services.of("approvals"),
        )
        report.load.faults_late_s += system.late_s
        found, runs, remains = await gathered(stage, upstreams, stories, services.processes)
        report.violations += found
    system.note_crashes()
    for run, story in zip(runs, stories, strict=True):
        run.loses = system.lost_by(story)
    harm = system.harm(float(str(round_.settings.get("pod_ttl_s", POD_TTL_S))))
    report.violations += [violation for run in runs for violation in check_run(run, harm)]
    report.violations += check_remains(remains)
    write_down(folder, runs, report)
    report.kills = dict(Counter(done.fault.target for done in system.kills))
    report.outcomes = dict(Counter(outcome_of(run) for run in runs))
    report.events = sum(len(run.bodies) for run in runs)
    report.reconnects = sum(view.connections - 1 for run in runs for view in run.views)
    report.reattached = sum(reattached(run) for run in runs)
    report.waits = list(waits_after(system, stories))
    report.took_s = time.monotonic() - begun
    return report


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
        Violation("not made good", "", f"{fault}: {end!r}", isinstance(end, NOT_IN_TIME))
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
