"""The processes of the services. Each has a slot, which starts a new process after a kill."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Iterable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

import httpx

from support.chaos.evidence import Processes
from support.chaos.hurt_at import HURT
from support.drive.repository import ROOT
from support.drive.waiting import eventually, wait_for
from support.fakes.clocks import ShiftedClock, libfaketime
from support.real import servers
from support.real.ports import free_port

CANNOT_START = 2  # the exit code of a service that finds no bus; it is started again
_READY_TIMEOUT_S = 120
_END_TIMEOUT_S = 20
_LOOK_EVERY_S = 0.2
_START_AGAIN_S = 0.5
_LIVES_S = 12.0  # the fleet kills a process that has not killed itself by then
# The exit code for SIGKILL, of a process and of its supervisor.
_KILLED_ITSELF = (-signal.SIGKILL, -signal.SIGKILL % 256)

Clocks = Mapping[tuple[str, int], float]  # by service and number: seconds that the clock is ahead


@dataclass(slots=True)
class Exit:
    """A process that ended without a fault of the schedule."""

    who: str
    code: int
    log: str


@dataclass(slots=True)
class Slot:
    """A place for one process of a service, with the same ports each time.

    `crashes` names, for each process that this slot starts, the write at which the process kills
    itself (see `hurt_at`). A process after the last name does not kill itself.
    """

    service: str
    number: int
    program: Sequence[str]  # for Python: `-m`, the module and its arguments
    log: Path
    environment: Mapping[str, str]
    port: int = field(default_factory=free_port)
    probe_port: int = field(default_factory=free_port)
    pids: list[int] = field(default_factory=list)  # of all processes of this slot, the newest last
    alone: asyncio.Lock = field(default_factory=asyncio.Lock)  # held during a fault
    clock: ShiftedClock | None = None  # None: the real clock
    crashes: Iterator[str] | None = None
    hurt: str = ""  # the write at which the current process kills itself
    started_at: float = 0.0  # by the monotonic clock, which is also the loop's clock
    _process: servers.Process | None = None

    @property
    def name(self) -> str:
        return f"{self.service} {self.number}"

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @property
    def pid(self) -> int:
        """The process id of the service itself, not of its supervisor."""
        return self.pids[-1]

    @property
    def exit_code(self) -> int | None:
        """The exit code; None while the process runs and after a kill by `kill`."""
        return None if self._process is None else self._process.popen.poll()

    def start(self) -> None:
        """Start the process, without waiting until it is ready."""
        self.hurt = next(self.crashes, "") if self.crashes is not None else ""
        self.started_at = time.monotonic()
        environment = {
            **self.environment,
            HURT: self.hurt,
            "PENSTOCK_PORT": str(self.port),
            "PENSTOCK_PROBE_PORT": str(self.probe_port),
        }
        if self.clock is None:
            process = servers.start_python(self.name, self.program, log=self.log, env=environment)
            self.pids.append(process.popen.pid)
        else:
            process = servers.start(
                self.name,
                [*self.clock.command, sys.executable, *self.program],
                log=self.log,
                owner_pid=os.getpid(),
                env=environment,
            )
            children = Path(f"/proc/{process.popen.pid}/task/{process.popen.pid}/children")
            self.pids.append(int(wait_for(children.read_text, 10, f"the process of {self.name}")))
        self._process = process

    def kill(self) -> bool:
        """Send SIGKILL. Return False if the process had already ended."""
        assert self._process is not None
        process, self._process = self._process, None
        alive = process.popen.poll() is None
        if alive:
            with suppress(ProcessLookupError):
                os.kill(self.pid, signal.SIGKILL)
        process.popen.wait()
        return alive

    def pause(self) -> None:
        os.kill(self.pid, signal.SIGSTOP)

    def go_on(self) -> None:
        os.kill(self.pid, signal.SIGCONT)

    def stop(self) -> None:
        """Ask the process to end, without waiting for its end."""
        if self._process is not None and self.exit_code is None:
            self.go_on()
            self._process.popen.terminate()

    def wait(self) -> None:
        """Wait until the process has ended.

        A second SIGTERM before that would stop the service before it finishes its work.
        """
        if self._process is not None:
            try:
                self._process.popen.wait(_END_TIMEOUT_S)
            except subprocess.TimeoutExpired:
                self._process.stop()
            self._process = None


@dataclass(slots=True)
class Crash:
    """A process that killed itself at the given write."""

    slot: Slot
    pid: int
    at_s: float  # when the fleet noticed it, by the loop's clock
    on_purpose: bool = True  # False: the process never did that write, and the fleet killed it


@dataclass
class Fleet:
    """All slots. The fleet records ended processes and starts them again, like an orchestrator."""

    slots: list[Slot]
    http: httpx.AsyncClient
    exits: list[Exit] = field(default_factory=list)
    crashes: list[Crash] = field(default_factory=list)

    def of(self, service: str) -> list[Slot]:
        return [slot for slot in self.slots if slot.service == service]

    def processes(self) -> Processes:
        """Return the processes of now, and the ends without a fault."""
        ends = [each for each in self.exits if each.code != CANNOT_START]
        return Processes(
            frozenset(slot.pid for slot in self.slots),
            [f"{gone.who}: {gone.code}\n{gone.log}" for gone in ends],
        )

    async def ready(self, slot: Slot) -> None:
        """Wait until the slot's process is ready.

        A process with a shifted clock also counts as ready if it reports only problems of its
        clock. A process that kills itself is started again by `keep`, so the wait covers its
        successor.
        """

        async def probe() -> bool:
            try:
                answer = await self.http.get(f"http://127.0.0.1:{slot.probe_port}/readyz")
            except httpx.HTTPError:
                return False
            if answer.is_success or slot.clock is None:
                return answer.is_success
            reasons = answer.json()["services"][slot.service]
            return bool(reasons) and all("clock" in reason for reason in reasons)

        await eventually(probe, _READY_TIMEOUT_S, f"{slot.name} is ready")

    async def _kill_what_lives_too_long(self, slot: Slot) -> None:
        """Kill a process that does not reach its write in time, so that the next one is tried."""
        clock = asyncio.get_running_loop().time
        if slot.exit_code is not None or not slot.hurt or clock() - slot.started_at < _LIVES_S:
            return
        crash = Crash(slot, slot.pid, clock(), on_purpose=False)
        if slot.kill():
            self.crashes.append(crash)
        await asyncio.to_thread(slot.start)

    async def keep(self) -> None:
        """Start ended processes again, until cancelled."""
        while True:
            for slot in self.slots:
                code = slot.exit_code
                await self._kill_what_lives_too_long(slot)
                if code is not None:
                    if slot.crashes is not None and code in _KILLED_ITSELF:
                        at_s = asyncio.get_running_loop().time()
                        self.crashes.append(Crash(slot, slot.pid, at_s))
                    else:
                        self.exits.append(Exit(slot.name, code, servers.tail(slot.log)))
                    await asyncio.sleep(_START_AGAIN_S)
                    if slot.exit_code is not None:
                        await asyncio.to_thread(slot.start)
            await asyncio.sleep(_LOOK_EVERY_S)


def _clock(folder: Path, service: str, number: int, clocks: Clocks) -> ShiftedClock | None:
    library, ahead_s = libfaketime(), clocks.get((service, number))
    if library is None or ahead_s is None:
        return None
    clock = ShiftedClock(library, folder / f"{service}-{number}.clock")
    clock.set(ahead_s)
    return clock


@asynccontextmanager
async def fleet(
    folder: Path,
    counts: Mapping[str, int],
    environment: Mapping[str, str],
    launchers: Mapping[str, Sequence[str]],
    http: httpx.AsyncClient,
    clocks: Clocks,
    crashes: Mapping[str, Iterable[str]],
) -> AsyncIterator[Fleet]:
    """Start the services; yield when all are ready.

    `launchers`: the module to run, for a service that does not run as `-m penstock_<name>`.
    `crashes`: for a service, the writes at which its processes kill themselves (see `hurt_at`).
    """
    hurts = {service: iter(points) for service, points in crashes.items()}
    paths = [str(ROOT / "tests"), os.environ.get("PYTHONPATH", "")]
    common = {**environment, "PYTHONPATH": os.pathsep.join(filter(None, paths))}
    slots = [
        Slot(
            service,
            number,
            ["-m", *launchers.get(service, (f"penstock_{service}",))],
            folder / f"{service}-{number}.log",
            common,
            clock=_clock(folder, service, number, clocks),
            # The last process of a service never kills itself. If every process that takes a
            # command ended, the command would become a dead letter.
            crashes=hurts.get(service) if number < count - 1 else None,
        )
        for service, count in counts.items()
        for number in range(count)
    ]
    made = Fleet(slots, http)
    try:
        for slot in slots:
            slot.start()
        await asyncio.gather(*(made.ready(slot) for slot in slots))
        keeping = asyncio.create_task(made.keep())
        try:
            yield made
        finally:
            keeping.cancel()
            await asyncio.wait([keeping])
    finally:
        for slot in slots:
            slot.stop()
        for slot in slots:
            await asyncio.to_thread(slot.wait)
