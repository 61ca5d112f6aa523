"""Services over one server, which the test takes away, fills up, or makes refuse operations."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from penstock.bus import Bus, BusSettings, Message, StreamFull
from support.drive.waiting import eventually
from support.drive.watching import Watches, streamer, watched
from support.fakes.cutter import Gate
from support.fakes.misbehaving import Misbehaving, misbehaving
from support.real.deployment import Deployment, Instance, deployment
from support.real.nats import NatsServer

STORE_BYTES = 256 * 1024 * 1024
BALLAST = "BALLAST"
_BALLAST_BYTES = 512 * 1024

_USERS = """authorization { users: [
  { user: operator, password: right }
  { user: services, password: right, permissions: {
      publish: { deny: [%s] }, subscribe: { deny: [%s] } } }
] }"""


def permissions(publish: str = "", subscribe: str = "") -> str:
    """Return NATS permissions that allow the services everything except these subjects."""
    return _USERS % (f'"{publish}"' * bool(publish), f'"{subscribe}"' * bool(subscribe))


@dataclass
class OneBroker:
    """One process of each service, and a second connector whose connections go through the gate.

    `flood` is an agent server that is scripted; the agent `streamer` sends `frames`, 20 a second.
    """

    nats: NatsServer
    gate: Gate
    penstock: Deployment
    flood: Misbehaving
    frames: int

    async def started(self, runs: int = 4) -> Watches:
        """Start runs and watch them; return when they are under way."""
        watches = await watched(self.penstock, runs)
        await watches.under_way()
        return watches

    async def start(self) -> tuple[int, str]:
        """POST /v1/runs; return the status and the error's detail. The request must not hang."""
        async with asyncio.timeout(12):
            answer = await self.penstock.http.post(
                f"{self.penstock.edge()}/v1/runs", json={"agent": "streamer", "message": "go"}
            )
        return answer.status_code, str(answer.json().get("detail", ""))

    async def statuses(self) -> set[str]:
        """Return the statuses of all runs in the list."""
        answer = await self.penstock.http.get(f"{self.penstock.edge()}/v1/runs")
        return {run["status"] for run in answer.json()["runs"]}

    async def works(self) -> None:
        """Check that all services are ready and that a run completes."""
        await self.are_ready()
        await (await watched(self.penstock, 1)).end(self.frames)

    async def reasons(self, instance: Instance) -> str:
        """Return the reasons in the answer of /readyz; empty if the service is ready."""
        answer = await self.penstock.http.get(f"{instance.probes}/readyz")
        (reasons,) = answer.json()["services"].values()
        assert (answer.status_code == 200) is (not reasons)
        return "; ".join(reasons)

    async def are_ready(self) -> None:
        async def probe() -> bool:
            return not any([await self.reasons(each) for each in self.penstock.instances])

        await eventually(probe, 40, "all services are ready")

    async def is_not_ready(self, instance: Instance, because: str) -> None:
        async def probe() -> bool:
            return because in await self.reasons(instance)

        await eventually(probe, 30, f"{instance.service} is not ready: {because}")

    async def connector_not_ready(self, because: str) -> Instance:
        """Wait until one of the connectors says so; return it. Either may have all the runs."""

        async def probe() -> Instance | None:
            for instance in self.penstock.of("connector"):
                if because in await self.reasons(instance):
                    return instance
            return None

        return await eventually(probe, 30, f"a connector is not ready: {because}")

    async def none_is_ready(self, because: str) -> None:
        for instance in self.penstock.instances:
            await self.is_not_ready(instance, because)

    async def refusals(self, instance: Instance, why: str) -> float:
        """Return the count of refused operations in the service's metrics."""
        text = (await self.penstock.http.get(f"{instance.probes}/metrics")).text
        lines = [line for line in text.splitlines() if line.startswith("penstock_nats_refused")]
        return sum(float(line.rsplit(" ", 1)[1]) for line in lines if f'why="{why}"' in line)

    def none_has_ended(self) -> None:
        for instance in self.penstock.instances:
            assert instance.process.popen.poll() is None, instance.service

    # Actions of the operator.

    @asynccontextmanager
    async def operator(self) -> AsyncIterator[Bus]:
        settings = BusSettings(url=self.nats.url, user="operator", password="right")
        bus = await Bus.connect(settings, ensure=False)
        try:
            yield bus
        finally:
            await bus.close()

    async def edit(self, bus: Bus, stream: str, **fields: Any) -> None:
        """Change a stream."""
        config = (await bus.api(f"STREAM.INFO.{stream}"))["config"]
        await bus.api(f"STREAM.UPDATE.{stream}", {**config, **fields})

    @asynccontextmanager
    async def ballast(self, bus: Bus) -> AsyncIterator[None]:
        """Use up the storage of the server but for 4 MiB; free all of it at the end.

        `fill` then takes so little time that runs which began before are still under way.
        """
        config = {"name": BALLAST, "subjects": ["ballast"], "storage": "file"}
        await bus.api(f"STREAM.CREATE.{BALLAST}", config)
        try:
            await self._publish_until_full(bus, _BALLAST_BYTES)
            await bus.api(f"STREAM.PURGE.{BALLAST}", {"seq": 1 + 4 * 1024**2 // _BALLAST_BYTES})
            yield
        finally:
            await bus.api(f"STREAM.DELETE.{BALLAST}")

    async def fill(self, bus: Bus) -> None:
        """Use up the storage that `ballast` has left free."""
        for size_bytes in (_BALLAST_BYTES, 1024, 1):
            await self._publish_until_full(bus, size_bytes)

    async def _publish_until_full(self, bus: Bus, size_bytes: int) -> None:
        with suppress(StreamFull):
            while True:
                await bus.publisher.publish(Message("ballast", b"x" * size_bytes, {}))


@asynccontextmanager
async def one_broker(folder: Path, frames: int, **settings: Any) -> AsyncIterator[OneBroker]:
    """Start the server and all services; yield when they are ready."""
    nats = NatsServer(
        folder / "nats",
        name="one nats",
        config=permissions(),
        users=False,
        jetstream=f"max_file_store: {STORE_BYTES}",
    )
    async with AsyncExitStack() as stack:
        stack.callback(nats.remove)
        nats.start()
        gate = Gate(nats.port)
        await gate.serve()
        stack.push_async_callback(gate.close)
        flood = await stack.enter_async_context(misbehaving())
        agents = [
            {"id": "streamer", **await stack.enter_async_context(streamer(folder, frames, 20))},
            {"id": "flood", "protocol": "agno", "url": flood.url},
        ]
        settings |= {"nats_user": "services", "nats_password": "right", "nats_passwords": ""}
        penstock = await stack.enter_async_context(
            deployment(nats.url, folder, agents, count=0, **settings)
        )
        services = ("normalizer", "approvals", "connector", "edge")
        await asyncio.gather(*(penstock.start(service) for service in services))
        penstock.nats_url = f"nats://127.0.0.1:{gate.port}"
        await penstock.start("connector")
        penstock.nats_url = nats.url
        yield OneBroker(nats, gate, penstock, flood, frames)
