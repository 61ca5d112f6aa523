"""The controller of Deployments: it replaces pods within `maxSurge` and `maxUnavailable`."""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import httpx

from support.kube.chart import Deployment
from support.kube.pods import Phase, Pod, Program
from support.kube.services import Service

_TICK_S: Final = 0.1


@dataclass(slots=True)
class Controller:
    """The pods of one Deployment. `least_available` is the smallest number during rollouts."""

    deployment: Deployment
    program: Program
    folder: Path
    http: httpx.AsyncClient
    service: Service | None
    pods: list[Pod] = field(default_factory=list)  # all that there ever were
    least_available: int = 0
    most: int = 0  # the greatest number of pods that did not end
    _current: set[str] = field(default_factory=set)  # the names of the newest revision's pods
    _ends: list[asyncio.Task[None]] = field(default_factory=list)

    @property
    def running(self) -> list[Pod]:
        return [pod for pod in self.pods if pod.phase is Phase.RUNNING]

    @property
    def available(self) -> list[Pod]:
        """The pods that have been ready for `minReadySeconds`."""
        since = time.monotonic() - self.deployment.min_ready_s
        return [pod for pod in self.running if pod.ready and pod.ready_at <= since]

    async def scale_up(self) -> None:
        """Start the pods of an installation; return when all are ready."""
        for _ in range(self.deployment.replicas):
            await self._add()
        while not all(pod.ready for pod in self.running):
            await asyncio.sleep(_TICK_S)

    async def roll(self, program: Program | None = None) -> None:
        """Replace all pods, by those of another program if it is given.

        Returns when all old pods are gone.
        """
        self.program = program or self.program
        self._current = set()
        replicas = self.deployment.replicas
        while len(self.available) < replicas:
            await asyncio.sleep(_TICK_S)
        self.least_available = replicas
        while True:
            old = [pod for pod in self.running if pod.name not in self._current]
            new = [pod for pod in self.running if pod.name in self._current]
            spare = len(self.available) - (replicas - self.deployment.max_unavailable)
            self.least_available = min(self.least_available, len(self.available))
            self.most = max(self.most, len(self.running))
            if not old and sum(pod in new for pod in self.available) == replicas:
                break
            if len(new) < replicas and len(self.running) < replicas + self.deployment.max_surge:
                await self._add()
            # A pod that is not ready goes first, and leaves no gap.
            elif old and (spare > 0 or not old[0].ready):
                self._ends.append(asyncio.create_task(old[0].end()))
                await asyncio.sleep(0)  # it begins to end
            await asyncio.sleep(_TICK_S)
        await asyncio.gather(*self._ends)

    async def stop(self) -> None:
        """End all pods at once, at the end of a test."""
        for task in self._ends:
            task.cancel()
        await asyncio.gather(*(pod.kill() for pod in self.pods if pod.phase is not Phase.GONE))

    async def _add(self) -> None:
        name = f"{self.deployment.service} {len(self.pods)}"
        log = self.folder / f"{name.replace(' ', '-')}.log"
        template = self.deployment.template
        pod = Pod(name, template, self.program, log, self.http, self._changed)
        self.pods.append(pod)
        self._current.add(name)
        await pod.start()

    def _changed(self) -> None:
        if self.service is not None:
            self.service.change([pod.port for pod in self.running if pod.ready])
