"""The response for one client that reads the events of all shards in one SSE stream (decision
0021).

A shard is one pair of the JetStream streams RAW and EVENTS. All messages of a run are in one shard.

Each shard has its own `Client`, hub, ring and replay. This response writes the frames of all these
clients to one connection. Each frame gets a cursor that has a position for each shard. The frames
of one shard, and so the frames of one run, keep their order. Frames of different shards have no
order.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Sequence
from typing import Final

from starlette.types import Receive, Scope, Send

from penstock.web.answers import until_closed
from penstock.web.auth import identity_of
from penstock_edge.stream.client import Client
from penstock_edge.stream.credential import while_valid
from penstock_edge.stream.direct_write import DROPPED_S, dropped
from penstock_edge.stream.open_streams import retry_ms
from penstock_edge.stream.phases import End
from penstock_edge.stream.responses.event_stream import head
from penstock_edge.views.cursor import ShardCursor

CHECK_S: Final = 1.0  # seconds between two checks of the number of shards


class AllShards:
    """The response for one client; it ends when the stream of any shard ends. It moves the
    positions in `cursor`. If `made` returns more shards than when it began, it asks the client to
    reconnect, because it has no `Client` for the new shard."""

    def __init__(
        self, clients: Sequence[Client], cursor: ShardCursor, made: Callable[[], int]
    ) -> None:
        self._clients = clients
        self._cursor = cursor
        self._made = made
        self._writing = asyncio.Lock()
        self._is_over = False
        self._unmarked = len(clients)  # how many shards have not sent their live marker yet

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        first = self._clients[0]
        for client in self._clients:
            client.is_resumable = True
            client.read_for(identity_of(scope))
        try:
            with while_valid(scope, first.expire, first.warn):
                await send(head(200))
                await self._write_all(receive, send)
            slow = next((client for client in self._clients if client.end is End.SLOW), None)
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(DROPPED_S):
                    body = dropped(slow) if slow is not None else b""
                    await send({"type": "http.response.body", "body": body})
        finally:
            for client in self._clients:
                client.leave()

    async def _write_all(self, receive: Receive, send: Send) -> None:
        tasks = [
            asyncio.create_task(self._write(shard, client, send))
            for shard, client in enumerate(self._clients)
        ]
        tasks.append(asyncio.create_task(until_closed(receive)))
        tasks.append(asyncio.create_task(self._until_more_shards(send)))
        try:
            done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            self._is_over = True
            # A write that has begun is completed, so that no frame is cut.
            await self._writing.acquire()
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
        for task in done:
            if not task.cancelled():  # `Client.maintain` cancels the task of a slow client
                task.result()

    async def _write(self, shard: int, client: Client, send: Send) -> None:
        try:
            while (body := await client.take()) is not None:
                async with self._writing:
                    if self._is_over:
                        return
                    await self._write_one(shard, client, body, send)
        finally:
            # One shard's stream has ended, so the whole response ends. If the client is slow, each
            # further write would wait as long as this write. So the tasks of the other shards begin
            # no further write.
            self._is_over = True

    async def _write_one(self, shard: int, client: Client, body: bytes, send: Send) -> None:
        marker = client.hub.view.framing.live_marker
        if self._unmarked and marker and marker in body:
            body = self._with_marker_of_all(body, marker)
        if not body:
            return  # an empty chunk would end the response
        client.writing.begin()
        body = self._cursor.advance(shard, body)
        await send({"type": "http.response.body", "body": body, "more_body": True})
        client.writing.end()

    def _with_marker_of_all(self, body: bytes, marker: bytes) -> bytes:
        """Return the body without the shard's live marker, unless this is the last shard's marker.
        So the client gets one marker, after the stored events of all shards."""
        self._unmarked -= 1
        return body if self._unmarked == 0 else body.replace(marker, b"", 1)

    async def _until_more_shards(self, send: Send) -> None:
        while self._made() <= len(self._clients):
            await asyncio.sleep(CHECK_S)
        body = self._clients[0].hub.view.framing.reconnect(retry_ms())
        async with self._writing:
            await send({"type": "http.response.body", "body": body, "more_body": True})
