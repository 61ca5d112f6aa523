"""A deployment under a calm load of everything that Penstock does, for a watched run.

The load: runs with clients in several dialects, approvals, webhooks, inbound hooks, a schedule and
workflows. A request that a fault hits is given up: other tests check what clients get.
"""

from __future__ import annotations

import asyncio
import itertools
import random
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import httpx
import yaml

from alerts.prometheus import Prometheus
from bench.peers.whole import upstream
from penstock.bus import Bus, BusError, BusSettings
from support.drive.workflows import counting, define, definition, start_workflow
from support.fakes.receiver import SECRET, Receiver, receiver
from support.real.deployment import Deployment, deployment
from support.real.nats import NatsServer

COUNTS: Final = {
    **{"normalizer": 1, "approvals": 1, "connector": 2, "edge": 2},
    **{"automations": 1, "workflows": 1},
}
SETTINGS: Final = {
    "log_level": "warning",
    "max_legs": 8,  # of each connector
    "watch_s": 10,
    "max_connection_age_s": 60,
    "webhook_allow_hosts": "127.0.0.1",
    "retry_delays_s": "[2, 2, 2, 2, 2, 2, 2, 2, 2, 2]",
}
TOKEN: Final = "of-the-hook-of-the-watched-run"
DIALECTS: Final = ("canonical", "unified", "agui", "agno", "executions")
# Agents of tests/bench/flooder.py: a name has the number of frames, and how many come a second.
QUICK, ASKING, LONG, FLOOD = "paced-40-20", "approval-40-20", "paced-40-4", "burst-20000"
SERVED_S: Final = 20.0
FLOW: Final = """
name: watched
steps:
  a: {run: {agent: worker, message: 'input.id + " a"'}}
  b: {needs: [a], run: {agent: worker, message: 'input.id + " b " + input.how'}}
"""


@dataclass
class Load:
    """The deployment, and what uses it."""

    penstock: Deployment
    bus: Bus
    nats: NatsServer
    webhooks: Receiver
    prometheus: Prometheus
    workflows_fail: bool = False
    _numbers: itertools.count[int] = field(default_factory=itertools.count)
    _tasks: set[asyncio.Task[None]] = field(default_factory=set)

    def spawn(self, work: Awaitable[object]) -> None:
        """Do something beside the rest; what a fault breaks is given up."""

        async def do() -> None:
            with suppress(httpx.HTTPError, BusError, AssertionError, TimeoutError):
                async with asyncio.timeout(SERVED_S):
                    await work

        task = asyncio.create_task(do())
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def again(self, every_s: float, work: Callable[[], Awaitable[object]]) -> None:
        """Do something again and again, without waiting for its end."""

        async def repeat() -> None:
            while True:
                self.spawn(work())
                await asyncio.sleep(every_s)

        task = asyncio.create_task(repeat())
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def _keep(self, work: Callable[[], Awaitable[None]]) -> None:
        task = asyncio.create_task(_for_ever(work))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _follow_all(self) -> None:
        """Read the stream of all events, which edges close after a time so that it moves."""
        url = f"{self.penstock.edge(next(self._numbers))}/v1/events"
        async with self.penstock.http.stream(
            "GET", url, params={"subjects": "lifecycle.*"}
        ) as read:
            async for _ in read.aiter_bytes():
                pass

    async def decide_all(self) -> None:
        """Decide the approvals that wait since a fault broke their client."""
        url = f"{self.penstock.approvals}/v1/approvals"
        shown = (await self.penstock.http.get(url, params={"status": "pending"})).json()
        for each in shown["approvals"]:
            self.spawn(self.penstock.decide(each["approval_id"], "reject"))

    def begin(self) -> None:
        """Begin the calm load."""
        self.again(1.0, self.quick)
        self.again(5.0, self.asking)
        self.again(4.0, self.workflow)
        self.again(6.0, self.hook)
        self.again(3.0, self.lists)
        self._keep(self._follow_all)

    async def quick(self) -> None:
        """Run an agent; a client reads its stream, and now and then another one joins late."""
        run_id = await self.penstock.run(QUICK, "hello", edge=next(self._numbers))
        dialect = random.choice(DIALECTS)
        await self._read(run_id, dialect)
        if dialect == "canonical":
            first = await anext(self.penstock.events(run_id))
            await self.penstock.all(run_id, after=first.id)

    async def _read(self, run_id: str, dialect: str) -> None:
        url = f"{self.penstock.edge(next(self._numbers))}/v1/runs/{run_id}/events"
        async with self.penstock.http.stream("GET", url, params={"dialect": dialect}) as answer:
            async for _ in answer.aiter_bytes():
                pass

    async def asking(self) -> None:
        """Run an agent that asks for a decision, and decide."""
        run_id = await self.penstock.run(ASKING, "hello")
        seen = await self.penstock.until(run_id, "approval.requested")
        decision = random.choice(("approve", "approve", "reject"))
        await self.penstock.decide(seen[-1].data["approval_id"], decision)

    async def workflow(self) -> None:
        """Start a workflow."""
        how = "fails" if self.workflows_fail else "well"
        await start_workflow(self.bus, "watched", {"id": f"w{next(self._numbers)}", "how": how})

    async def hook(self) -> None:
        """Call a rule's hook; one of three calls has a wrong token."""
        [automations] = self.penstock.of("automations")
        token = TOKEN if next(self._numbers) % 3 else "wrong"
        headers = {"authorization": f"Bearer {token}"}
        await self.penstock.http.post(
            f"{automations.url}/v1/hooks/orders", json={"amount": 7}, headers=headers
        )

    async def lists(self) -> None:
        """Read the lists that people look at."""
        for url in (
            f"{self.penstock.edge(next(self._numbers))}/v1/runs",
            f"{self.penstock.approvals}/v1/approvals",
        ):
            await self.penstock.http.get(url)

    def retarget(self) -> None:
        """Let Prometheus scrape the processes that run now."""
        self.prometheus.scrape(self.penstock.instances)

    async def stop(self) -> None:
        """End the load."""
        for task in tuple(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)


async def _for_ever(work: Callable[[], Awaitable[None]]) -> None:
    while True:
        with suppress(httpx.HTTPError):
            await work()
        await asyncio.sleep(1)


def _rules(webhooks: Receiver) -> list[dict[str, Any]]:
    def webhook(path: str) -> dict[str, Any]:
        return {"webhook": {"url": webhooks.url(path), "secrets": [SECRET], "timeout_s": 2}}

    return [
        {"id": "ends", "subjects": ["lifecycle.completed"], "action": webhook("/hook")},
        {"id": "orders", "hook": {"tokens": [TOKEN]}, "action": webhook("/orders")},
        {"id": "minutes", "schedule": {"cron": "* * * * *"}, "action": webhook("/minutes")},
    ]


@asynccontextmanager
async def loaded(folder: Path, nats: NatsServer, prometheus: Prometheus) -> AsyncIterator[Load]:
    """Run a deployment that Prometheus scrapes, with all that it needs, and without load."""
    async with AsyncExitStack() as stack:
        flooder = await stack.enter_async_context(upstream(folder))
        server = await stack.enter_async_context(counting())
        webhooks = await stack.enter_async_context(receiver())
        rules = folder / "rules.yaml"
        rules.write_text(yaml.safe_dump({"rules": _rules(webhooks)}))
        agents = [
            {"id": id, "protocol": "agno", "url": flooder} for id in (QUICK, ASKING, LONG, FLOOD)
        ]
        asked = {"protocol": "agui", "url": f"{server.upstream.url}/agui"}
        agents += [{"id": id, **asked} for id in ("worker", "broken", "sluggish")]
        penstock = await stack.enter_async_context(
            deployment(nats.url, folder, agents, COUNTS, rules=rules, **SETTINGS)
        )
        bus = await Bus.connect(BusSettings(url=nats.url), ensure=False)
        stack.push_async_callback(bus.close)
        await define(bus, definition(FLOW))
        load = Load(penstock, bus, nats, webhooks, prometheus)
        load.retarget()
        stack.push_async_callback(load.stop)
        yield load
