"""The load on the machine during a round, which shows whether a late event means a defect.

A separate process does a little work four times a second. It reports how long the work took and how
much of that time the process had a CPU. This process shares nothing with the tested processes, so
only the machine can slow it down. The harness also measures the delays of its own event loop and of
the faults.
"""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

EVERY_S = 0.25
WORK_S = 0.01  # CPU time of each piece of work
WINDOW_S = 10.0
# A process renews its lease three to five times before the lease expires. If everything takes four
# times as long for ten seconds, some leases expire although their processes run.
STARVED = 4.0
LATE_S = 2.0  # an event loop this late has also missed renewals


@dataclass(frozen=True, slots=True)
class Sample:
    """One measurement. `slower` is the factor by which the work took longer than on a free CPU."""

    at_s: float  # by the monotonic clock
    slower: float


@dataclass(slots=True)
class Load:
    """All measurements of a round."""

    samples: list[Sample] = field(default_factory=list)
    loop_late_s: list[float] = field(default_factory=list)  # of the harness
    faults_late_s: list[float] = field(default_factory=list)

    @property
    def worst(self) -> float:
        """The highest mean over ten seconds."""
        means = []
        first = 0
        for last, sample in enumerate(self.samples):
            while sample.at_s - self.samples[first].at_s > WINDOW_S:
                first += 1
            window = self.samples[first : last + 1]
            means.append(sum(each.slower for each in window) / len(window))
        return max(means, default=1.0)

    @property
    def mean(self) -> float:
        """The mean over the whole round."""
        return sum(each.slower for each in self.samples) / max(1, len(self.samples))

    @property
    def starved(self) -> bool:
        """Whether the machine was so slow that time limits may have failed because of it."""
        return self.worst > STARVED or max(self.loop_late_s, default=0.0) > LATE_S

    def __add__(self, other: Load) -> Load:
        return Load(
            [*self.samples, *other.samples],
            [*self.loop_late_s, *other.loop_late_s],
            [*self.faults_late_s, *other.faults_late_s],
        )

    def __str__(self) -> str:
        verdict = "STARVED" if self.starved else "not starved"
        return (
            f"machine: {verdict}; work took {self.mean:.1f} times as long, for {WINDOW_S:.0f} s "
            f"{self.worst:.1f} times; event loop late {_shown(self.loop_late_s)}, "
            f"faults late {_shown(self.faults_late_s)}"
        )


def _shown(late_s: Sequence[float]) -> str:
    return f"{max(late_s, default=0.0):.1f} s at most"


@asynccontextmanager
async def measured() -> AsyncIterator[Load]:
    """Measure during the `with` block."""
    load = Load()
    process = await asyncio.create_subprocess_exec(
        sys.executable, __file__, stdout=asyncio.subprocess.PIPE
    )
    tasks = [asyncio.create_task(_read(process, load)), asyncio.create_task(_look(load))]
    try:
        yield load
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks)
        if process.returncode is None:
            process.kill()
        await process.wait()


async def _read(process: asyncio.subprocess.Process, load: Load) -> None:
    assert process.stdout is not None
    async for line in process.stdout:
        at_s, slower = line.split()
        load.samples.append(Sample(float(at_s), float(slower)))


async def _look(load: Load) -> None:
    clock = asyncio.get_running_loop().time
    while True:
        due = clock() + EVERY_S
        await asyncio.sleep(EVERY_S)
        load.loop_late_s.append(clock() - due)


def work() -> float:
    """Do the work; return its duration divided by the CPU time that the work needs."""
    began_s, began_cpu_s = time.monotonic(), time.process_time()
    while time.process_time() - began_cpu_s < WORK_S:
        sum(range(1000))
    return (time.monotonic() - began_s) / (time.process_time() - began_cpu_s)


def main() -> None:
    """Measure until the reader closes the pipe."""
    while True:
        slower = work()
        try:
            print(time.monotonic(), slower, flush=True)
        except BrokenPipeError:
            return
        time.sleep(EVERY_S)


if __name__ == "__main__":
    main()
