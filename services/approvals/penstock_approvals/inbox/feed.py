"""Follows the changes of approvals' records, in the order of the writes.

This module reads the stream of KV `approvals`, not the events `approval.*`. This has three
advantages. First, each message in the stream contains the approval's record, from which the service
decides who may see the change. Second, one sequence numbers the changes of all shards. Third, a
client can always resume, because the stream keeps the last change of each approval. The process
also has a core subscription to the bucket's subjects, but uses these messages only as a signal to
read. The content of these messages is not used, because the stream may have refused the write.
"""

from __future__ import annotations

import asyncio
import logging
from collections import OrderedDict
from collections.abc import AsyncIterator
from typing import Final, NamedTuple

from penstock.bus import Bus, BusError, Incoming, Loss, ObjectGone
from penstock.bus.read.direct import read
from penstock.bus.records.approvals import ApprovalRecord
from penstock.bus.state.kv import Entry, is_marker
from penstock_approvals.store.records import BUCKET, ApprovalRecords, UnreadableRecord

log = logging.getLogger(__name__)

STREAM: Final = f"KV_{BUCKET}"
PREFIX: Final = f"$KV.{BUCKET}."
BATCH: Final = 50
TICK_S: Final = 2.0  # Seconds between two reads when the subscription brings no message.
# Seconds between a message and the read. During this time further changes may come, and are read
# together.
GATHER_S: Final = 0.02
KEPT_BATCHES: Final = 8  # for slower clients; each batch has at most 4 MiB


class Change(NamedTuple):
    """An approval's record after one write. A client resumes after it with its sequence."""

    sequence: int
    record: ApprovalRecord


class Batch(NamedTuple):
    """The changes of one read, and the last sequence that the read covers."""

    through: int
    changes: list[Change]


class BeyondEnd(Exception):
    """The error for a sequence beyond the end of the bucket, which NATS has lost."""


class Feed:
    """Gives clients the changes of all approvals. Clients at the same place share one read."""

    def __init__(self, bus: Bus, records: ApprovalRecords) -> None:
        self._bus = bus
        self._records = records
        self._moved = asyncio.Event()
        self._reads: OrderedDict[int, asyncio.Task[Batch]] = OrderedDict()
        self._closed = False
        self._losses = 0
        bus.continuity.on_loss(self._on_loss)

    async def run(self) -> None:
        """Wake the waiting clients after each write and every `TICK_S` seconds, for ever."""
        listener = await self._bus.listen(f"{PREFIX}*", self._wake)
        try:
            while True:
                await asyncio.sleep(TICK_S)
                self._wake()
        finally:
            listener.stop()

    def close(self) -> None:
        """End the streams of all clients, which then reconnect to another process."""
        self._closed = True
        self._wake()

    async def end(self) -> int:
        """Return the sequence of the last write to the bucket. Raises BusError."""
        info = await self._bus.api(f"STREAM.INFO.{STREAM}")
        return int(info["state"]["last_seq"])

    async def changes(self, after: int) -> AsyncIterator[Batch]:
        """Yield the changes after a sequence as they are written, until the process stops.

        While nothing changes, a batch without changes is yielded every `TICK_S` seconds, so that
        the caller can show the client that the stream is alive. Raises BeyondEnd.
        """
        losses = self._losses
        while not self._closed:
            if losses != self._losses:
                raise BeyondEnd
            moved = self._moved
            try:
                batch = await self.read(after)
            except BusError as error:
                log.debug("the changes of approvals are read again later: %s", error)
                batch = Batch(after, [])
            is_last, after = batch.through == after, batch.through
            yield batch
            if is_last:
                await moved.wait()

    async def read(self, after: int) -> Batch:
        """Return the next changes after a sequence, perhaps none. Raises BusError."""
        task = self._reads.get(after)
        if task is None:
            task = self._reads[after] = asyncio.create_task(self._batch(after))
            while len(self._reads) > KEPT_BATCHES:
                self._reads.popitem(last=False)
        try:
            batch = await asyncio.shield(task)
        except BusError:
            self._forget(after, task)
            raise
        if batch.through == after:
            self._forget(after, task)  # drop the empty result, so that a later call reads again
        return batch

    def _forget(self, after: int, task: asyncio.Task[Batch]) -> None:
        if self._reads.get(after) is task:
            del self._reads[after]

    async def _batch(self, after: int) -> Batch:
        await asyncio.sleep(GATHER_S)
        found, _ = await read(self._bus, STREAM, ">", after + 1, BATCH)
        changes = []
        for stored in found:
            key = stored.subject.removeprefix(PREFIX)
            if "." in key or is_marker(stored):
                continue
            try:
                record = await self._records.of(Entry(key, stored.payload, stored.sequence))
            except (ObjectGone, UnreadableRecord) as error:
                log.debug("approval %s is left out: %s", key, error)
                continue
            changes.append(Change(stored.sequence, record))
        return Batch(found[-1].sequence if found else after, changes)

    def _wake(self, _: Incoming | None = None) -> None:
        moved, self._moved = self._moved, asyncio.Event()
        moved.set()

    def _on_loss(self, loss: Loss) -> None:
        if loss.stream == STREAM:
            self._losses += 1
            self._reads.clear()
            self._wake()
