"""The runs of a partition at work: each folds and publishes in order, many side by side.

Acknowledged after publication: a frame is done when its events are in EVENTS. Whoever comes later
(a successor, or a zombie) folds the same frames to the same events; the fence lets each in once.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field

import orjson

from penstock import telemetry
from penstock.bus import (
    Bus,
    BusError,
    BusUnavailable,
    FenceConflict,
    Message,
    MessageTooLarge,
    OutcomeUnknown,
    Stored,
    StreamFull,
    messages,
    streams,
    subjects,
)
from penstock.bus.budget import Budget
from penstock.bus.messages import RawFrame, raw_frame
from penstock.bus.records import ENDED
from penstock.bus.write import fence, objects
from penstock.bus.write.publisher import EXPECTED_SEQUENCE, MAX_BATCH
from penstock.events import TERMINAL
from penstock_normalizer.fold.run_fold import DecoderFor, Placed, RunFold
from penstock_normalizer.runs.backlog import Backlog, replay
from penstock_normalizer.runs.blocked import Standing
from penstock_normalizer.runs.failed_frame import WRITER
from penstock_normalizer.runs.pauses import Pauses
from penstock_normalizer.runs.run_index import RunIndex

log = logging.getLogger(__name__)

# an atomic batch costs 4 to 7 ms whatever its size: below this, one by one is faster
BATCH_FROM = 50
# folded without a pause, in which no other run goes on: some 20 ms
MAX_READY = 500
MAX_READY_BYTES = 4 * 1024 * 1024
EARLY_WRITER = "edge"  # a cancel that nobody takes may come before the run is opened
UPSTREAM_KINDS = frozenset({"open", "bytes", "part", "end", "lost"})
FACTS = {"agent", "session_id", "user_id", "message"}
HISTORY_LOST = "source frames of this run were deleted by age or size before they were read"


GiveUp = Callable[[Stored, Exception], Awaitable[None]]


class StaleFold(BusError):
    """What is published does not fit what was folded: frames are missing in it."""


@dataclass(slots=True)
class Ready:
    """Events that are folded and not yet published, each with its frame's sequence in RAW."""

    events: list[tuple[Placed, int]] = field(default_factory=list)
    received: list[str] = field(default_factory=list)  # of the frames
    size_bytes: int = 0

    @property
    def is_full(self) -> bool:
        """True when it should be published before more is folded."""
        return len(self.events) >= MAX_READY or self.size_bytes >= MAX_READY_BYTES

    @property
    def asks(self) -> bool:
        """True when the last event is one that the run waits behind."""
        return bool(self.events) and self.events[-1][0].type == "approval.requested"

    def add(self, event: Placed, raw_sequence: int) -> None:
        """One more."""
        self.events.append((event, raw_sequence))
        self.size_bytes += len(event.body)

    def clear(self) -> None:
        """It is published."""
        self.events.clear()
        self.received.clear()
        self.size_bytes = 0


class Run:
    """One run's frames in order, to its events in order."""

    def __init__(
        self,
        bus: Bus,
        run_id: str,
        decoders: DecoderFor,
        max_frame_bytes: int,
        index: RunIndex,
        pauses: Pauses,
        budget: Budget,
        give_up: GiveUp,
        max_standing_s: float,
    ) -> None:
        self._bus = bus
        self._run_id = run_id
        self._decoders = decoders
        self._max_frame_bytes = max_frame_bytes
        self._index = index
        self._pauses = pauses
        self._give_up = give_up
        self._standing = Standing(max_standing_s)
        self._fold: RunFold | None = None
        self._last = 0  # stream sequence of the run's last event, which the next one's fence names
        self._first = 0  # of its first
        self._published = 0  # sequence of the last event that is in EVENTS
        self._last_type = ""  # its type
        self._position = 0  # the frame that it came from, by sequence in RAW
        self._raw_first = 0  # the run's first frame
        self._heard: dict[str, int] = {}  # the last frame of each writer that is in the fold
        self.backlog = Backlog(bus, run_id, budget)
        self.idle_since = time.monotonic()

    @property
    def has_ended(self) -> bool:
        """Whether only an epilogue can come."""
        return self._fold is not None and self._fold.ended is not None

    async def work(self) -> None:
        """Fold and publish until cancelled."""
        try:
            await self._work()
        finally:
            self._standing.over()

    async def _work(self) -> None:
        while True:
            if not self.backlog:
                self.idle_since = time.monotonic()
            first = await self.backlog.first()
            try:
                count = await self._advance()
            except Exception as error:
                self._fold = None
                if isinstance(error, BusError) and not isinstance(error, MessageTooLarge):
                    log.warning("run %s: once more, from the streams: %s", self._run_id, error)
                    await asyncio.sleep(fence.RETRY_S)
                else:
                    # say a record that cannot be read: to skip the frame would leave a gap for ever
                    await self._stand(first, error)
                continue
            self.backlog.done(count)
            self._standing.over()

    async def _stand(self, stored: Stored, error: Exception) -> None:
        """Wait for another try, longer each time; end the run when there were enough."""
        delay_s = self._standing.again()
        log.log(
            logging.ERROR if self._standing.is_new else logging.WARNING,
            "run %s: stands at RAW %d, again in %.0f s: %r",
            *(self._run_id, stored.sequence, delay_s, error),
            exc_info=error if self._standing.is_new else None,
        )
        if delay_s:
            await asyncio.sleep(delay_s)
            return
        await self._give_up(stored, error)
        text = f"the run cannot go on: {type(error).__name__}, see the dead letters"
        await self._end(stored, text)

    async def _advance(self) -> int:
        """Fold and publish what is there, a batch at the most; how many frames that were."""
        ready, count = Ready(), 0
        while not ready.is_full and not ready.asks and (stored := self.backlog.after(count)):
            if self._fold is not None and not self._follows(stored, self._fold):
                # another partition has it: one that the run was moved to, and back from
                await self._publish(self._fold, ready)
                self._fold = None
            count += 1
            try:
                frame = raw_frame(stored)
            except (KeyError, ValueError) as error:
                await self._give_up(stored, error)
                self._hear(stored)
                continue
            if stored is self.backlog.remnant:
                self._fold = await self._lost(frame)
            if self._fold is None:
                self._fold = await self._load(frame)
            await self._feed(self._fold, frame, stored, ready)
        if self._fold is not None:
            await self._publish(self._fold, ready)
        return count

    def _follows(self, stored: Stored, fold: RunFold) -> bool:
        """Whether the writer's frame before this one is in the fold: its fence names it."""
        if fold.broken_off:
            return True  # it needs none
        before = stored.headers.get(EXPECTED_SEQUENCE)
        return before is None or int(before) == self._heard.get(_writer(stored), 0)

    def _hear(self, stored: Stored) -> None:
        self._heard[_writer(stored)] = stored.sequence

    async def _feed(self, fold: RunFold, frame: RawFrame, stored: Stored, ready: Ready) -> None:
        fresh = False
        self._hear(stored)
        for event in fold.events(frame):
            if event.sequence <= self._published or frame.sequence < self._position:
                continue
            if ready.is_full:
                await self._publish(fold, ready)
            ready.add(event, frame.sequence)
            fresh = True
        if fold.error is not None:
            log.error(
                "run %s: RAW %d cannot be read", self._run_id, frame.sequence, exc_info=fold.error
            )
            await self._give_up(stored, fold.error)
        if fresh:
            ready.received.append(frame.received)
            if fold.approval_id is not None:
                await self._pauses.keep(fold)

    async def _load(self, frame: RawFrame) -> RunFold:
        """The fold as it stands before `frame`: fresh, replayed from RAW, or from the pause."""
        fold = RunFold(self._run_id, self._decoders, self._max_frame_bytes)
        self._heard.clear()
        if frame.opens_run and not self._first and not await self._was_spoken_of(frame):
            return fold  # the run begins; if it is a repeat, the fence tells
        await self._reload_tail()
        await self._show()
        begun = frame.opens_run
        async for earlier in replay(self._bus, self._run_id, self._raw_first, frame.sequence):
            self._hear(earlier)
            try:
                older, ready = raw_frame(earlier), Ready()
            except (KeyError, ValueError):
                continue  # it is among the dead letters
            if not begun and not older.opens_run:
                await self._pauses.restore(fold)  # the beginning has aged out
            begun = True
            self._number_on(fold, older)
            await self._feed(fold, older, earlier, ready)
            await self._publish(fold, ready)
            await asyncio.sleep(0)  # nothing may be left to publish, and others wait
        if not begun:
            await self._pauses.restore(fold)
        self._number_on(fold, frame)
        if self._last_type in TERMINAL:
            fold.ended = self._last_type
        if not await self._is_whole(fold, frame):
            await self._break_off(fold, frame)
        return fold

    async def _show(self) -> None:
        """Bring the list of runs up to the events that are out.

        The list is told of a run's first events after they are published. Whoever published them
        may have failed, or lost the partition, before that; what is out is not published again,
        so nobody else would tell the list.
        """
        if self._first:
            pattern = subjects.event("lifecycle.*", self._run_id)
            if (last := await fence.tail(self._bus, streams.EVENTS, pattern)) is not None:
                await self._index.show(self._run_id, last)

    async def _was_spoken_of(self, frame: RawFrame) -> bool:
        """Whether something was said of the run before it was opened, as whoever read it knows."""
        pattern = subjects.raw_stored(self._run_id, EARLY_WRITER)
        early = await fence.tail(self._bus, streams.RAW, pattern)
        return early is not None and early.sequence < frame.sequence

    def _number_on(self, fold: RunFold, frame: RawFrame) -> None:
        # another version may have made more or fewer events of the same frames
        if self._published and self._position < frame.sequence:
            fold.sequence = self._published

    @property
    def _where(self) -> tuple[int, int]:
        """The frames of the run's first and last event, by sequence in RAW; 0 without events."""
        return self._raw_first, self._position

    async def _is_whole(self, fold: RunFold, frame: RawFrame) -> bool:
        """Whether the fold has every frame before this one; else some have aged, or are lost."""
        if any(self._bus.continuity.covers(streams.RAW, raw) for raw in self._where):
            return False
        if self._raw_first and (fold.raw_first or frame.sequence) != self._raw_first:
            return False
        if frame.kind in UPSTREAM_KINDS:
            return frame.leg <= fold.leg + ("open" in (frame.kind, frame.whole))
        if fold.leg:
            return True
        record = await self._index.record(self._run_id)
        return frame.writer != WRITER and (record is None or not record.sequence)

    async def _lost(self, frame: RawFrame) -> RunFold:
        """The fold of a run whose frames up to this one were deleted while they had to wait."""
        fold = RunFold(self._run_id, self._decoders, self._max_frame_bytes)
        await self._reload_tail()
        self._number_on(fold, frame)
        if self._last_type in TERMINAL:
            fold.ended = self._last_type
        await self._break_off(fold, frame)
        return fold

    async def _break_off(self, fold: RunFold, frame: RawFrame) -> None:
        """End a run that nobody can go on with; not one that has ended."""
        record = await self._index.record(self._run_id)
        if record is not None and record.status in ENDED and not await self._is_open():
            fold.ended = f"lifecycle.{record.status}"
        fold.raw_first = self._raw_first
        facts = record.model_dump(include=FACTS) if record is not None else {"agent": ""}
        why = {"code": "history_lost", "error": HISTORY_LOST}
        if frame.writer == WRITER and frame.payload:
            why |= orjson.loads(frame.payload)["data"]
        ready = Ready()
        for event in fold.break_off(frame, facts, **why):
            ready.add(event, frame.sequence)
        if ready.events and why["code"] == "history_lost":
            log.error(
                "run %s: frames before RAW %d have aged out or are lost, it is ended",
                *(self._run_id, frame.sequence),
            )
            telemetry.HISTORY_LOST.inc()
        # the list may know of events that are lost, and tell of another end
        await self._publish(fold, ready, overrule=True)

    async def _is_open(self) -> bool:
        """Whether EVENTS has the run, and no end of it: it was lost, or not published any more."""
        pattern = subjects.event("lifecycle.*", self._run_id)
        lifecycle = await fence.tail(self._bus, streams.EVENTS, pattern)
        return lifecycle is not None and lifecycle.headers["ce-type"] not in TERMINAL

    async def _end(self, stored: Stored, text: str) -> None:
        """End a run that has stood for too long, where that can be written; its frames go by."""
        while True:
            self._fold = RunFold(self._run_id, self._decoders, self._max_frame_bytes)
            self._fold.broken_off = True
            try:
                await self._fail(self._fold, stored, text)
                return
            except MessageTooLarge:
                log.exception("run %s: its end cannot be written", self._run_id)
                return
            except BusError as error:
                log.warning("run %s: its end is not written yet: %s", self._run_id, error)
                await asyncio.sleep(fence.RETRY_S)
            except Exception:
                log.exception("run %s: its end cannot be written", self._run_id)
                return

    async def _fail(self, fold: RunFold, stored: Stored, text: str) -> None:
        await self._reload_tail()
        if self._last_type in TERMINAL:
            fold.ended = self._last_type
            return
        try:
            record = await self._index.record(self._run_id)
        except ValueError:
            record = None
        facts = record.model_dump(include=FACTS) if record is not None else {"agent": ""}
        fold.sequence = max(self._published, record.sequence if record is not None else 0)
        fold.raw_first = self._raw_first
        ready = Ready()
        for event in fold.break_off(raw_frame(stored), facts, "internal", text):
            ready.add(event, max(stored.sequence, self._position))
        try:
            await self._publish(fold, ready)
        except ValueError:
            # it is the list of runs that cannot be read: whoever follows the run is told at least
            missing = [each for each in ready.events if each[0].sequence > self._published]
            await self._append(fold, missing)

    async def _publish(self, fold: RunFold, ready: Ready, *, overrule: bool = False) -> None:
        """Publish all of it, each event once; it is empty afterwards."""
        placed = [event for event, _ in ready.events]
        begun = bool(self._first)
        if any(event.type in TERMINAL for event in placed):
            await self._pauses.let_go(self._run_id)
        if begun:
            # before the events: who has seen a run's end finds it in the list of runs
            await self._index.follow(self._run_id, fold, placed, self._first, overrule=overrule)
        await self._append(fold, ready.events)
        if not begun:
            await self._index.follow(self._run_id, fold, placed, self._first, overrule=overrule)
        for received in ready.received:
            telemetry.FOLD_SECONDS.observe(max(0.0, self._bus.clock.age_s(received)))
        ready.clear()

    async def _append(self, fold: RunFold, events: list[tuple[Placed, int]]) -> None:
        """Into EVENTS, each once."""
        pattern = subjects.events_of_run(self._run_id)
        level = logging.WARNING
        waiting = events
        while waiting:
            # the first event of a run goes alone: the later ones carry its stream sequence
            size = 1 if len(waiting) < BATCH_FROM or not self._first else MAX_BATCH
            batch = waiting[:size]
            try:
                encoded = [await self._message(fold, event, raw) for event, raw in batch]
                self._last = await fence.append(self._bus, pattern, encoded, self._last)
            except (FenceConflict, OutcomeUnknown):
                # somebody published meanwhile, perhaps this very event: it would be the same
                telemetry.CONFLICTS.inc()
                await self._reload_tail()
                self._check_fit(waiting)
            except (BusUnavailable, StreamFull) as error:
                log.log(level, "run %s: EVENTS does not take events: %s", self._run_id, error)
                level = logging.DEBUG  # with a thousand runs, once is enough
                await asyncio.sleep(fence.RETRY_S)
                continue
            else:
                last, self._position = batch[-1]
                self._published, self._last_type = last.sequence, last.type
                self._first = self._first or self._last
                self._raw_first = fold.raw_first
                for event, _ in batch:
                    telemetry.EVENTS.labels(event.type).inc()
            waiting = [each for each in waiting if each[0].sequence > self._published]

    def _check_fit(self, waiting: list[tuple[Placed, int]]) -> None:
        """Numbers go up with frames: else one of the two folds has not seen them all."""
        for event, raw in waiting:
            is_out = event.sequence <= self._published
            if raw != self._position and is_out != (raw < self._position):
                raise StaleFold(f"event {event.sequence} is not of RAW {raw} in EVENTS")

    async def _reload_tail(self) -> None:
        tail = await fence.tail(self._bus, streams.EVENTS, subjects.events_of_run(self._run_id))
        if tail is None:
            self._last = 0  # all has aged out: the fence begins anew, the numbers do not
            return
        headers = tail.headers
        self._last = tail.sequence
        self._first = int(headers.get(messages.FIRST, 0)) or tail.sequence
        self._published = max(self._published, int(headers[messages.SEQUENCE]))
        self._position = int(headers[messages.RAW_POSITION])
        self._raw_first = int(headers[messages.RAW_FIRST])
        self._last_type = headers["ce-type"]

    async def _message(self, fold: RunFold, event: Placed, raw_sequence: int) -> Message:
        body = await objects.wrap(self._bus, f"{self._run_id}.{event.sequence}", event.body)
        headers = {
            messages.SEQUENCE: str(event.sequence),
            messages.RAW_POSITION: str(raw_sequence),
            messages.RAW_FIRST: str(fold.raw_first),
            "ce-specversion": "1.0",
            "ce-id": f"{self._run_id}.{event.sequence}",
            "ce-source": f"/penstock/{fold.facts['agent']}",
            "ce-type": event.type,
            "ce-time": event.timestamp,
            "ce-datacontenttype": "application/json",
        }
        if self._first:
            headers[messages.FIRST] = str(self._first)
        if "traceparent" in fold.facts:
            headers["traceparent"] = fold.facts["traceparent"]
        return Message(subjects.event(event.type, self._run_id), body, headers)


def _writer(stored: Stored) -> str:
    return stored.subject.rpartition(".")[2]
