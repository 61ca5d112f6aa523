"""The official client, cut off at every frame of every recording, has the task of an uncut one.

The recordings are canonical events in EVENTS, as the normalizer has written them. The client reads
so many frames, subscribes again, and folds what follows with the SDK's own functions.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack

import orjson
import pytest
import pytest_asyncio

from penstock.bus import Bus, BusSettings, Message, messages, subjects
from penstock.dialects.a2a import A2aEncoder
from penstock.service import Context
from penstock.settings import Config
from penstock.web.server import Server
from penstock_edge.service import EdgeService
from penstock_edge.settings import EdgeSettings
from support.drive.bus import make_streams
from support.fakes.pretend import PretendRun
from support.real.a2a_client import Official, normal, official
from support.real.nats import NatsServer
from support.recorded import agui
from support.recorded.canonical import Recorded, folded, recorded_runs, type_of

pytestmark = [
    pytest.mark.chaos,
    pytest.mark.asyncio(loop_scope="module"),
    pytest.mark.timeout(1800),
]

AGENT = {"id": "assistant", "protocol": "agno", "url": "http://127.0.0.1:9", "agent": "demo"}
AT_ONCE = 8
WAITING = ("TASK_STATE_INPUT_REQUIRED", "TASK_STATE_AUTH_REQUIRED")


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def site(nats_server: NatsServer) -> AsyncIterator[tuple[Bus, Official]]:
    await make_streams(nats_server.url)
    async with AsyncExitStack() as stack:
        bus = await Bus.connect(BusSettings(url=nats_server.url))
        stack.push_async_callback(bus.close)
        config = Config.model_validate({"agents": [AGENT]})
        edge = EdgeService(Context(config, EdgeSettings(), bus, "edge-cuts"))
        await edge.start()
        stack.push_async_callback(edge.stop)
        server = Server(edge.routes, "127.0.0.1", 0)
        await server.start()
        stack.push_async_callback(server.stop)
        client = await stack.enter_async_context(official(f"http://127.0.0.1:{server.port}"))
        yield bus, client


async def publish(run: PretendRun, recording: Recorded, begin: int, end: int) -> None:
    for number, event in enumerate(recording.events[begin:end], begin + 1):
        body = {**event, "run_id": run.run_id, "session_id": run.session_id}
        headers = {messages.SEQUENCE: str(number)}
        if run.first:
            headers[messages.FIRST] = str(run.first)
        subject = subjects.event_input(type_of(event), run.run_id)
        place = await run.bus.publisher.publish(Message(subject, orjson.dumps(body), headers))
        run.first = run.first or place


async def task_at(bus: Bus, client: Official, recording: Recorded, cut: int) -> dict[str, object]:
    """Return the task of a client that subscribes when so many events are stored, leaves after the
    task, and subscribes again while the rest is stored."""
    run = PretendRun(bus)
    await run.record()
    await publish(run, recording, 0, cut)
    asked = {"id": run.run_id}
    first = await client.call("subscribe", asked, cut=1)
    assert "raised" not in first, first
    subscribed = asyncio.create_task(client.call("subscribe", asked))
    await publish(run, recording, cut, len(recording.events))
    task = await subscribed
    # A subscription ends at a pause. Of a task that has ended, the client gets the whole.
    while task.get("status", {}).get("state") in WAITING:
        task = await client.call("subscribe", asked)
    if "raised" in task:
        task = await client.call("get_task", asked)
    text = orjson.dumps(normal(task)).decode().replace(run.run_id, "RUN")
    shown: dict[str, object] = orjson.loads(text)
    return shown


async def test_the_official_client_has_the_same_task_wherever_it_was_cut_off(
    site: tuple[Bus, Official],
) -> None:
    bus, client = site
    turns, cuts = asyncio.Semaphore(AT_ONCE), 0

    async def one(recording: Recorded, cut: int) -> tuple[str, int, dict[str, object]]:
        async with turns:
            return recording.name, cut, await task_at(bus, client, recording, cut)

    for recording in [*recorded_runs(), *(folded(each, "agui") for each in agui.scenarios())]:
        ends = sum(len(list(A2aEncoder().responses(each))) for each in recording.events[-1:])
        if not ends or not type_of(recording.events[-1]).startswith("lifecycle.c"):
            continue
        places = range(1, len(recording.events))
        told = await asyncio.gather(*(one(recording, cut) for cut in places))
        cuts += len(told)
        whole = told[0][2]
        assert [(name, cut) for name, cut, task in told if task != whole] == []
    print(f"{cuts} cuts")
