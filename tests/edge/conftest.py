"""Run an edge over a real nats-server; the other services are fakes."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack
from typing import Any

import pytest

from penstock.bus import Bus, BusSettings
from penstock.service import Context
from penstock.settings import AdkAgent, AgnoAgent, Config
from penstock.web.auth import Auth
from penstock.web.server import Server
from penstock_edge.service import EdgeService
from penstock_edge.settings import EdgeSettings
from support.drive.bus import make_streams_once
from support.drive.clients import Client, MakeEdge, Stream
from support.fakes.pretend import PretendRun
from support.real.nats import NatsServer, login

CONFIG = Config(
    agents=[
        AgnoAgent(
            id="assistant",
            protocol="agno",
            url="http://127.0.0.1:9",
            agent="demo",
            topology_id=123,
            accepts=["dependencies", "session_state", "version"],
        ),
        AdkAgent(
            id="helper",
            protocol="adk",
            url="http://127.0.0.1:9",
            agent="vana",
            accepts=["stateDelta", "events", "options"],
        ),
    ]
)


class Edges:
    """Starts edges, each with an HTTP client of its own, and stops all of them."""

    def __init__(self, stack: AsyncExitStack, nats: NatsServer) -> None:
        self._stack = stack
        self._nats = nats

    async def make(
        self,
        nats: NatsServer | None = None,
        config: Config = CONFIG,
        auth: Auth | None = None,
        **settings: Any,
    ) -> Client:
        """Start an edge with these settings; return an HTTP client of it."""
        url = (nats or self._nats).url
        await make_streams_once(url)
        bus = await Bus.connect(BusSettings(url=url, **login("edge")))
        self._stack.push_async_callback(bus.close)
        given = {"enable_adk_canonical_stream": True, **settings}
        edge = EdgeService(Context(config, EdgeSettings(**given), bus, "edge-test"))
        await edge.start()
        server = Server(edge.routes, "127.0.0.1", 0, auth=auth, ws_ping_s=edge.ws_ping_s)
        await server.start()
        self._stack.push_async_callback(server.stop)
        self._stack.push_async_callback(edge.stop)
        client = Client(base_url=f"http://127.0.0.1:{server.port}", timeout=20)
        return await self._stack.enter_async_context(client)


@pytest.fixture
async def bus(nats_server: NatsServer) -> AsyncIterator[Bus]:
    bus = await Bus.connect(BusSettings(url=nats_server.url))
    yield bus
    await bus.close()


@pytest.fixture
async def make_edge(nats_server: NatsServer) -> AsyncIterator[MakeEdge]:
    """Return a function that starts an edge with these settings; it returns an HTTP client."""
    async with AsyncExitStack() as stack:
        yield Edges(stack, nats_server).make


@pytest.fixture(scope="module")
def config() -> Config:
    """Return the configuration of `edge`, which a test module may override."""
    return CONFIG


@pytest.fixture(scope="module")
async def edge(nats_server: NatsServer, config: Config) -> AsyncIterator[Client]:
    """Run one edge for all tests of a module; a test that changes an edge's state makes its own."""
    async with AsyncExitStack() as stack:
        yield await Edges(stack, nats_server).make(config=config)


@pytest.fixture
async def run(bus: Bus) -> PretendRun:
    """Return a run that has a record and no events."""
    run = PretendRun(bus)
    await run.record()
    return run


@pytest.fixture
async def finished(run: PretendRun) -> PretendRun:
    """Return a run of five events: started, three pieces of text, completed."""
    await run.started()
    await run.text("Hello", " wor", "ld")
    await run.completed("Hello world")
    return run


@pytest.fixture
def events(edge: Client) -> Callable[..., Stream]:
    """Return a function that opens a run's stream: `events(run, **query, headers=…)`."""

    def open(run: PretendRun, headers: dict[str, str] | None = None, **query: str) -> Stream:
        path = f"/v1/runs/{run.run_id}/events"
        return Stream(edge, "GET", path, params=query, headers=headers)

    return open
