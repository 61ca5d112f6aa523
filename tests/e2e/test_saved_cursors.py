"""A client without a memory, such as n8n, follows all runs over kills of the edge and restarts."""

from __future__ import annotations

import asyncio
import contextlib
import json
from pathlib import Path

import httpx
import pytest

from support.drive.waiting import eventually
from support.real.deployment import Deployment, deployment, frames
from support.real.nats import NatsServer
from support.real.upstreams import Upstream

SETTLE_S = 1.0


class Automation:
    """An SSE client that reconnects with its last id, and forgets the id when it restarts."""

    def __init__(self, penstock: Deployment) -> None:
        self.penstock = penstock
        self.seen: list[tuple[str, str]] = []
        self._last_id = ""
        self._task: asyncio.Task[None] | None = None
        self._turn = 0
        self.opened = asyncio.Event()

    def start(self) -> None:
        self._task = asyncio.create_task(self._follow())

    async def stop(self) -> None:
        assert self._task is not None
        self._task.cancel()
        await asyncio.wait([self._task])
        self._last_id = ""

    async def _follow(self) -> None:
        query = {"subjects": "lifecycle.*", "names": "off", "cursor": "n8n"}
        while True:
            headers = {"last-event-id": self._last_id} if self._last_id else {}
            self._turn += 1
            with contextlib.suppress(httpx.HTTPError):
                url = f"{self.penstock.edge(self._turn)}/v1/events"
                async with self.penstock.http.stream(
                    "GET", url, params=query, headers=headers
                ) as answer:
                    self.opened.set()
                    async for frame in frames(answer):
                        self._last_id = frame.id or self._last_id
                        event = json.loads(frame.data)
                        self.seen.append((event["run_id"], event["event"]["action"]))
            await asyncio.sleep(0.1)

    async def saw(self, run_id: str) -> None:
        async def there() -> bool:
            return (run_id, "completed") in self.seen

        await eventually(there, 30, f"the end of {run_id}")


@pytest.mark.chaos
@pytest.mark.real
async def test_nothing_is_missed_over_kills_of_the_edge_and_restarts_of_the_client(
    fresh_nats: NatsServer, agno_server: Upstream, tmp_path: Path
) -> None:
    agents = [
        {"id": "assistant", "protocol": "agno", "url": agno_server.url, "agent": "demo-agent"}
    ]
    count = {"normalizer": 1, "approvals": 1, "connector": 1, "edge": 2}
    runs: list[str] = []
    async with deployment(
        fresh_nats.url, tmp_path, agents, count, cursor_settle_s=SETTLE_S
    ) as penstock:
        client = Automation(penstock)
        client.start()
        async with asyncio.timeout(30):
            await client.opened.wait()  # a new cursor begins when its first stream is open
        for number in range(6):
            runs.append(await penstock.run("assistant", "Hello", edge=number))
            if number % 3 == 0:  # the edge dies in the middle of the run
                dead = penstock.of("edge")[0]
                await penstock.kill(dead)
                await penstock.start("edge")
            elif number % 3 == 1:  # the client restarts in the middle of the run
                await client.stop()
                client.start()
            else:  # both
                await client.stop()
                for edge in penstock.of("edge"):
                    await penstock.kill(edge)
                await penstock.start("edge")
                await penstock.start("edge")
                client.start()
            await client.saw(runs[-1])
        await asyncio.sleep(3 * SETTLE_S)
        before = list(client.seen)
        await client.stop()
        client.start()
        last = await penstock.run("assistant", "Hello")
        await client.saw(last)
        await client.stop()
    for run_id in runs:
        assert {action for seen, action in before if seen == run_id} == {"started", "completed"}
    # What had settled before the last restart does not come again.
    assert {run_id for run_id, _ in client.seen[len(before) :]} == {last}
