"""One reading and one encoding for each view (a run in a dialect, say), shared by its clients.

The hub keeps a ring of recent items. A client only has a place in it: what is pending for a
client costs nothing, and a thousand clients at the same place are given the same bytes. Whoever
stands before the ring's beginning reads the past from the stream itself, at its own pace.
"""

from __future__ import annotations

import asyncio
import logging
from bisect import bisect_left
from dataclasses import replace

from penstock.bus import Bus, BusError, Loss, Stored
from penstock.telemetry import CLIENTS, DELIVERED
from penstock.web.read_turns import ReadTurns, Turn
from penstock_edge.settings import EdgeSettings
from penstock_edge.sources.encode import encode
from penstock_edge.sources.history import Past
from penstock_edge.sources.locate import Place
from penstock_edge.stream.client import Chunk, Client
from penstock_edge.stream.open_streams import OpenStreams
from penstock_edge.stream.ring_budget import Budget
from penstock_edge.views.dialects import View
from penstock_edge.views.items import Encoding, Item

log = logging.getLogger(__name__)

CHUNK_BYTES = 256 * 1024
KNOWN_CHUNKS = 4  # most clients are at the ring's end
SLICE = 100  # clients woken before the loop has its turn
ITEM_BYTES = 200  # what an item costs besides its frames


class _Arrivals:
    """What a source has delivered. It knows no hub, so that no hub is part of a cycle."""

    def __init__(self) -> None:
        self._batch: list[Stored] = []
        self._some = asyncio.Event()

    def add(self, batch: list[Stored]) -> None:
        self._batch += batch
        self._some.set()

    async def take(self) -> list[Stored]:
        await self._some.wait()
        self._some.clear()
        batch, self._batch = self._batch, []
        return batch


class Hub:
    """Follows one view for as long as somebody looks, and a little longer."""

    def __init__(self, bus: Bus, view: View, place: Place, ring_bytes: int, budget: Budget) -> None:
        self.bus = bus
        self.view = view
        self.clients: set[Client] = set()
        self.floor = place.start  # every message from here on is in the ring, or still to come
        self.closed = False
        self.failed = False  # others must begin anew
        self.delivered_bytes = 0
        self._ring_bytes = ring_bytes
        self._budget = budget
        self._ring: list[Item] = []
        self._held_bytes = 0
        self._base = 0  # items that have left the ring
        self._evicted: int | None = None  # the message right before the floor, if known
        self._first: Stored | None = None
        self._chunks: dict[int, Chunk] = {}
        self._encoding = view.encoding()
        self._arrivals = _Arrivals()
        deliver = self._arrivals.add
        self._source = view.source(bus, place.start, place.events_start, deliver)
        self._working: asyncio.Task[None] | None = None
        self._starting: asyncio.Task[None] | None = None
        self._started = False

    async def start(self) -> None:
        """Begin to follow; whoever calls waits for the same beginning. Raises BusError."""
        if self._started:
            return
        if self._starting is None:
            self._starting = asyncio.create_task(self._begin())
            self._working = asyncio.create_task(self._work())
        await asyncio.shield(self._starting)
        self._started, self._starting = True, None

    async def _begin(self) -> None:
        floor = await self._source.start()
        self.floor = max(self.floor, floor)

    def past(self, start: int, turn: Turn) -> Past:
        """What stands in the stream from there on, for one client."""
        source = self._source
        return Past(self.bus, self.view.followed.stream, source.patterns, start, source.keep, turn)

    async def stop(self) -> None:
        """End every client's stream where it stands; it may come back with its cursor."""
        self._close()
        self._budget.forget(self)
        for task in (self._starting, self._working):
            if task is not None:
                task.cancel()
        # what ended it holds its frame, which holds this hub and its ring
        self._starting = self._working = None
        await self._source.stop()

    def position(self, sequence: int) -> int:
        """The ring's position of the first item from this stream sequence on."""
        return self._base + bisect_left(self._ring, sequence, key=lambda item: item.sequence)

    @property
    def base(self) -> int:
        """The position of the first item that is still in the ring."""
        return self._base

    def chunk(self, at: int) -> Chunk | None:
        """What follows a position, up to 256 KiB or one item; None when nothing does yet."""
        known = self._chunks.get(at)
        if known is None:
            items = self._ring[at - self._base :]
            if not items:
                return None
            if len(self._chunks) >= KNOWN_CHUNKS:
                self._chunks.clear()
            known = self._chunks[at] = _chunk(items, at)
        return known

    def joins(self, last: Stored | None) -> bool:
        """Whether the ring goes on right after this message (a lagging replica may hide some)."""
        if last is None:
            return True
        if self._evicted is not None:
            return last.sequence >= self._evicted
        return self._first is None or self.view.followed.follows(last, self._first)

    async def encode(self, encoding: Encoding, stored: Stored) -> Item:
        """One message as an item; one that cannot be read becomes a notice, never nothing."""
        return await encode(self.bus, self.view, encoding, stored)

    async def _work(self) -> None:
        try:
            while not self.closed:
                for stored in await self._arrivals.take():
                    if self._first is None:
                        self._first = replace(stored, payload=b"")
                    self._append(await self.encode(self._encoding, stored))
                    if self.closed:
                        break
                self._evict(self._ring_bytes, least=1)
                await self._fan_out()
                self._budget.hold(self, self._held_bytes)
            await self._source.stop()
        except Exception:
            log.exception("%s: not followed any more", " ".join(self.view.key))
            self.failed = True
            self._close()
            self._budget.forget(self)
            await self._source.stop()

    def _append(self, item: Item) -> None:
        self._ring.append(item)
        self._held_bytes += len(item.body) + ITEM_BYTES
        self.delivered_bytes += len(item.body)
        item.offset = self.delivered_bytes
        self._chunks.clear()
        self.closed = item.last

    def empty(self) -> int:
        """Keep nothing; returns the bytes that are held all the same."""
        self._evict(0, least=0)
        return self._held_bytes

    def _evict(self, limit_bytes: int, least: int) -> None:
        """Give up the oldest until the ring fits, or has only so many items."""
        gone = 0
        if self.view.over_raw and self._ring and self._ring[-1].last:
            least = 1  # what ends this stream does not stand in it
        while self._held_bytes > limit_bytes and gone < len(self._ring) - least:
            self._held_bytes -= len(self._ring[gone].body) + ITEM_BYTES
            gone += 1
        if gone:
            self._evicted = self._ring[gone - 1].sequence
            self.floor = self._evicted + 1
            self._base += gone
            del self._ring[:gone]
            self._chunks.clear()

    async def _fan_out(self) -> None:
        written = 0
        for number, client in enumerate(tuple(self.clients), 1):
            written += client.wake()
            if number % SLICE == 0:
                await asyncio.sleep(0)
        if written:
            DELIVERED.labels(self.view.dialect).inc(written)

    def _close(self) -> None:
        if not self.closed and (frames := self._encoding.cut()):
            after = self._ring[-1].sequence if self._ring else self.floor
            self._append(Item(after + 1, frames, last=True))
        self.closed = True
        for client in self.clients:
            client.wake()


def _chunk(items: list[Item], at: int) -> Chunk:
    size = taken = 0
    for item in items:
        if taken and size + len(item.body) > CHUNK_BYTES:
            break
        size += len(item.body)
        taken += 1
    body = items[0].body if taken == 1 else b"".join(item.body for item in items[:taken])
    return Chunk(body, at + taken, tuple(items[:taken]))


class Hubs:
    """Every hub of this process, and the beat that keeps idle streams alive."""

    def __init__(self, bus: Bus, settings: EdgeSettings, turns: ReadTurns | None = None) -> None:
        self.turns = turns or ReadTurns()
        self.streams = OpenStreams(settings.max_streams, settings.max_connection_age_s)
        self._bus = bus
        self._settings = settings
        self._budget = Budget(settings.max_ring_bytes)
        self._hubs: dict[tuple[str, ...], Hub] = {}
        self._apart: set[Hub] = set()  # that nobody joins any more
        self._stopping: set[asyncio.Task[None]] = set()

    async def join(self, view: View, place: Place) -> Client:
        """A client of the view, from its place on. Raises BusError when it cannot be followed."""
        hub = self._hubs.get(view.key)
        if hub is None or hub.failed:
            ring_bytes = self._settings.ring_bytes
            hub = self._hubs[view.key] = Hub(self._bus, view, place, ring_bytes, self._budget)
        client = Client(hub, place, self._left, self.turns)
        hub.clients.add(client)
        self.streams.add(client)
        CLIENTS.labels(view.dialect).inc()
        try:
            await hub.start()
        except BusError:
            self._forget(hub)
            client.leave()
            raise
        except asyncio.CancelledError:  # its client has left; others may wait for the same start
            client.leave()
            raise
        return client

    async def beat(self) -> None:
        """Three times in `keep_alive_s`: wake the silent, drop the slow, send away the old."""
        period_s = self._settings.keep_alive_s / 3
        while True:
            await asyncio.sleep(period_s)
            self.streams.rotate()
            hubs = (*self._hubs.values(), *self._apart)
            clients = [client for hub in hubs for client in hub.clients]
            for number, client in enumerate(clients, 1):
                client.beat(period_s, self._settings)
                if number % SLICE == 0:
                    await asyncio.sleep(0)

    def on_loss(self, loss: Loss) -> None:
        """End the streams that cannot go on by themselves: their clients come back, and are told.

        The stream of one run can: its events have numbers, so what is made again is known. One
        over source frames or many runs cannot, nor one whose clients may have to read the past.
        """
        for key, hub in tuple(self._hubs.items()):
            view = hub.view
            if view.followed.stream != loss.stream:
                continue
            if view.sources is None and not view.over_raw and not hub.base and hub.clients:
                # whoever comes now begins in what was made again, with other sequences
                del self._hubs[key]
                self._apart.add(hub)
            else:
                self._forget(hub)

    async def close(self) -> None:
        """End every stream."""
        hubs = (*self._hubs.values(), *self._apart)
        self._hubs.clear()
        self._apart.clear()
        await asyncio.gather(*(hub.stop() for hub in hubs), *self._stopping)

    def _left(self, client: Client) -> None:
        hub = client.hub
        if client not in hub.clients:
            return
        hub.clients.discard(client)
        self.streams.discard(client)
        CLIENTS.labels(hub.view.dialect).dec()
        if not hub.clients and hub in self._apart:
            self._apart.discard(hub)
            self._forget(hub)
        elif not hub.clients:
            loop = asyncio.get_running_loop()
            loop.call_later(self._settings.hub_grace_s, self._expire, hub)

    def _expire(self, hub: Hub) -> None:
        if not hub.clients and self._hubs.get(hub.view.key) is hub:
            self._forget(hub)

    def _forget(self, hub: Hub) -> None:
        if self._hubs.get(hub.view.key) is hub:
            del self._hubs[hub.view.key]
        task = asyncio.create_task(hub.stop())
        self._stopping.add(task)
        task.add_done_callback(self._stopping.discard)
