"""Penstock as it is deployed: each service is one or more separate processes."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
from collections.abc import AsyncGenerator, AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import yaml

from penstock.sse import Frame, Parser
from support.drive.bus import make_streams
from support.drive.waiting import eventually
from support.real import servers
from support.real.ports import free_port
from support.real.processes import pid_of

SERVICES = ("normalizer", "approvals", "connector", "edge")
# The key with which a deployment seals content, if its test asks for that.
CONTENT_KEY = "the-key-with-which-the-tests-seal-content"


@dataclass(slots=True)
class Instance:
    """One process of a service."""

    service: str
    port: int
    probe_port: int
    process: servers.Process

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @property
    def probes(self) -> str:
        return f"http://127.0.0.1:{self.probe_port}"


@dataclass(slots=True)
class Event:
    """One frame of a client's stream, with its JSON."""

    id: str | None
    type: str | None
    body: dict[str, Any]

    @property
    def data(self) -> dict[str, Any]:
        data: dict[str, Any] = self.body["data"]
        return data

    @property
    def sequence(self) -> int:
        return int(self.body["sequence"])


@dataclass
class Deployment:
    """The processes, and the actions of a client. `edge(n)` takes turns among the edges."""

    folder: Path
    config: Path
    nats_url: str
    environment: Mapping[str, str]
    python: str = sys.executable  # an interpreter that can import the services
    instances: list[Instance] = field(default_factory=list)
    http: httpx.AsyncClient = field(
        default_factory=lambda: httpx.AsyncClient(timeout=httpx.Timeout(30, read=60))
    )

    def of(self, service: str) -> list[Instance]:
        return [instance for instance in self.instances if instance.service == service]

    def edge(self, number: int = 0) -> str:
        edges = self.of("edge")
        return edges[number % len(edges)].url

    @property
    def approvals(self) -> str:
        return self.of("approvals")[-1].url

    async def start(
        self,
        service: str,
        port: int | None = None,
        before: Sequence[str] = (),
        probe: str = "readyz",
        environment: Mapping[str, str] | None = None,
    ) -> Instance:
        """Start one more process of a service, and return when it is ready.

        Without `port`, the process gets a free port. `before` is put before its command. `probe` is
        the endpoint that must succeed before the process counts as ready. `environment` has further
        variables for this process.
        """
        port, probe_port = port or free_port(), free_port()
        number = len(self.instances)
        name, log = f"{service} {number}", self.folder / f"{service}-{number}.log"
        program = ["-m", f"penstock_{service}"]
        env = {
            "PENSTOCK_CONFIG": str(self.config),
            "PENSTOCK_NATS_URL": self.nats_url,
            "PENSTOCK_PORT": str(port),
            "PENSTOCK_PROBE_PORT": str(probe_port),
            **self.environment,
            **(environment or {}),
        }
        if before or self.python != sys.executable:
            command = [*before, self.python, *program]
            process = servers.start(name, command, log=log, owner_pid=os.getpid(), env=env)
        else:
            process = servers.start_python(name, program, log=log, env=env)
        instance = Instance(service, port, probe_port, process)
        self.instances.append(instance)

        async def ready() -> bool:
            if process.popen.poll() is not None:
                raise RuntimeError(f"{service} ended:\n{servers.tail(process.log)}")
            try:
                return (await self.http.get(f"{instance.probes}/{probe}")).is_success
            except httpx.HTTPError:
                return False

        await eventually(ready, 60, f"{service} is ready")
        return instance

    async def kill(self, instance: Instance) -> None:
        """Send SIGKILL to the service."""
        os.kill(pid_of(instance.process), signal.SIGKILL)
        await asyncio.to_thread(instance.process.popen.wait)
        self.instances.remove(instance)

    async def stop(self) -> None:
        await self.http.aclose()
        for instance in self.instances:
            instance.process.popen.terminate()
        for instance in self.instances:
            await asyncio.to_thread(instance.process.stop)

    # Actions of clients.

    async def run(self, agent: str, message: str, edge: int = 0, **body: Any) -> str:
        """POST /v1/runs; return the run id."""
        answer = await self.http.post(
            f"{self.edge(edge)}/v1/runs", json={"agent": agent, "message": message, **body}
        )
        assert answer.status_code == 202, answer.text
        return str(answer.json()["run_id"])

    async def events(
        self, run_id: str, edge: int = 0, after: str | None = None, dialect: str = "canonical"
    ) -> AsyncIterator[Event]:
        """Yield the events of GET /v1/runs/{id}/events, to its end."""
        headers = {"last-event-id": after} if after else {}
        url = f"{self.edge(edge)}/v1/runs/{run_id}/events"
        async with self.http.stream(
            "GET", url, params={"dialect": dialect}, headers=headers
        ) as answer:
            assert answer.status_code in (200, 204), await answer.aread()
            async for frame in frames(answer):
                yield Event(frame.id, frame.event, json.loads(frame.data))

    async def all(self, run_id: str, **options: Any) -> list[Event]:
        """Return the whole stream of a run that ends."""
        async with asyncio.timeout(40):
            return [event async for event in self.events(run_id, **options)]

    async def until(self, run_id: str, type_: str, **options: Any) -> list[Event]:
        """Return the stream up to the first event of that type; the client then disconnects."""
        seen = []
        async with asyncio.timeout(40):
            async for event in self.events(run_id, **options):
                seen.append(event)
                if event.type == type_:
                    return seen
        raise AssertionError(f"{type_} did not come, but {[event.type for event in seen]}")

    async def decide(
        self, approval_id: str, decision: str, traceparent: str | None = None, **item: Any
    ) -> httpx.Response:
        """POST /v1/approvals/{id}/decision for every item, when the approval exists."""
        url = f"{self.approvals}/v1/approvals/{approval_id}"

        async def known() -> httpx.Response | None:
            answer = await self.http.get(url)
            return answer if answer.is_success else None

        shown = await eventually(known, what=f"approval {approval_id}")
        items = [
            {"item_id": asked["item_id"], "decision": decision, **item}
            for asked in shown.json()["items"]
        ]
        body = {"items": items, "digest": shown.json()["digest"]}
        headers = {"traceparent": traceparent} if traceparent is not None else {}
        return await self.http.post(f"{url}/decision", json=body, headers=headers)

    async def status(self, run_id: str) -> str:
        answer = await self.http.get(f"{self.edge()}/v1/runs/{run_id}")
        return str(answer.json()["status"])


async def frames(answer: httpx.Response) -> AsyncGenerator[Frame, None]:
    """Yield the frames of a stream as they come."""
    parser = Parser()
    async for chunk in answer.aiter_bytes():
        for frame in parser.feed(chunk):
            yield frame


@asynccontextmanager
async def deployment(
    nats_url: str,
    folder: Path,
    agents: list[dict[str, Any]],
    count: int | Mapping[str, int] = 1,
    **settings: Any,
) -> AsyncIterator[Deployment]:
    """Run `count` processes of each service in SERVICES, or the number for each in a mapping.

    A mapping may also name further services.

    `settings` are set as `PENSTOCK_<NAME>`, except for variables of OpenTelemetry (`OTEL_…`).
    """
    folder.mkdir(parents=True, exist_ok=True)
    config = folder / "penstock.yaml"
    config.write_text(yaml.safe_dump({"agents": agents}))
    environment = {
        "ENABLE_ADK_CANONICAL_STREAM": "true",
        **{
            name if name.startswith("OTEL_") else f"PENSTOCK_{name.upper()}": str(value)
            for name, value in settings.items()
        },
    }
    penstock = Deployment(folder, config, nats_url, environment)
    try:
        if "nats_user" not in settings:  # otherwise the server has only the test's users
            await make_streams(nats_url, int(settings.get("replicas", 1)))
        counts = dict.fromkeys(SERVICES, count) if isinstance(count, int) else count
        for service in dict.fromkeys((*SERVICES, *counts)):
            number = counts.get(service, 0)
            await asyncio.gather(*(penstock.start(service) for _ in range(number)))
        yield penstock
    finally:
        await penstock.stop()
