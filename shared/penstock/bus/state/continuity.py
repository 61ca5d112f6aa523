"""Detects a stream that has lost its end, since NATS may restart with an older store.

A power cut loses messages that were acknowledged but not yet written to the disk. A volume that an
operator restores from a backup also lacks the newest messages. Then the stream sequences that
processes remember are wrong: a reader waits beyond the stream's end, a fence expects a message that
is gone, and a cursor has a sequence that the next event, perhaps of another run, gets again. Two
rules prevent these errors:

- Every two seconds the last sequence of each stream is recorded in KV `checkpoints` (`marks`), and
  every process remembers the last sequence that was acknowledged to it. A stream that ends before
  such a sequence has lost data. Then no process reads or writes until the stream is repaired.
- **No sequence of RAW, EVENTS and COMMANDS is ever used twice.** To repair a stream, a normalizer
  publishes empty messages until the stream's end is beyond all sequences that can have existed.
  Then the normalizer deletes these messages. So a sequence that a process remembers still belongs
  to the same message, or to no message.

The losses are also kept in KV `checkpoints` (`lost.<stream>`), for processes that start later.
"""

from __future__ import annotations

import asyncio
import contextvars
import logging
from collections.abc import Callable, Iterable, Iterator
from datetime import datetime, timedelta
from typing import Any

import orjson

from penstock.bus import messages, streams, subjects
from penstock.bus.errors import BusError, FenceConflict
from penstock.bus.messages import Message
from penstock.bus.read import leader
from penstock.bus.shards import ONE
from penstock.bus.state.kv import Buckets
from penstock.bus.state.losses import (
    BUCKET,
    LOST,
    MARKS,
    Loss,
    Snapshot,
    is_numbered,
    numbered_streams,
    repair_margin,
    watched_streams,
)
from penstock.bus.write.fence import Writes
from penstock.bus.write.publisher import MAX_BATCH

EXPECTED_LAST = "Nats-Expected-Last-Sequence"
# The run id in the subjects of fillers. This run id is no UUID, so no service takes a filler for a
# message of a run.
NOBODY = "skipped"
# For each kind of stream, two subjects of its fillers: the subject to publish to in shard 0, and
# the subject under which the stream stores the filler.
_FILLERS = {
    streams.RAW: (subjects.raw(NOBODY, "penstock"), subjects.raw_stored(NOBODY, "penstock")),
    streams.EVENTS: (subjects.event("system.skipped", NOBODY),) * 2,
    streams.COMMANDS: (subjects.command("penstock", "skipped", NOBODY),) * 2,
}


def _filler(stream: str) -> tuple[str, str]:
    """Return the subject to which a stream's fillers are published, and their stored subject."""
    kind, shard = streams.kind_and_shard(stream)
    subject, stored = _FILLERS[kind]
    return subjects.to_shard(shard, subject), stored


async def ends_at(bus: Writes, stream: str, last: int) -> bool:
    """Publish a first filler and return True if the stream ends at this sequence; else False."""
    subject, _ = _filler(stream)
    try:
        await bus.publisher.publish(Message(subject, b"", {EXPECTED_LAST: str(last)}))
    except FenceConflict:
        return False
    return True


async def skip(bus: Writes, stream: str, last: int, to: int) -> None:
    """Fill the stream from the sequence after `last` up to `to`, and delete the fillers."""
    subject, stored = _filler(stream)
    publisher = bus.publisher
    while last < to:
        batch = [Message(subject, b"", {}) for _ in range(min(MAX_BATCH, to - last))]
        if len(batch) == 1 or stream == streams.COMMANDS:  # a work queue takes no batches
            last = max(await asyncio.gather(*map(publisher.publish, batch)))
        else:
            last = await publisher.publish_batch(batch)
    await bus.jetstream.api(f"STREAM.PURGE.{stream}", {"filter": stored})


log = logging.getLogger(__name__)

AGAIN_S = 0.2  # seconds between the two checks that must both find a stream shorter than known
ANSWER_S = 0.5  # seconds to wait for a stream's leader; the next check asks the stream again
NOTICED = timedelta(hours=1)  # how long /readyz and the metric report a loss
MAX_KEPT = 50  # the most losses that are kept for each stream

_NOTICE = (
    "NATS has lost data: {}. Runs whose source frames are gone end with code history_lost, "
    "cursors of lost events get 410; events whose source frames are left are made again. After "
    "`penstock streams restore` this is expected, the second number includes its --lost, and there "
    "is nothing to do. If NATS lost power, set `sync_interval: always` in its configuration, which "
    "prevents this (shared/penstock/bus, Power)"
)
_WAITS = (
    "NATS has lost the end of {}: nothing is sent or read until a normalizer has repaired that, "
    "which takes some seconds. Is a normalizer running?"
)


class Continuity:
    """Knows the ends of the streams and their losses; with `repairs`, also repairs the streams."""

    def __init__(self, bus: Buckets, *, repairs: bool) -> None:
        self._bus = bus
        self._repairs = repairs
        self.shards = ONE  # the number of shards, as it was at most some seconds ago
        self._known: dict[str, int] = {}  # the highest sequence that was read, by stream
        self._losses: dict[str, tuple[Loss, ...]] = {}
        # the snapshot of the last check, if that check found all streams complete
        self._looked: Snapshot | None = None
        self._found: dict[str, Loss] = {}  # losses that this process found, and has logged
        # Whether the first check has been made. A loss that the first check finds may be older than
        # this process, so the loss is not reported.
        self._begun = False
        self._callbacks: set[Callable[[Loss], None]] = set()
        self._context = contextvars.copy_context()

    def record_read(self, stream: str, sequence: int) -> None:
        """Record that this message was read. One that was acknowledged to this process needs no
        call."""
        if sequence > self._known.get(stream, 0):
            self._known[stream] = sequence

    def on_loss(self, callback: Callable[[Loss], None]) -> Callable[[], None]:
        """Call `callback` with each new loss, once the stream of the loss is repaired. Returns a
        function that removes the callback."""
        self._callbacks.add(callback)
        return lambda: self._callbacks.discard(callback)

    def of(self, stream: str) -> tuple[Loss, ...]:
        """Return all known losses of a stream, the oldest first."""
        return self._losses.get(stream, ())

    @property
    def all(self) -> tuple[Loss, ...]:
        return tuple(loss for losses in self._losses.values() for loss in losses)

    def covers(self, stream: str, sequence: int) -> Loss | None:
        """Return the loss in which this message was lost; None if it was not lost."""
        return next((loss for loss in self.of(stream) if loss.covers(sequence)), None)

    def count(self, stream: str) -> int:
        """Return how many messages of the stream were lost, in all losses of the last hour."""
        return sum(loss.last_known - loss.last_left for loss in self._recent(self.of(stream)))

    @property
    def notices(self) -> list[str]:
        """Texts for operators, with advice, about each loss of the last hour."""
        return [_NOTICE.format(loss) for loss in self._recent(self.all)]

    def _recent(self, losses: Iterable[Loss]) -> Iterator[Loss]:
        since = self._bus.clock.now() - NOTICED
        return (each for each in losses if datetime.fromisoformat(each.found_at) > since)

    async def check(self) -> str:
        """Compare the streams' ends with the known sequences, and repair streams if so configured.

        Returns the reason why no work may be done yet. The reason is empty while every stream is
        complete.
        """
        look = await self._snapshot()
        behind = look.known_ends_of_short_streams
        if behind:
            # A newly elected leader may not have applied all of its messages yet.
            await asyncio.sleep(AGAIN_S)
            before, look = look, await self._snapshot()
            behind = look.known_ends_of_short_streams
            still = {
                stream: known
                for stream, known in behind.items()
                if look.last[stream] == before.last.get(stream)
            }
            if not self._repairs:
                await self._raise_marks(look, still)
            elif still:
                for stream, known in sorted(still.items()):
                    await self._repair(look, stream, known)
                look = await self._snapshot()
                behind = look.known_ends_of_short_streams
        self._learn(look)
        self._looked = None if behind else look
        waiting = [name for name in behind if is_numbered(name)]
        return _WAITS.format(", ".join(sorted(waiting))) if waiting else ""

    async def note(self) -> None:
        """Record the ends of the streams that the last check found, if all were complete."""
        look, self._looked = self._looked, None
        if look is not None and (marks := look.new_marks()) is not look.marks:
            # A conflict needs no retry, since another process has just recorded the ends.
            await self._bus.bucket(BUCKET).update(MARKS, orjson.dumps(marks), look.revision)

    def highest(self, stream: str) -> int:
        """Return the highest sequence of the stream that this process has seen; 0 without one."""
        return max(self._known.get(stream, 0), self._bus.publisher.stored.get(stream, 0))

    async def _snapshot(self) -> Snapshot:
        # Read the known sequences first, then the streams' ends. Other processes write meanwhile.
        # So in the other order, a known sequence could be newer than the end, and a complete stream
        # would look too short.
        look = Snapshot(
            own={stream: self.highest(stream) for stream in numbered_streams(self.shards.made)},
            shards=self.shards,
        )
        for entry in await self._bus.bucket(BUCKET).entries():
            look.take(entry)
        self.shards = look.shards
        if self._repairs:
            await asyncio.gather(
                *(self._ask_events(look, shard) for shard in range(look.shards.made))
            )
        names = (watched_streams if self._repairs else numbered_streams)(look.shards.made)
        answers = await asyncio.gather(*map(self._state, names))
        for stream, answer in zip(names, answers, strict=True):
            if answer is not None:
                look.last[stream] = answer["state"]["last_seq"]
                look.now = max(look.now, answer["ts"])
        # Read the losses once more: another process may have repaired a stream since the first
        # read, and the end that was just read may already include the empty messages of the repair.
        for entry in await self._bus.bucket(BUCKET).entries(f"{LOST}*"):
            look.take(entry)
        return look

    async def _state(self, stream: str) -> dict[str, Any] | None:
        try:
            return await self._bus.jetstream.api(f"STREAM.INFO.{stream}", timeout_s=ANSWER_S)
        except BusError as error:
            log.debug("%s: %s", stream, error)
            return None

    async def _ask_events(self, look: Snapshot, shard: int) -> None:
        """Mark the source frame of the shard's last event, since this frame has existed."""
        try:
            last = await leader.tail(self._bus, streams.events_of(shard), ">")
        except BusError as error:
            log.debug("the last event: %s", error)
            return
        if last is not None and (position := last.headers.get(messages.RAW_POSITION)):
            look.mark(streams.raw_of(shard), int(position))

    def _learn(self, look: Snapshot) -> None:
        loop = asyncio.get_running_loop()
        for stream, losses in look.losses.items():
            last = look.last.get(stream, 0)
            settled = [
                loss for loss in losses if not is_numbered(stream) or loss.skipped_to <= last
            ]
            news = [loss for loss in settled if loss not in self.of(stream)]
            if not news:
                continue
            self._losses[stream] = (*self.of(stream), *news)
            for loss in news:
                if self._begun and loss != self._found.pop(stream, None):
                    log.error("%s", _NOTICE.format(loss))
                for callback in tuple(self._callbacks) if self._begun else ():
                    # `PASSES` may be True in the task of this check (see `nats_client`). So the
                    # callback runs in the context of the process's start, where `PASSES` is False,
                    # and the callback's requests are held back like all other requests.
                    loop.call_soon(callback, loss, context=self._context.copy())
        self._begun = True

    async def _raise_marks(self, look: Snapshot, behind: Iterable[str]) -> None:
        """Write each sequence into the marks that is later than the present mark of its stream. The
        process that repairs the streams reads the marks, and so learns what this process knows."""
        more = {
            stream: known
            for stream in behind
            if is_numbered(stream) and (known := self.highest(stream)) > look.marks.get(stream, 0)
        }
        if more:
            value = orjson.dumps({**look.marks, **more})
            await self._bus.bucket(BUCKET).update(MARKS, value, look.revision)

    async def _repair(self, look: Snapshot, stream: str, known: int) -> None:
        """Record the loss, and then make the lost sequences unusable."""
        last_left = look.last[stream]
        losses = look.losses.setdefault(stream, [])
        begun = losses and last_left < losses[-1].skipped_to and known <= losses[-1].skipped_to
        if not begun:
            to = known + repair_margin(stream) if is_numbered(stream) else last_left
            if is_numbered(stream) and not await ends_at(self._bus, stream, last_left):
                return
            losses.append(Loss(stream, last_left, known, to, look.now))
            log.error("%s", _NOTICE.format(losses[-1]))
            self._found[stream] = losses[-1]
            value = orjson.dumps(losses[-MAX_KEPT:])
            revision = look.revisions.get(stream, 0)
            if await self._bus.bucket(BUCKET).update(LOST + stream, value, revision) is None:
                return  # another process repairs the stream
        if is_numbered(stream):
            await skip(self._bus, stream, last_left, losses[-1].skipped_to)
        else:
            look.marks[stream] = last_left
            await self._bus.bucket(BUCKET).put(MARKS, orjson.dumps(look.marks))
