"""A round of rollouts under load: every pod of every service is replaced, as the chart says.

```python
report, rollout = await roll(Round(7, 0, shape_of(chart), runs=60, runs_per_s=1), chart, …)
assert not report.faults, report
```
"""

from __future__ import annotations

import asyncio
import os
import random
import sys
import time
from collections import Counter
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Final

import httpx

from support.chaos.checker import Harm, Violation, check_remains, check_run, outcome_of, reattached
from support.chaos.clients import Story
from support.chaos.evidence import Processes
from support.chaos.load import measured
from support.chaos.report import Report
from support.chaos.schedule import Shape
from support.chaos.stage import Round, Stage, gathered, load, staged, write_down
from support.drive.repository import ROOT
from support.kube.chart import Chart
from support.kube.deployments import Controller
from support.kube.pods import Phase, Program
from support.kube.services import Service
from support.real import servers
from support.real.upstreams import Upstream

# How late the nodes hear that a pod is ready or ends. The preStop hooks of the chart take 10 s.
NODES_LATE_S: Final = (0.0, 5.0)
LEASE_S: Final = 15.0
_BEFORE_S: Final = 5.0  # load before the first rollout
_PULSE_S: Final = 0.5
_JOB_TIMEOUT_S: Final = 600.0
# A request to each service that has a port, which a pod must answer with 200 at any time.
PULSES: Final = {
    "edge": "/v1/runs?limit=1",
    "approvals": "/v1/approvals",
    "automations": "/v1/automations",
    "workflows": "/v1/workflows",
    "console": "/",
}


@dataclass(slots=True)
class Rollout:
    """What a round of rollouts was, besides the report of its runs."""

    took_s: list[float] = field(default_factory=list)  # of each rollout, until the last old pod
    pods: int = 0
    ends_s: dict[str, float] = field(default_factory=dict)  # the longest end by service
    pulses: int = 0
    held: int = 0  # runs that stayed open during all rollouts
    resumed: int = 0  # times that a client went on at its cursor
    stale: int = 0  # streams that clients asked for twice, see `Story.stale`

    def __str__(self) -> str:
        ends = ", ".join(f"{name} {took:.0f} s" for name, took in self.ends_s.items())
        took = ", ".join(f"{each:.0f} s" for each in self.took_s)
        return (
            f"{self.pods} pods in {len(self.took_s)} rollouts of {took}; longest ends: {ends}; "
            f"{self.pulses} pulses; {self.held} runs open throughout; {self.resumed} resumes, "
            f"{self.stale} of them asked for twice"
        )


def shape_of(chart: Chart, brokers: int, upstreams: int) -> Shape:
    """Return the shape of a round with the chart's services."""
    services = {each.service: each.replicas for each in chart.deployments}
    return Shape({**services, "broker": brokers, "upstream": upstreams})


def doubled(chart: Chart) -> Chart:
    """Return the chart with at least two pods of each service."""
    return replace(
        chart,
        deployments=tuple(
            replace(each, replicas=max(2, each.replicas)) for each in chart.deployments
        ),
    )


@dataclass(slots=True)
class Cluster:
    """The controllers and Services of an installation."""

    controllers: list[Controller]
    services: dict[str, Service]

    def processes(self) -> Processes:
        """Return the processes of now. Faults of pods are violations of their own."""
        running = [pod for each in self.controllers for pod in each.pods]
        return Processes(
            frozenset(pod.pids[-1] for pod in running if pod.phase is not Phase.GONE), ()
        )

    def wrong(self) -> list[Violation]:
        """Return the faults of pods, and the connections that a Service could not forward."""
        found = [
            Violation("pod", "", text)
            for each in self.controllers
            for pod in each.pods
            for text in pod.wrong
        ]
        for each in self.controllers:
            deployment = each.deployment
            least = deployment.replicas - deployment.max_unavailable
            if each.least_available < least:
                said = f"{deployment.service}: {each.least_available} of {least} were available"
                found.append(Violation("available", "", said, late=True))
            if each.most > deployment.replicas + deployment.max_surge:
                found.append(Violation("surge", "", f"{deployment.service}: {each.most} pods"))
        found += [
            Violation("refused", "", text)
            for each in self.services.values()
            for text in each.refused
        ]
        return found


async def roll(
    round_: Round,
    chart: Chart,
    folder: Path,
    upstreams: Mapping[str, Upstream],
    rollouts: int = 1,
    late_s: tuple[float, float] = NODES_LATE_S,
    before: str = "",
) -> tuple[Report, Rollout]:
    """Install the chart, put load on it, replace all pods, and check every run.

    `late_s`: how late the nodes hear of a change of pods. `before`: the PYTHONPATH of an earlier
    version, which is installed first; the first rollout is then the upgrade to this version.
    """
    report, rollout = Report(round_.seed), Rollout()
    begun = time.monotonic()
    hold = asyncio.Event()
    async with AsyncExitStack() as stack:
        stage = await stack.enter_async_context(staged(round_, folder, upstreams))
        cluster = await stack.enter_async_context(
            _installed(round_, chart, folder, stage, late_s, before)
        )
        await stage.flowing.begin()
        pulses = _Pulses(cluster.services)
        await stack.enter_async_context(pulses.beating())
        report.load = await stack.enter_async_context(measured())

        async def rolling() -> list[Violation]:
            await asyncio.sleep(_BEFORE_S)
            for _ in range(rollouts):
                began = time.monotonic()
                await _job(chart, folder, stage)
                await asyncio.gather(
                    *(
                        each.roll(_program(each.deployment.service, stage))
                        for each in cluster.controllers
                    )
                )
                rollout.took_s.append(time.monotonic() - began)
            hold.set()
            return []

        stories, report.violations = await load(
            round_,
            asyncio.create_task(rolling()),
            stage.http,
            tuple(upstreams),
            [cluster.services["edge"]],
            [cluster.services["approvals"]],
            hold,
        )
        found, runs, remains = await gathered(stage, upstreams, stories, cluster.processes)
        report.violations += found
    harm = Harm([], LEASE_S)
    report.violations += [violation for run in runs for violation in check_run(run, harm)]
    report.violations += check_remains(remains)
    report.violations += cluster.wrong()
    report.violations += pulses.wrong
    report.violations += _trouble(stories)
    write_down(folder, runs, report)
    report.outcomes = dict(Counter(outcome_of(run) for run in runs))
    report.events = sum(len(run.bodies) for run in runs)
    report.reconnects = sum(view.connections - 1 for run in runs for view in run.views)
    report.reattached = sum(reattached(run) for run in runs)
    report.took_s = time.monotonic() - begun
    rollout.pods = sum(len(each.pods) for each in cluster.controllers)
    rollout.ends_s = {
        each.deployment.service: max(pod.ended_s for pod in each.pods)
        for each in cluster.controllers
    }
    rollout.pulses = pulses.count
    rollout.held = sum(story.decides_after is not None for story in stories)
    rollout.resumed = report.reconnects
    rollout.stale = sum(story.stale for story in stories)
    return report, rollout


def _trouble(stories: Sequence[Story]) -> list[Violation]:
    """Return what clients met that no client meets while pods are replaced."""
    return [
        Violation("client", f"{story.plan.mark} {story.run_id}", text)
        for story in stories
        for text in story.trouble
    ]


def _program(service: str, stage: Stage, path: str = "") -> Program:
    environment = {**stage.environment, "PYTHONPATH": _paths(path)}
    return Program([sys.executable, "-m", f"penstock_{service}"], environment)


def _paths(path: str) -> str:
    paths = [path, str(ROOT / "tests"), os.environ.get("PYTHONPATH", "")]
    return os.pathsep.join(filter(None, paths))


@asynccontextmanager
async def _installed(
    round_: Round,
    chart: Chart,
    folder: Path,
    stage: Stage,
    late_s: tuple[float, float],
    before: str,
) -> AsyncIterator[Cluster]:
    """Run the Job and start all Deployments; yield when all pods are ready."""
    made = Cluster([], {})
    async with httpx.AsyncClient() as http:
        try:
            await _job(chart, folder, stage, before)
            for each in chart.deployments:
                service = None
                if each.template.serves:
                    chance = random.Random(f"{each.service} {round_.seed}")
                    service = made.services[each.service] = Service(each.service, chance, late_s)
                    await service.listen()
                program = _program(each.service, stage, before)
                made.controllers.append(Controller(each, program, folder, http, service))
            await asyncio.gather(*(each.scale_up() for each in made.controllers))
            await asyncio.sleep(late_s[1])  # until the nodes know the pods
            yield made
        finally:
            for controller in made.controllers:
                await controller.stop()
            for service in made.services.values():
                await service.close()


async def _job(chart: Chart, folder: Path, stage: Stage, path: str = "") -> None:
    """Run the hook that makes the streams, before any pod is replaced."""
    program, *arguments = chart.job.command
    assert program == "penstock"
    environment = {**stage.environment, **chart.job.environment, "PYTHONPATH": _paths(path)}
    with (folder / "job.log").open("ab") as log:
        job = await asyncio.create_subprocess_exec(
            sys.executable,
            "-m",
            "penstock_cli",
            *arguments,
            env={**os.environ, **environment},
            stdout=log,
            stderr=log,
        )
        code = await asyncio.wait_for(job.wait(), _JOB_TIMEOUT_S)
    assert code == 0, servers.tail(folder / "job.log")


class _Pulses:
    """A client of each Service that asks twice a second, over a new and over a kept connection."""

    def __init__(self, services: Mapping[str, Service]) -> None:
        self._services = services
        self.count = 0
        self.wrong: list[Violation] = []

    @asynccontextmanager
    async def beating(self) -> AsyncIterator[None]:
        """Ask during the `with` block."""
        async with httpx.AsyncClient(timeout=30) as http:
            tasks = [
                asyncio.create_task(self._beat(http, service, kept))
                for service in self._services.values()
                for kept in (True, False)
            ]
            try:
                yield
            finally:
                for task in tasks:
                    task.cancel()
                await asyncio.wait(tasks)

    async def _beat(self, http: httpx.AsyncClient, service: Service, kept: bool) -> None:
        url = f"{service.url}{PULSES[service.name]}"
        headers = {} if kept else {"connection": "close"}
        how = "a kept connection" if kept else "a new connection"
        while True:
            self.count += 1
            try:
                answer = await http.get(url, headers=headers)
                said = "" if answer.is_success else f"{answer.status_code} {answer.text}"
            except httpx.HTTPError as error:
                said = repr(error)
            if said:
                self.wrong.append(Violation("pulse", "", f"{service.name}, {how}: {said}"))
            await asyncio.sleep(_PULSE_S)
