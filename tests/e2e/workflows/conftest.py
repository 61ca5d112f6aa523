"""Runs Penstock with the workflows service and real agent servers, for all tests of this folder."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import orjson
import pytest
import pytest_asyncio
import yaml

from penstock import sse
from support.drive.bus import connected
from support.drive.waiting import eventually
from support.drive.workflows import define
from support.fakes.misbehaving import Answer, misbehaving
from support.real.deployment import Deployment, deployment
from support.real.nats import NatsServer
from support.real.upstreams import Upstream

SERVICES = {"normalizer": 1, "approvals": 1, "workflows": 1, "connector": 1, "edge": 1}
Definition = Mapping[str, Any]
_FILE = Path(__file__).parent / "shapes.yaml"
DEFINITIONS: Mapping[str, Definition] = {
    each["name"]: each for each in yaml.safe_load_all(_FILE.read_text("utf-8"))
}


@dataclass
class Flows:
    """The deployment, and the definitions that it has."""

    penstock: Deployment
    # The agent `flaky` fails at its next call, and then no more: with 503, or with RUN_ERROR if a
    # code is passed.
    fail_next: Callable[[str | None], None]

    async def start(self, name: str, **input: Any) -> str:
        """Start a workflow; return the id of its run."""
        return await self.penstock.run(name, "hello", input=input)

    async def start_by_name(self, name: str, session_id: str) -> str:
        """Start a stored workflow by its name; return the id of its run."""
        [workflows] = self.penstock.of("workflows")
        url = f"{workflows.url}/v1/workflows/{name}/runs"
        answer = await self.penstock.http.post(url, json={"session_id": session_id})
        assert answer.status_code == 202, answer.text
        return str(answer.json()["run_id"])

    async def events(self, run_id: str) -> list[dict[str, Any]]:
        """Return the run's own events up to its end."""
        return [event.body for event in await self.penstock.all(run_id)]

    async def shown(self, run_id: str, dialect: str, **query: str) -> list[dict[str, Any]]:
        """Return the frames of an ended run in a dialect."""
        url = f"{self.penstock.edge()}/v1/runs/{run_id}/events"
        answer = await self.penstock.http.get(url, params={"dialect": dialect, **query})
        assert answer.status_code == 200, answer.text
        parsed = sse.Parser().feed(answer.content)
        return [orjson.loads(frame.data) for frame in parsed]

    async def until(self, run_id: str, type: str) -> list[dict[str, Any]]:
        """Return the run's own events up to the first one of this type."""
        return [event.body for event in await self.penstock.until(run_id, type)]

    async def decide(self, approval_id: str, decision: str) -> None:
        """Decide all items of an approval."""
        answer = await self.penstock.decide(approval_id, decision)
        assert answer.status_code == 200, answer.text

    async def cancel(self, run_id: str) -> None:
        """Cancel a run."""
        url = f"{self.penstock.edge()}/v1/runs/{run_id}/cancel"
        answer = await self.penstock.http.post(url)
        assert answer.is_success, answer.text

    async def statuses(self, events: Iterable[dict[str, Any]]) -> list[str]:
        """Return the status of each child that these events name, in their order."""
        children = [event["data"].get("child_run_id") for event in events]
        return [await self.penstock.status(child) for child in dict.fromkeys(children) if child]

    async def run_under_way(self, events: Iterable[dict[str, Any]]) -> None:
        """Wait until the agents of all children that these events name are running."""
        known = list(events)

        async def running() -> bool:
            return "queued" not in await self.statuses(known)

        await eventually(running, 30, "the children's runs")


class Flaky:
    """An AG-UI agent that fails once after `fail_next`, and otherwise answers with a text."""

    def __init__(self) -> None:
        self._fails = False
        self._code: str | None = None

    def fail_next(self, code: str | None) -> None:
        """Answer the next request with 503, or with a RUN_ERROR that has this code."""
        self._fails, self._code = True, code

    async def answer(self, to: Answer) -> None:
        """Answer a request."""
        fails, self._fails = self._fails, False
        if fails and self._code is None:
            await to.whole(b"busy", status=503)
            return
        request = orjson.loads(to.request.body)
        ids = {"threadId": request["threadId"], "runId": request["runId"]}
        text = {"messageId": "m1"}
        frames: list[dict[str, Any]] = [
            {"type": "RUN_STARTED", **ids},
            {"type": "RUN_ERROR", "message": "too many requests", "code": self._code},
        ]
        answer: list[dict[str, Any]] = [
            {"type": "RUN_STARTED", **ids},
            {"type": "TEXT_MESSAGE_START", "role": "assistant", **text},
            {"type": "TEXT_MESSAGE_CONTENT", "delta": "at last", **text},
            {"type": "TEXT_MESSAGE_END", **text},
            {"type": "RUN_FINISHED", **ids},
        ]
        frames = frames if fails else answer
        await to.whole(b"".join(sse.encode(orjson.dumps(each)) for each in frames))


@pytest_asyncio.fixture(scope="package", loop_scope="session")
async def flows(
    tmp_path_factory: pytest.TempPathFactory, agno_server: Upstream, adk_server: Upstream
) -> AsyncIterator[Flows]:
    """Run one process of each service, with the definitions of `shapes.yaml`."""
    folder = tmp_path_factory.mktemp("flows")
    nats = NatsServer(folder / "nats", on_disk=True)
    nats.start()
    try:
        async with misbehaving() as flaky:
            flaky.scripted = lambda request: True
            agent = Flaky()
            flaky.script(agent.answer)
            agents: list[dict[str, Any]] = [
                {"id": "agno", "protocol": "agno", "url": agno_server.url, "agent": "demo-agent"},
                {"id": "adk", "protocol": "adk", "url": adk_server.url, "agent": "demo"},
                {"id": "flaky", "protocol": "agui", "url": flaky.url},
                *(
                    {"id": name, "protocol": "workflow"}
                    for name in DEFINITIONS
                    if name != "by_name"
                ),
            ]
            async with deployment(nats.url, folder, agents, SERVICES) as running:
                async with connected(nats.url) as bus:
                    for definition in DEFINITIONS.values():
                        await define(bus, definition)
                yield Flows(running, agent.fail_next)
    finally:
        nats.remove()
