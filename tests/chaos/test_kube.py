"""The small Kubernetes of the rolling rounds: what it does, and which faults it finds."""

from __future__ import annotations

import asyncio
import random
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path

import httpx
import pytest

from helm.charts import committed
from support.drive.waiting import eventually
from support.fakes import pod as program_of_pods
from support.kube.chart import Deployment, Probe, Template, read
from support.kube.deployments import Controller
from support.kube.pods import Phase, Program
from support.kube.services import Service

OFTEN = Probe("/livez", period_s=0.1, timeout_s=10, failures=50)
TEMPLATE = Template(
    OFTEN, OFTEN, replace(OFTEN, path="/readyz"), grace_s=60, environment={}, serves=True
)
DEPLOYMENT = Deployment("fake", 2, 1, 0, min_ready_s=0.1, template=TEMPLATE)
PRE_STOP = (sys.executable, "-c", "import time; time.sleep(1)")


def program(how: str) -> Program:
    return Program([sys.executable, str(program_of_pods.__file__), how], {})


@asynccontextmanager
async def deployed(folder: Path, deployment: Deployment) -> AsyncIterator[Controller]:
    """Run two pods behind a Service, whose nodes hear of a change 0.2 s late."""
    service = Service("fake", random.Random(1), (0.2, 0.2))
    await service.listen()
    async with httpx.AsyncClient() as http:
        made = Controller(deployment, program("plain"), folder, http, service)
        try:
            await made.scale_up()
            yield made
        finally:
            await made.stop()
            await service.close()


async def ask(service: Service) -> bool:
    """Return whether a pod answers a request over a new connection."""
    async with httpx.AsyncClient(timeout=60) as http:
        try:
            return (await http.get(f"{service.url}/")).is_success
        except httpx.HTTPError:
            return False


async def ask_until(task: asyncio.Task[None], service: Service) -> None:
    """Send requests over new connections, one after another, until the task is done."""
    await eventually(partial(ask, service), 60, "the nodes know the pods")
    service.refused.clear()
    while not task.done():
        await ask(service)
    await task


async def test_a_rollout_with_a_pre_stop_hook_refuses_nothing_and_keeps_all_pods_available(
    tmp_path: Path,
) -> None:
    patient = replace(DEPLOYMENT, template=replace(TEMPLATE, pre_stop=PRE_STOP))
    async with deployed(tmp_path, patient) as made:
        assert made.service is not None
        await ask_until(asyncio.create_task(made.roll()), made.service)
        assert made.service.refused == []
        assert made.least_available == 2
        assert made.most == 3
        assert [pod.phase for pod in made.pods] == [Phase.GONE] * 2 + [Phase.RUNNING] * 2
        assert [pod.wrong for pod in made.pods] == [[]] * 4


@pytest.mark.chaos
async def test_without_a_pre_stop_hook_refused_connections_are_found(tmp_path: Path) -> None:
    async with deployed(tmp_path, DEPLOYMENT) as made:
        assert made.service is not None
        await ask_until(asyncio.create_task(asyncio.sleep(0)), made.service)
        made.service.late_s = (3600, 3600)
        await made.roll()
        await ask(made.service)
        assert made.service.refused


async def test_a_pod_that_outlives_its_grace_period_is_killed_and_found(tmp_path: Path) -> None:
    async with deployed(tmp_path, replace(DEPLOYMENT, replicas=1)) as made:
        await made.roll(program("stubborn"))
        assert made.pods[0].wrong == []
        made.pods[1].template = replace(TEMPLATE, grace_s=0.5)
        await made.roll(program("plain"))
        assert made.pods[1].wrong == ["fake 1: still runs after 0.5 s, killed"]


async def test_no_pod_ends_while_the_new_one_is_not_ready(tmp_path: Path) -> None:
    async with deployed(tmp_path, DEPLOYMENT) as made:
        rolling = asyncio.create_task(made.roll(program("unready")))

        async def answers_that_it_is_not_ready() -> bool:
            return len(made.pods) == 3 and made.pods[2].refusals >= 3

        await eventually(answers_that_it_is_not_ready, 60, "three refusals of the new pod")
        assert [pod.ready for pod in made.running] == [True, True, False]
        rolling.cancel()


async def test_a_pod_that_ends_by_itself_is_found_and_started_again(tmp_path: Path) -> None:
    async with deployed(tmp_path, replace(DEPLOYMENT, replicas=1)) as made:
        (pod,) = made.pods
        pod.crash()

        async def is_back() -> bool:
            return len(pod.pids) == 2 and pod.ready

        await eventually(is_back, 60, "the pod runs again")
        assert ["ended by itself" in each for each in pod.wrong] == [True]


@pytest.mark.parametrize("name", ["small", "usual", "large"])
def test_the_committed_renderings_say_how_pods_come_and_go(name: str) -> None:
    chart = read(committed(name))
    services = {each.service: each for each in chart.deployments}
    assert set(services) == {
        "connector",
        "normalizer",
        "edge",
        "approvals",
        "automations",
        "workflows",
        "console",
    }
    assert chart.job.command == ("penstock", "streams", "make")
    assert chart.job.hooks == ("pre-install", "pre-upgrade")
    for each in services.values():
        template = each.template
        assert (each.max_surge, each.max_unavailable, each.min_ready_s) == (1, 0, 10)
        assert template.serves is (each.service not in ("connector", "normalizer"))
        assert bool(template.pre_stop) is template.serves
        assert (template.live.path, template.ready.path) == ("/livez", "/readyz")
        assert float(template.environment["PENSTOCK_DRAIN_S"]) < template.grace_s
        assert not any("SECRET" in key or "NATS" in key for key in template.environment)
