"""The kubelet: it starts the process of a pod, probes it, and ends it within its grace period."""

from __future__ import annotations

import asyncio
import os
import signal
import time
from collections.abc import Callable, Coroutine, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Any, Final

import httpx

from support.drive.waiting import wait_for
from support.kube.chart import Probe, Template
from support.kube.limits import MemoryLimits
from support.real import servers
from support.real.ports import free_port

CANNOT_START: Final = 2  # the exit code of a service that finds no bus; it is started again
START_AGAIN_S: Final = 1.0
_PID_S: Final = 30.0
_LOOK_S: Final = 0.05


class Phase(StrEnum):
    """The phases of a pod."""

    RUNNING = "running"
    ENDING = "ending"
    GONE = "gone"


@dataclass(slots=True)
class Program:
    """The program of a pod, as an image has it."""

    command: Sequence[str]
    environment: Mapping[str, str]
    limits: MemoryLimits | None = None  # None: the memory is not limited


@dataclass(slots=True)
class Pod:
    """One pod. Its ports are its own, as each pod of Kubernetes has its own address.

    `wrong` has a sentence for each fault of the pod: an end that nobody asked for, a failed start
    or live probe, and an end that took longer than the grace period.
    """

    name: str
    template: Template
    program: Program
    log: Path
    http: httpx.AsyncClient
    on_change: Callable[[], None]  # is called when `ready` or `phase` has changed
    phase: Phase = Phase.RUNNING
    ready: bool = False
    ready_at: float = 0.0  # by the monotonic clock
    port: int = field(default_factory=free_port)
    probe_port: int = field(default_factory=free_port)
    pids: list[int] = field(default_factory=list)
    wrong: list[str] = field(default_factory=list)
    ended_s: float = 0.0  # how long its end took
    refusals: int = 0  # failed probes of readiness
    _process: servers.Process | None = None
    _tasks: list[asyncio.Task[None]] = field(default_factory=list)

    async def start(self) -> None:
        """Start the process and its probes, without waiting until the pod is ready."""
        await asyncio.to_thread(self._start_process)
        self._tasks = [self._spawn(self._probes()), self._spawn(self._keep())]

    async def end(self) -> None:
        """End the pod as a kubelet does: preStop, SIGTERM, and SIGKILL after the grace period."""
        self.phase = Phase.ENDING
        self._set_ready(False)
        self.on_change()
        self._cancel()  # a pod that ends has no start and live probes, and is not started again
        began = time.monotonic()
        over = began + self.template.grace_s
        if self.template.pre_stop:
            hook = await asyncio.create_subprocess_exec(*self.template.pre_stop)
            try:
                await asyncio.wait_for(hook.wait(), self.template.grace_s)
            except TimeoutError:
                hook.kill()
                await hook.wait()
                self.wrong.append(f"{self.name}: its preStop hook took the whole grace period")
        self._signal(signal.SIGTERM)
        while (code := self._code()) is None and time.monotonic() < over:
            await asyncio.sleep(_LOOK_S)
        if code is None:
            self.wrong.append(f"{self.name}: still runs after {self.template.grace_s:g} s, killed")
            self._signal(signal.SIGKILL)
            await asyncio.to_thread(self._popen.wait)
        elif code:
            self.wrong.append(f"{self.name}: ended with {code}\n{servers.tail(self.log)}")
        self.ended_s = time.monotonic() - began
        self.phase = Phase.GONE
        self.on_change()

    def crash(self) -> None:
        """Kill the process, as a fault of the program would."""
        self._signal(signal.SIGKILL)

    async def kill(self) -> None:
        """End the process at once, at the end of a test."""
        self._cancel()
        if self._process is not None:
            self._signal(signal.SIGKILL)
            await asyncio.to_thread(self._popen.wait)
        self.phase = Phase.GONE

    def _spawn(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        return asyncio.create_task(work, name=f"kubelet {self.name}")

    def _cancel(self) -> None:
        for task in self._tasks:
            task.cancel()

    @property
    def _popen(self) -> Any:
        assert self._process is not None
        return self._process.popen

    def _code(self) -> int | None:
        code: int | None = self._popen.poll()
        return code

    def _signal(self, number: signal.Signals) -> None:
        if self._code() is None:
            os.kill(self.pids[-1], number)

    def _start_process(self) -> None:
        command = self.program.command
        if self.program.limits is not None:
            limit = self.template.memory_bytes
            command = [*self.program.limits.prefix(self.name, limit), *command]
        self._process = servers.start(
            self.name,
            command,
            log=self.log,
            owner_pid=os.getpid(),
            env={
                **self.program.environment,
                **self.template.environment,
                "PENSTOCK_PORT": str(self.port),
                "PENSTOCK_PROBE_PORT": str(self.probe_port),
            },
        )
        children = Path(f"/proc/{self._popen.pid}/task/{self._popen.pid}/children")
        self.pids.append(int(wait_for(children.read_text, _PID_S, f"the process of {self.name}")))

    async def _keep(self) -> None:
        """Start the process again when it ends by itself. That is a fault."""
        while True:
            if (code := self._code()) is not None:
                if code != CANNOT_START:
                    self.wrong.append(f"{self.name}: ended by itself with {code}")
                self._set_ready(False)
                await asyncio.sleep(START_AGAIN_S)
                await asyncio.to_thread(self._start_process)
            await asyncio.sleep(_LOOK_S)

    async def _probes(self) -> None:
        await self._started()
        await asyncio.gather(self._live(), self._is_ready())

    async def _started(self) -> None:
        probe, failed = self.template.startup, 0
        while not await self._ask(probe):
            failed += 1
            if failed == probe.failures:
                self.wrong.append(f"{self.name}: did not start, by {failed} probes")
                return
            await asyncio.sleep(probe.period_s)

    async def _live(self) -> None:
        probe, failed = self.template.live, 0
        while True:
            failed = 0 if await self._ask(probe) else failed + 1
            if failed == probe.failures:
                self.wrong.append(f"{self.name}: does not live, by {failed} probes")
                self._signal(signal.SIGKILL)  # `_keep` starts it again
                failed = 0
            await asyncio.sleep(probe.period_s)

    async def _is_ready(self) -> None:
        probe, good, bad = self.template.ready, 0, 0
        while True:
            good, bad = (good + 1, 0) if await self._ask(probe) else (0, bad + 1)
            if good == probe.successes:
                self._set_ready(True)
            self.refusals += bad > 0
            if bad == probe.failures:
                self._set_ready(False)
            await asyncio.sleep(probe.period_s)

    async def _ask(self, probe: Probe) -> bool:
        try:
            url = f"http://127.0.0.1:{self.probe_port}{probe.path}"
            async with asyncio.timeout(probe.timeout_s):
                answer = await self.http.get(url, headers={"connection": "close"})
            return 200 <= answer.status_code < 400
        except (httpx.HTTPError, TimeoutError):
            return False

    def _set_ready(self, ready: bool) -> None:
        if ready != self.ready:
            self.ready, self.ready_at = ready, time.monotonic()
            self.on_change()
