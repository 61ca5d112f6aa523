"""A hub reads and encodes one view, for example a run in a dialect, for all clients of this view.

The hub keeps a ring of recent items, and each client only has a position in the ring. So a client
needs no memory for pending items, and a thousand clients at the same position write the same bytes.
A client whose position is before the ring reads the JetStream stream at its own pace.
"""

from __future__ import annotations

import asyncio
import logging
from dataclasses import replace
from enum import Enum
from typing import Final, Protocol

from penstock.bus import Bus, Stored
from penstock.telemetry import DELIVERED
from penstock.web.read_scheduler import Turn
from penstock_edge.sources.encode import encode
from penstock_edge.sources.history import History
from penstock_edge.sources.locate import StartPosition
from penstock_edge.sources.run_source import source_of
from penstock_edge.stream.ring import Ring
from penstock_edge.stream.ring_budget import RingBudget
from penstock_edge.views.items import Encoding, Item
from penstock_edge.views.positions import StreamSequence
from penstock_edge.views.view import View

log = logging.getLogger(__name__)

SLICE: Final = 100  # the number of clients to wake before other tasks may run


class HubClient(Protocol):
    """The part of a client that the hub uses."""

    def wake(self) -> int:
        """Make the client look at the ring: the ring has new items, or will get no more items.

        Returns:
            The number of items that the client has written at once.
        """
        ...


class State(Enum):
    """The states of a hub, in order. A hub never returns to an earlier state."""

    NEW = "new"
    STARTING = "starting"
    FOLLOWING = "following"
    OVER = "over"  # the last item was encoded, or the hub was stopped
    FAILED = "failed"  # an error stopped the hub; the next client gets a new hub


class SourceFailed(Exception):
    """An error ended the delivery of the source's messages."""


class _Arrivals:
    """The messages that a source has delivered to a hub. This object has no reference to the hub.

    If it had such a reference, a hub and its source would form a cycle, and the ring of a finished
    hub would stay in memory until the garbage collector runs.
    """

    def __init__(self) -> None:
        self._batch: list[Stored] = []
        self._failure: BaseException | None = None
        self._some = asyncio.Event()

    def add(self, batch: list[Stored]) -> None:
        self._batch += batch
        self._some.set()

    def fail(self, error: BaseException) -> None:
        self._failure = error
        self._some.set()

    async def take(self) -> list[Stored]:
        """Wait for the next messages, and return them.

        Raises:
            SourceFailed: the source has failed, and all its messages have been taken.
        """
        await self._some.wait()
        self._some.clear()
        batch, self._batch = self._batch, []
        if self._failure is not None:
            if not batch:
                raise SourceFailed from self._failure
            self._some.set()
        return batch


class Hub:
    """Follows one view while the view has clients, and for a short time after the last one left."""

    def __init__(
        self, bus: Bus, view: View, start: StartPosition, ring_bytes: int, budget: RingBudget
    ) -> None:
        self.view = view
        self.clients: set[HubClient] = set()
        self.ring = Ring()
        # The ring has, or will get, every message from this stream sequence on.
        self.floor = StreamSequence(start.start)
        self._bus = bus
        self._state = State.NEW
        self._ring_bytes = ring_bytes
        self._budget = budget
        self._first: Stored | None = None
        self._encoding = view.encoding()
        self._arrivals = _Arrivals()
        self._source = source_of(bus, view, start, self._arrivals.add)
        self._source.on_failure = self._arrivals.fail
        self._working: asyncio.Task[None] | None = None
        self._starting: asyncio.Task[None] | None = None

    @property
    def closed(self) -> bool:
        """Whether no item will be added to the ring any more."""
        return self._state in (State.OVER, State.FAILED)

    @property
    def failed(self) -> bool:
        """Whether an error has closed this hub, so that the next client needs a new hub."""
        return self._state is State.FAILED

    async def start(self) -> None:
        """Begin to follow the view; concurrent callers wait for the same beginning.

        Raises:
            BusError: the source cannot be followed. The caller must stop the hub.
        """
        if self._state is State.NEW:
            self._state = State.STARTING
            self._starting = asyncio.create_task(self._begin())
            self._working = asyncio.create_task(self._work())
        if self._starting is not None:
            # Without the shield, a client that leaves would cancel the start for all clients.
            await asyncio.shield(self._starting)
            self._starting = None

    async def _begin(self) -> None:
        floor = StreamSequence(await self._source.start())
        self.floor = max(self.floor, floor)
        if self._state is State.STARTING:
            self._state = State.FOLLOWING

    async def stop(self) -> None:
        """End the streams of all clients between two frames; clients may reconnect with cursors."""
        self._close(State.OVER)
        self._budget.forget(self)
        for task in (self._starting, self._working):
            if task is not None:
                task.cancel()
        # The exception in a task refers to a stack frame, and the stack frame refers to this hub.
        # If the hub kept the task, the hub and its ring would stay in memory.
        self._starting = self._working = None
        await self._source.stop()

    def history(self, start: StreamSequence, turn: Turn) -> History:
        """Return a reader of the view's stored messages from `start` on, for one client."""
        source = self._source
        return History(
            self._bus, self.view.followed.stream, source.patterns, start, source.keep, turn
        )

    def joins(self, last: Stored | None) -> bool:
        """Return whether the ring's oldest item directly follows this message.

        The result may be False if the client has read from a replica that lags behind.
        """
        if last is None:
            return True
        if self.ring.evicted is not None:
            return last.sequence >= self.ring.evicted
        return self._first is None or self.view.followed.follows(last, self._first)

    async def encode(self, encoding: Encoding, stored: Stored) -> Item:
        """Encode one message as an item; a message that cannot be read becomes a notice."""
        return await encode(self._bus, self.view, encoding, stored)

    def evict_all(self) -> int:
        """Evict as many items as possible; return the number of bytes that the ring still has."""
        self._evict(0, least=0)
        return self.ring.held_bytes

    async def _work(self) -> None:
        try:
            while not self.closed:
                for stored in await self._arrivals.take():
                    if self._first is None:
                        self._first = replace(stored, payload=b"")
                    item = await self.encode(self._encoding, stored)
                    self.ring.append(item)
                    if item.last:
                        self._state = State.OVER
                    if self.closed:
                        break
                self._evict(self._ring_bytes, least=1)
                await self._fan_out()
                self._budget.hold(self, self.ring.held_bytes)
            await self._source.stop()
        except Exception:  # without this, the clients would wait for events for ever
            log.exception("%s: the hub stops following", " ".join(self.view.key))
            self._close(State.FAILED)
            self._budget.forget(self)
            await self._source.stop()

    def _evict(self, limit_bytes: int, least: int) -> None:
        newest = self.ring.newest
        if self.view.reads_frames and newest is not None and newest.last:
            # The run's terminal event is not in RAW. So a client cannot replay the terminal event
            # after it was evicted.
            least = 1
        if self.ring.evict(limit_bytes, least):
            assert self.ring.evicted is not None
            self.floor = StreamSequence(self.ring.evicted + 1)

    async def _fan_out(self) -> None:
        written = 0
        for number, client in enumerate(tuple(self.clients), 1):
            written += client.wake()
            if number % SLICE == 0:
                await asyncio.sleep(0)
        if written:
            DELIVERED.labels(self.view.dialect).inc(written)

    def _close(self, state: State) -> None:
        if not self.closed and (frames := self._encoding.interruption()):
            newest = self.ring.newest
            after = newest.sequence if newest else self.floor
            self.ring.append(Item(after + 1, frames, last=True))
        if self._state is not State.FAILED:
            self._state = state
        for client in self.clients:
            client.wake()
