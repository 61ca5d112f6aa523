"""A hub whose messages come from the test, and connections that pause, resume, fail and close."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any, cast

import orjson

from penstock.bus import Bus, Stored
from penstock.sse import Frame, Parser
from penstock.web.protocol import Stream
from penstock_edge.settings import EdgeSettings
from penstock_edge.sources.locate import StartPosition
from penstock_edge.stream.client import Client
from penstock_edge.stream.direct_write import Direct
from penstock_edge.stream.hubs import Hubs
from penstock_edge.views.framing import NAMED_SSE
from penstock_edge.views.items import Item, UnchangedEncoding
from penstock_edge.views.view import Deliver, ManyRuns, Source, View

RUN_ID = "0199aaaa-0000-7000-8000-000000000001"


class Unheard(Source):
    """A source that delivers the messages of the test."""

    def __init__(self, deliver: Deliver) -> None:
        self.deliver = deliver
        self.on_failure: Callable[[BaseException], None] = lambda error: None
        self.is_stopped = False

    async def start(self) -> int:
        return 1

    def patterns(self) -> Collection[str]:
        return ()

    async def accepts(self, stored: Stored) -> bool:
        return True

    async def stop(self) -> None:
        self.is_stopped = True


class Ending(UnchangedEncoding):
    """An encoding for events that need the bus first (`"waits"`) or have no frames (`"empty"`)."""

    def is_ready(self, stored: Stored) -> bool:
        return b'"waits"' not in stored.payload

    def feed(self, stored: Stored) -> Item:
        item = super().feed(stored)
        return Item(item.sequence, []) if b'"empty"' in stored.payload else item


def stored(sequence: int, text: str, type: str = "llm.stream") -> Stored:
    """Return a stored event."""
    body = orjson.dumps({"sequence": sequence, "text": text})
    return Stored(f"{type}.{RUN_ID}", sequence, {}, body)


@dataclass
class World:
    """One hub and its clients."""

    settings: EdgeSettings = field(default_factory=EdgeSettings)
    said: list[Stored] = field(default_factory=list)
    connections: list[Connection] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.sources: list[Unheard] = []
        self.hubs = Hubs(cast(Bus, None), self.settings)
        self.view = View(
            (RUN_ID,),
            "canonical",
            ManyRuns(self._open),
            lambda: Ending(NAMED_SSE.unchanged),
            lambda code, message: b": %b\n\n" % code.encode(),
        )

    def _open(self, deliver: Deliver) -> Unheard:
        self.sources.append(Unheard(deliver))
        return self.sources[-1]

    async def join(self) -> Connection:
        """Add a client, which reads from the beginning."""
        client = await self.hubs.join(self.view, StartPosition(1, 1))
        connection = Connection(client)
        self.connections.append(connection)
        return connection

    async def close(self) -> None:
        """Let all clients leave. Otherwise the metric of open streams would count them for ever."""
        for connection in self.connections:
            connection.lose()
            connection.client.leave()
        await self.hubs.close()

    def say(self, *texts: str, type: str = "llm.stream") -> None:
        """Deliver one event for each text."""
        batch = [stored(len(self.said) + at, text, type) for at, text in enumerate(texts, 1)]
        self.said += batch
        self.sources[-1].deliver(batch)

    def frames(self) -> list[Frame]:
        """Return the frames that each client must have received."""
        return [
            Frame(each.payload, each.subject.rpartition(".")[0], f"{each.sequence}-0")
            for each in self.said
            if b'"empty"' not in each.payload
        ]


class Connection:
    """A client's connection with the interface of uvicorn's protocol."""

    def __init__(self, client: Client) -> None:
        self.client = client
        self.body = b""
        self.writes = 0
        self.stream: Stream | None = None
        self.flow = SimpleNamespace(write_paused=False)
        self.transport: Any = self
        self.is_broken = False  # `write` raises an exception
        self.is_full = False  # the next write pauses the connection
        self.is_closed = False
        self.is_complete = False
        self.cycle = cast(Any, SimpleNamespace(disconnected=False, keep_alive=True))
        self.direct = Direct(client, self.cycle, cast(Any, self))
        self.direct.start(b"")

    # Attributes of uvicorn's protocol and transport.

    def take_over(self, stream: Stream) -> None:
        self.stream = stream

    def give_back(self, stream: Stream) -> None:
        assert self.stream is stream
        self.stream = None

    def on_response_complete(self) -> None:
        self.is_complete = True

    def write(self, chunk: bytes) -> None:
        if self.is_broken:
            raise RuntimeError("this transport is broken")
        assert not self.is_complete, "bytes after the end of the response"
        size, _, rest = chunk.partition(b"\r\n")
        is_end = int(size, 16) == 0
        assert is_end or not self.flow.write_paused, "a write to a paused connection"
        self.writes += 1
        self.body += rest[: int(size, 16)]
        if self.is_full and not is_end:
            self.flow.write_paused = True
            assert self.stream is not None
            self.stream.paused()

    def close(self) -> None:
        self.is_closed = True

    def abort(self) -> None:
        asyncio.get_running_loop().call_soon(self.lose)

    # Actions of the test.

    def drain(self) -> None:
        """Let the client read everything."""
        self.is_full = False
        if self.flow.write_paused:
            self.flow.write_paused = False
            if self.stream is not None:
                self.stream.resumed()

    def lose(self) -> None:
        """Close the connection as the client."""
        self.is_closed = True
        stream, self.stream = self.stream, None
        if stream is not None:
            stream.lost()

    @property
    def is_in_sync(self) -> bool:
        return cast(Any, self.client) in self.client.hub.in_sync.members

    def frames(self) -> list[Frame]:
        """Return the frames that the client has received, without notices."""
        return [each for each in Parser().feed(self.body) if each.id is not None]
