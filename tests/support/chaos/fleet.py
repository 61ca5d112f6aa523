"""The processes of the services, each in a slot that is filled again when it is killed."""

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

from support.chaos.hurt_at import HURT
from support.drive.repository import ROOT
from support.drive.waiting import eventually, wait_for
from support.fakes.clocks import ShiftedClock, libfaketime
from support.real import servers
from support.real.ports import free_port

CANNOT_START = 2  # the exit code of a service that finds no bus: it is started again
_READY_TIMEOUT_S = 120
_END_TIMEOUT_S = 20
_LOOK_EVERY_S = 0.2
_START_AGAIN_S = 0.5
_LIVES_S = 12.0  # who has not killed itself by then is killed
_KILLED_ITSELF = -signal.SIGKILL % 256  # as its supervisor says it

Clocks = Mapping[tuple[str, int], float]  # of a service's n-th process, how far ahead, in seconds


@dataclass(slots=True)
class Exit:
    """A process that ended by itself."""

    who: str
    code: int
    log: str


@dataclass(slots=True)
class Slot:
    """A place for one process of a service, at the same ports each time.

    `crashes` says of each process that is started here in turn at which of its writes it kills
    itself (see `hurt_at`); once there are no more, none does.
    """

    service: str
    number: int
    command: Sequence[str]
    log: Path
    environment: Mapping[str, str]
    port: int = field(default_factory=free_port)
    probe_port: int = field(default_factory=free_port)
    pids: list[int] = field(default_factory=list)  # of all that were here, the last one last
    alone: asyncio.Lock = field(default_factory=asyncio.Lock)  # one fault at a time
    clock: ShiftedClock | None = None  # None: the real one
    crashes: Iterator[str] | None = None
    hurt: str = ""  # where the process that is here kills itself
    started_at: float = 0.0  # by the monotonic clock, which is the loop's
    _process: servers.Process | None = None

    @property
    def name(self) -> str:
        return f"{self.service} {self.number}"

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @property
    def pid(self) -> int:
        """Of the service itself, not of its supervisor."""
        return self.pids[-1]

    @property
    def exit_code(self) -> int | None:
        """None while it runs, or while it is meant to be down."""
        return None if self._process is None else self._process.popen.poll()

    def start(self) -> None:
        """Start it; it is ready later."""
        self.hurt = next(self.crashes, "") if self.crashes is not None else ""
        self.started_at = time.monotonic()
        process = servers.start(
            self.name,
            [*(self.clock.command if self.clock is not None else ()), *self.command],
            log=self.log,
            owner_pid=os.getpid(),
            env={
                **self.environment,
                HURT: self.hurt,
                "PENSTOCK_PORT": str(self.port),
                "PENSTOCK_PROBE_PORT": str(self.probe_port),
            },
        )
        self._process = process
        children = Path(f"/proc/{process.popen.pid}/task/{process.popen.pid}/children")
        self.pids.append(int(wait_for(children.read_text, 10, f"the process of {self.name}")))

    def kill(self) -> bool:
        """kill -9; False when it had just ended by itself."""
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
        """Ask it to end, without waiting for it."""
        if self._process is not None and self.exit_code is None:
            self.go_on()
            self._process.popen.terminate()

    def wait(self) -> None:
        """Until it has ended; told again, it would not finish what it has begun."""
        if self._process is not None:
            try:
                self._process.popen.wait(_END_TIMEOUT_S)
            except subprocess.TimeoutExpired:
                self._process.stop()
            self._process = None


@dataclass(slots=True)
class Crash:
    """A process that killed itself where it was told to."""

    slot: Slot
    pid: int
    at_s: float  # by the loop's clock, when it was seen
    on_purpose: bool = True  # False: it did not come there, and was killed at any place


@dataclass
class Fleet:
    """All slots. What ends by itself is noted, and started again as an orchestrator would."""

    slots: list[Slot]
    http: httpx.AsyncClient
    exits: list[Exit] = field(default_factory=list)
    crashes: list[Crash] = field(default_factory=list)

    def of(self, service: str) -> list[Slot]:
        return [slot for slot in self.slots if slot.service == service]

    async def ready(self, slot: Slot) -> None:
        """Until it says so, or that nothing but its clock is wrong, which was done on purpose.

        One that kills itself is started again, and waited for.
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
        """It has not come to the write at which it was to die: the next one shall have its turn."""
        clock = asyncio.get_running_loop().time
        if slot.exit_code is not None or not slot.hurt or clock() - slot.started_at < _LIVES_S:
            return
        crash = Crash(slot, slot.pid, clock(), on_purpose=False)
        if slot.kill():
            self.crashes.append(crash)
        await asyncio.to_thread(slot.start)

    async def keep(self) -> None:
        """Start again what ended by itself, until cancelled."""
        while True:
            for slot in self.slots:
                code = slot.exit_code
                await self._kill_what_lives_too_long(slot)
                if code is not None:
                    if slot.crashes is not None and code == _KILLED_ITSELF:
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
    """Started and ready. `launchers`: of a service that is not started as `-m penstock_<name>`.

    `crashes`: of a service, where each of its processes in turn kills itself (see `hurt_at`).
    """
    hurts = {service: iter(points) for service, points in crashes.items()}
    paths = [str(ROOT / "tests"), os.environ.get("PYTHONPATH", "")]
    common = {**environment, "PYTHONPATH": os.pathsep.join(filter(None, paths))}
    slots = [
        Slot(
            service,
            number,
            [sys.executable, "-m", *launchers.get(service, (f"penstock_{service}",))],
            folder / f"{service}-{number}.log",
            common,
            clock=_clock(folder, service, number, clocks),
            # the last one lives: what every process that takes it dies of is put aside as poison
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
