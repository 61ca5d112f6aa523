"""Detects a stream that has lost its end: a NATS that restarts may hold an older store.

A power cut loses messages that were acknowledged and not yet on the disk; a volume may be restored
from a backup. Then all remembered stream sequences are wrong: a reader waits beyond the stream's
end, a fence expects a message that is gone, a cursor names the place of another run's next event.
Two rules prevent this:

- Every two seconds the last sequence of each stream is recorded in KV `checkpoints` (`marks`), and
  every process remembers the last sequence that was acknowledged to it. A stream that ends before
  one of them has lost data. No process reads or writes then until the stream is repaired.
- **No sequence of RAW, EVENTS and COMMANDS is ever used twice.** A normalizer repairs a stream: it
  fills the stream beyond all sequences that can have existed, and deletes the fillers. So a
  remembered sequence names either the message that it always named, or nothing.

The losses are kept in KV `checkpoints`, too (`lost.<stream>`), for processes that start later.
"""

from __future__ import annotations

import asyncio
import contextvars
import logging
from collections.abc import Callable, Iterable
from dataclasses import asdict
from datetime import datetime, timedelta
from typing import Any

import orjson

from penstock.bus import messages, streams
from penstock.bus.errors import BusError
from penstock.bus.read import leader
from penstock.bus.state.kv import Buckets
from penstock.bus.state.losses import BUCKET, LOST, MARGIN, MARKS, NUMBERED, WATCHED, Loss, Snapshot
from penstock.bus.state.skipping import ends_at, skip

log = logging.getLogger(__name__)

AGAIN_S = 0.2  # between the two looks that a stream needs before it counts as shorter
ANSWER_S = 0.5  # for an answer; a stream without a leader is looked at the next time
NOTICED = timedelta(hours=1)  # how long /readyz reports a loss
MAX_KEPT = 50  # losses of a stream

_NOTICE = (
    "NATS has lost data: {}. Runs whose source frames are gone end with code history_lost, "
    "cursors of lost events get 410; events whose source frames are left are made again. If NATS "
    "lost power, `sync_interval: always` in its configuration prevents this (shared/penstock/bus, "
    "Power)"
)
_WAITS = (
    "NATS has lost the end of {}: nothing is sent or read until a normalizer has repaired that, "
    "which takes some seconds. Is a normalizer running?"
)


class Continuity:
    """What one process knows of the ends of the streams. With `repairs`, it repairs them, too."""

    def __init__(self, bus: Buckets, *, repairs: bool) -> None:
        self._bus = bus
        self._repairs = repairs
        self._known: dict[str, int] = {}  # the highest sequence that was read, by stream
        self._losses: dict[str, tuple[Loss, ...]] = {}
        self._looked: Snapshot | None = None  # of the last check that found all streams complete
        self._found: dict[str, Loss] = {}  # losses that this process found, and has logged
        self._begun = False  # losses that are known at the start are not reported
        self._callbacks: set[Callable[[Loss], None]] = set()
        self._context = contextvars.copy_context()

    def knows(self, stream: str, sequence: int) -> None:
        """This sequence was read. (Sequences acknowledged to this process are known anyway.)"""
        if sequence > self._known.get(stream, 0):
            self._known[stream] = sequence

    def on_loss(self, callback: Callable[[Loss], None]) -> Callable[[], None]:
        """Call back for each new loss, once its stream is repaired.

        Returns a function that ends this.
        """
        self._callbacks.add(callback)
        return lambda: self._callbacks.discard(callback)

    def of(self, stream: str) -> tuple[Loss, ...]:
        """All known losses of a stream, the oldest first."""
        return self._losses.get(stream, ())

    @property
    def all(self) -> tuple[Loss, ...]:
        """All known losses."""
        return tuple(loss for losses in self._losses.values() for loss in losses)

    def covers(self, stream: str, sequence: int) -> Loss | None:
        """The loss in which the message of this sequence was lost; None without one."""
        return next((loss for loss in self.of(stream) if loss.covers(sequence)), None)

    def count(self, stream: str) -> int:
        """How many messages of the stream are known to be lost, over all losses."""
        return sum(loss.known - loss.stands for loss in self.of(stream))

    @property
    def notices(self) -> list[str]:
        """The losses of the last hour, and what to do about them, in words for people."""
        since = self._bus.clock.now() - NOTICED
        return [
            _NOTICE.format(loss)
            for loss in self.all
            if datetime.fromisoformat(loss.found_at) > since
        ]

    async def check(self) -> str:
        """Compare the streams with what is known, and repair them if this process repairs.

        Returns why no work may be done yet; empty while every stream is complete.

        Raises:
            BusError: the bucket `checkpoints` cannot be read or written.
        """
        look = await self._look()
        behind = look.behind
        if behind:
            # A leader that was just elected may not have applied all of its messages yet.
            await asyncio.sleep(AGAIN_S)
            before, look = look, await self._look()
            behind = look.behind
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
                look = await self._look()
                behind = look.behind
        self._learn(look)
        self._looked = None if behind else look
        waiting = [name for name in behind if name in NUMBERED]
        return _WAITS.format(", ".join(sorted(waiting))) if waiting else ""

    async def note(self) -> None:
        """Record the ends of the streams as the last check found them.

        Raises:
            BusError: the bucket `checkpoints` cannot be written.
        """
        look, self._looked = self._looked, None
        if look is not None and (marks := look.new_marks()) is not look.marks:
            # A conflict needs no retry: the process that wrote first has seen as much.
            await self._bus.bucket(BUCKET).update(MARKS, orjson.dumps(marks), look.revision)

    def _own(self, stream: str) -> int:
        """The highest sequence of the stream that this process knows to have existed."""
        return max(self._known.get(stream, 0), self._bus.publisher.stored.get(stream, 0))

    async def _look(self) -> Snapshot:
        # First what is known, then the streams: other processes write meanwhile.
        look = Snapshot(own={stream: self._own(stream) for stream in NUMBERED})
        for entry in await self._bus.bucket(BUCKET).entries():
            look.take(entry)
        if self._repairs:
            await self._ask_events(look)
        watched = WATCHED if self._repairs else NUMBERED
        answers = await asyncio.gather(*map(self._state, watched))
        for stream, answer in zip(watched, answers, strict=True):
            if answer is not None:
                look.last[stream] = answer["state"]["last_seq"]
                look.now = max(look.now, answer["ts"])
        # The losses once more: another process may have repaired a stream meanwhile.
        for entry in await self._bus.bucket(BUCKET).entries(f"{LOST}*"):
            look.take(entry)
        return look

    async def _state(self, stream: str) -> dict[str, Any] | None:
        try:
            return await self._bus.jetstream.api(f"STREAM.INFO.{stream}", timeout_s=ANSWER_S)
        except BusError as error:
            log.debug("%s: %s", stream, error)
            return None

    async def _ask_events(self, look: Snapshot) -> None:
        """The last event names the source frame that it was made from."""
        try:
            last = await leader.tail(self._bus, streams.EVENTS, ">")
        except BusError as error:
            log.debug("the last event: %s", error)
            return
        if last is not None and (position := last.headers.get(messages.RAW_POSITION)):
            look.mark(streams.RAW, int(position))

    def _learn(self, look: Snapshot) -> None:
        """Take in the losses of streams that are repaired."""
        loop = asyncio.get_running_loop()
        for stream, losses in look.losses.items():
            last = look.last.get(stream, 0)
            settled = [loss for loss in losses if stream not in NUMBERED or loss.skipped_to <= last]
            news = [loss for loss in settled if loss not in self.of(stream)]
            if not news:
                continue
            self._losses[stream] = (*self.of(stream), *news)
            for loss in news:
                if self._begun and loss != self._found.pop(stream, None):
                    log.error("%s", _NOTICE.format(loss))
                for callback in tuple(self._callbacks) if self._begun else ():
                    # In the context of the start, so that the callback's own requests are held
                    # back like all others (see `nats_client.PASSES`).
                    loop.call_soon(callback, loss, context=self._context.copy())
        self._begun = True

    async def _raise_marks(self, look: Snapshot, behind: Iterable[str]) -> None:
        """Tell the repairing process, by the marks, that this one knows later sequences."""
        more = {
            stream: known
            for stream in behind
            if stream in NUMBERED and (known := self._own(stream)) > look.marks.get(stream, 0)
        }
        if more:
            value = orjson.dumps({**look.marks, **more})
            await self._bus.bucket(BUCKET).update(MARKS, value, look.revision)

    async def _repair(self, look: Snapshot, stream: str, known: int) -> None:
        """Record the loss first; then make its sequences unusable."""
        stands = look.last[stream]
        losses = look.losses.setdefault(stream, [])
        begun = losses and stands < losses[-1].skipped_to and known <= losses[-1].skipped_to
        if not begun:
            to = known + MARGIN[stream] if stream in NUMBERED else stands
            if stream in NUMBERED and not await ends_at(self._bus, stream, stands):
                return
            losses.append(Loss(stream, stands, known, to, look.now))
            log.error("%s", _NOTICE.format(losses[-1]))
            self._found[stream] = losses[-1]
            value = orjson.dumps([asdict(loss) for loss in losses[-MAX_KEPT:]])
            revision = look.revisions.get(stream, 0)
            if await self._bus.bucket(BUCKET).update(LOST + stream, value, revision) is None:
                return  # another process repairs the stream
        if stream in NUMBERED:
            await skip(self._bus, stream, stands, losses[-1].skipped_to)
        else:
            look.marks[stream] = stands
            await self._bus.bucket(BUCKET).put(MARKS, orjson.dumps(look.marks))
