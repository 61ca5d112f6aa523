"""A hub reads and encodes one view, for example a run in a dialect, for all clients of this view
(decision 0090).

An item is one encoded message. The hub keeps the newest items in a ring, and each client only has a
position in the ring. So a client needs no memory for pending items, and a thousand clients at the
same position write the same bytes. A client whose position is before the ring reads the JetStream
stream at its own pace. A client in sync has all items of the ring, and the hub writes further items
to its connection (see `in_sync`).
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from dataclasses import replace
from datetime import datetime
from enum import Enum
from functools import partial
from typing import Final

from penstock.bus import Bus, Stored
from penstock.log_fields import run_of
from penstock.web.read_scheduler import Turn
from penstock_edge.sources.encode import encode, encode_now
from penstock_edge.sources.history import History, history_of
from penstock_edge.sources.locate import StartPosition
from penstock_edge.sources.run_source import source_of
from penstock_edge.stream.flushes import SLICE, Flushes
from penstock_edge.stream.in_sync import InSyncGroup, Member, Write
from penstock_edge.stream.ring import CHUNK_BYTES, Ring, RingBudget, http_chunk
from penstock_edge.views.cursor import RingPosition, StreamSequence
from penstock_edge.views.items import Encoding, Item
from penstock_edge.views.view import View

log = logging.getLogger(__name__)


class State(Enum):
    """The states of a hub, in order. A hub never returns to an earlier state."""

    NEW = "new"
    STARTING = "starting"
    FOLLOWING = "following"
    OVER = "over"  # the last item was encoded, or the hub was stopped
    FAILED = "failed"  # an error stopped the hub; the next client gets a new hub


# a constant, because an access to an enum's attribute takes 0.14 µs in Python 3.11
_FOLLOWING: Final = State.FOLLOWING


class SourceFailed(Exception):
    """An error ended the delivery of the source's messages."""


class _Arrivals:
    """The messages that a source has delivered and that the hub has not encoded yet. `queue` lets
    `Flushes` flush the hub soon.

    `close` drops the reference to the hub, which would form a cycle with its source: the ring of a
    finished hub would stay in memory until the garbage collector runs.
    """

    __slots__ = ("_queue", "batch", "failure", "is_queued")

    def __init__(self, queue: Callable[[], None]) -> None:
        self.batch: list[Stored] = []
        # the cause of the `SourceFailed` that `take` raises once `batch` is empty
        self.failure: BaseException | None = None
        self.is_queued = False  # whether `Flushes` will call `Hub.flush`
        self._queue: Callable[[], None] | None = queue

    def add(self, batch: list[Stored]) -> None:
        self.batch += batch
        if not self.is_queued and self._queue is not None:
            self.is_queued = True
            self._queue()

    def fail(self, error: BaseException) -> None:
        self.failure = error
        self.add([])

    def give_back(self, batch: list[Stored]) -> None:
        self.batch[:0] = batch

    def close(self) -> None:
        self._queue = self.failure = None
        self.batch = []

    def take(self) -> list[Stored]:
        """Raise `SourceFailed` once all of a failed source are taken."""
        batch, self.batch = self.batch, []
        if not batch and self.failure is not None:
            raise SourceFailed from self.failure
        return batch


class Hub:
    """Follows one view while the view has clients, and for a short time after the last client left.

    Most messages need no read from NATS, and the hub no task for them: `Flushes` calls `flush`. For
    another message, `encode_now` returns None. A task then encodes this message, and the messages
    after it wait.
    """

    __slots__ = (
        "__weakref__",
        "_arrivals",
        "_budget",
        "_bus",
        "_encoding",
        "_first",
        "_flushes",
        "_not_in_sync",
        "_ring_bytes",
        "_sampled",
        "_source",
        "_starting",
        "_state",
        "_stopping",
        "_working",
        "clients",
        "first_sequence",
        "flush_at",
        "in_sync",
        "ring",
        "view",
    )

    def __init__(
        self,
        bus: Bus,
        view: View,
        start: StartPosition,
        ring_bytes: int,
        budget: RingBudget,
        flushes: Flushes,
    ) -> None:
        self.view = view
        self.clients: set[Member] = set()
        self.in_sync = InSyncGroup(view.run_id)
        self.ring = Ring()
        # The ring has, or will get, every message whose stream sequence is `first_sequence` or
        # higher.
        self.first_sequence = StreamSequence(start.start)
        self.flush_at = 0.0
        self._bus = bus
        self._state = State.NEW
        self._ring_bytes = ring_bytes
        self._budget = budget
        self._flushes = flushes
        # the clients that are not in sync, which each flush wakes
        self._not_in_sync: set[Member] = set()
        self._first: Stored | None = None
        # Until the next flush measures the added latency of an event, this is the time at which the
        # connector received the event's source frame. At all other times this is None.
        self._sampled: str | None = None
        self._encoding = view.encoding()
        self._arrivals = _Arrivals(partial(flushes.add, self))
        self._source = source_of(bus, view, start, self._arrivals.add)
        self._source.on_failure = self._arrivals.fail
        # encodes a message that needs a read from NATS
        self._working: asyncio.Task[None] | None = None
        self._stopping: asyncio.Task[None] | None = None
        self._starting: asyncio.Task[None] | None = None

    @property
    def is_closed(self) -> bool:
        return self._state in (State.OVER, State.FAILED)

    @property
    def is_failed(self) -> bool:
        """Whether an error has closed this hub, so that the next client needs a new hub."""
        return self._state is State.FAILED

    async def start(self) -> None:
        """Concurrent callers share one start. After a BusError, the caller must stop the hub."""
        if self._state is State.NEW:
            self._state = State.STARTING
            self._starting = asyncio.create_task(self._begin())
        if self._starting is not None:
            # If the wait were not shielded, a client that leaves would cancel the start for all
            # clients.
            await asyncio.shield(self._starting)
            self._starting = None

    async def _begin(self) -> None:
        first_sequence = StreamSequence(await self._source.start())
        self.first_sequence = max(self.first_sequence, first_sequence)
        if self._state is State.STARTING:
            self._state = State.FOLLOWING

    async def stop(self) -> None:
        """End all clients' streams between two frames, so that they can reconnect with cursors."""
        self._close(State.OVER)
        self._budget.forget(self)
        for task in (self._starting, self._working):
            if task is not None and task is not asyncio.current_task():
                task.cancel()
        # If a task has failed, its exception refers to a stack frame, and the stack frame refers to
        # this hub. If the hub kept the task, the hub, the task and the stack frame would form a
        # cycle. The hub and its ring would then stay in memory.
        self._starting = self._working = None
        self._arrivals.close()
        await self._source.stop()

    def history(self, start: StreamSequence, turn: Turn) -> History:
        """Read for one client's replay, each time within one `turn` of the client's user."""
        return history_of(self._bus, self.view, self._source, start, turn)

    def can_join(self, last: Stored | None) -> bool:
        """Return whether no message is missing between `last`, the last one that the client has
        read, and the ring's oldest item: the client may have read from a replica that lags
        behind."""
        if last is None:
            return True
        if self.ring.evicted is not None:
            return last.sequence >= self.ring.evicted
        return self._first is None or self.view.followed.follows(last, self._first)

    def encode_now(self, encoding: Encoding, stored: Stored) -> Item | None:
        """Return None if something must be read from NATS first."""
        return encode_now(self.view, encoding, stored)

    async def encode(self, encoding: Encoding, stored: Stored) -> Item:
        item = encode_now(self.view, encoding, stored)
        return item or await encode(self._bus, self.view, encoding, stored)

    def evict_all(self) -> int:
        """Return the number of bytes that the ring still has."""
        self._evict(0, least=0)
        return self.ring.held_bytes

    def add(self, client: Member) -> None:
        self.clients.add(client)
        self._not_in_sync.add(client)

    def discard(self, client: Member) -> None:
        self.clients.discard(client)
        self._not_in_sync.discard(client)

    def join_in_sync(self, client: Member, at: RingPosition, write: Write) -> bool:
        """Return whether the group is at the client's position."""
        group = self.in_sync
        if group.at != at or self.is_closed:
            return False
        self._not_in_sync.discard(client)
        group.add(client, write)
        return True

    def leave_in_sync(self, client: Member) -> tuple[RingPosition, StreamSequence]:
        """Return the client's position and its next stream sequence."""
        self._not_in_sync.add(client)
        return self.in_sync.remove(client)

    def flush(self) -> int:
        """Return the number of writes; if clients are more than `SLICE`, the next call goes on."""
        group, arrivals = self.in_sync, self._arrivals
        arrivals.is_queued = False
        try:
            if group.unwritten:
                writes = group.write(SLICE)
            else:
                if self._working is None:
                    self._take_arrivals()
                writes = self._begin_fan_out()
        except Exception:  # If the hub did not fail here, its clients would wait for ever.
            self._fail()
            return SLICE
        if writes:
            self._flushes.delivered(self.view.dialect, writes * group.events)
            if len(group.written) > SLICE and not group.unwritten:
                # The hub waits `join_s` between two fan-outs, so that several events are written
                # together. The wait begins at the end of the fan-out. A fan-out to 1,000 clients
                # takes 8 ms. If the wait began with the fan-out, the hub would wait for 12 instead
                # of 20 ms, and the benchmark W1 would cost 9.2 µs an event instead of 5.1.
                self.flush_at = self._flushes.time() + self._flushes.join_s
        if self._sampled is not None and not group.unwritten:
            self._measure(self._sampled, writes)
        if group.unwritten or group.at != self.ring.end:
            self._flush_again()
        elif (arrivals.batch or arrivals.failure is not None) and self._working is None:
            arrivals.add([])
        return writes

    def _measure(self, received: str, writes: int) -> None:
        """Measure the added latency of an event, if this flush has written it to clients in sync. A
        client that is not in sync may read old events, whose age Penstock has not added."""
        self._sampled = None
        if writes:
            received_s = datetime.fromisoformat(received).timestamp()
            self._flushes.sampled(self._bus.clock.time() - received_s)

    def _flush_again(self) -> None:
        if not self._arrivals.is_queued:
            self._arrivals.is_queued = True
            self._flushes.flush_soon(self)

    def _take_arrivals(self) -> None:
        batch = self._arrivals.take()
        if not batch:
            return
        if self._first is None:
            self._first = replace(batch[0], payload=b"")
        if self._flushes.is_sample_due:
            self._flushes.is_sample_due = False
            self._sampled = batch[0].headers.get("ce-time")
        view, encoding, append = self.view, self._encoding, self.ring.append
        for at, stored in enumerate(batch):
            item = encode_now(view, encoding, stored)
            if item is None:
                self._arrivals.give_back(batch[at + 1 :])
                self._working = asyncio.create_task(self._encode(stored))
                return
            append(item)
            if item.last:
                self._end()
                return

    async def _encode(self, stored: Stored) -> None:
        try:
            item = await encode(self._bus, self.view, self._encoding, stored)
        except Exception:
            self._working = None
            self._fail()
            return
        self._working = None
        if self.is_closed:
            return
        self.ring.append(item)
        if item.last:
            self._end()
        self._flush_again()

    def _end(self) -> None:
        self._state = State.OVER
        self._release_source()

    def _fail(self) -> None:
        key, extra = " ".join(self.view.key), run_of(self.view.run_id)
        log.exception("%s: the hub fails, so its clients' streams end", key, extra=extra)
        self._close(State.FAILED)
        self._budget.forget(self)
        self._release_source()

    def _release_source(self) -> None:
        self._arrivals.close()
        self._stopping = asyncio.create_task(self._source.stop())

    def _begin_fan_out(self) -> int:
        ring, group, now = self.ring, self.in_sync, self._flushes.now
        self.flush_at = now + self._flushes.join_s
        end, writes = ring.end, 0
        if group.at == end:
            return 0
        if group.written:
            writes = self._give_to_group(end, now)
        if not (group.written or group.unwritten):
            newest = ring.newest
            group.move(end, StreamSequence(newest.sequence + 1) if newest else group.next)
        if ring.held_bytes > self._ring_bytes:
            # An eighth of the limit is freed at once. If only the excess were freed, each further
            # event would cause another small eviction.
            self._evict(self._ring_bytes * 7 // 8, least=1)
        self._budget.hold(self, ring.held_bytes)
        if self._not_in_sync:
            for client in tuple(self._not_in_sync):
                client.wake()
        return writes

    def _give_to_group(self, end: RingPosition, now: float) -> int:
        """Begin a fan-out of the group's next chunk; return the number of writes. There is none if
        the streams end with this chunk, if it is large, or if the ring has evicted it: then each
        client takes its next items on its own."""
        ring, group = self.ring, self.in_sync
        begun = group.at
        if begun < ring.base:
            self._dissolve()
            return 0
        body, at, next_ = ring.joined(begun)
        if len(body) > CHUNK_BYTES or (
            at == end and self._state is not _FOLLOWING and self.is_closed
        ):
            self._dissolve()
            return 0
        if not body:
            group.move(at, next_)
            return 0
        return group.begin(http_chunk(body), at, next_, at - begun, now, SLICE)

    def _dissolve(self) -> None:
        for client in self.in_sync.members:
            client.wake()

    def _evict(self, limit_bytes: int, least: int) -> None:
        newest = self.ring.newest
        if self.view.reads_frames and newest is not None and newest.last:
            # A client that reads source frames cannot replay the run's terminal event, because RAW
            # does not contain this event. So the item with the terminal event is never evicted.
            least = 1
        if self.ring.evict(limit_bytes, least):
            assert self.ring.evicted is not None
            self.first_sequence = StreamSequence(self.ring.evicted + 1)

    def _close(self, state: State) -> None:
        if not self.is_closed and (frames := self._encoding.interruption()):
            newest = self.ring.newest
            after = newest.sequence if newest else self.first_sequence
            self.ring.append(Item(after + 1, frames, last=True))
        if self._state is not State.FAILED:
            self._state = state
        for client in tuple(self.clients):
            client.wake()
