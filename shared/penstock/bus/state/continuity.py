"""Has a stream lost its end? A broker that comes back may hold an older store than the one it had.

A power cut loses what was acknowledged and not yet on the disk; a volume may be put back from a
backup. Everything that remembers a stream sequence is wrong then: a reader waits behind the
stream's end, a fence expects what is gone, a cursor points at what another run writes next. So two
rules hold:

- The last sequence of each stream is noted in KV `checkpoints` every two seconds (`marks`), and
  every process remembers the last one that was acknowledged to it. A stream that ends before either
  has lost data. Nobody reads or writes then until it is put in order.
- **No sequence of RAW, EVENTS and COMMANDS is ever used twice.** Who puts a stream in order (a
  normalizer) fills it beyond all that anybody can have seen, and deletes what it filled it with. So
  a remembered sequence names either the message that it always named, or nothing.

What was lost is kept in KV `checkpoints` too (`lost.<stream>`), so that whoever starts later knows.
"""

from __future__ import annotations

import asyncio
import contextvars
import logging
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass, field
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any

import orjson

from penstock.bus import messages, streams, subjects
from penstock.bus.errors import BusError, FenceConflict
from penstock.bus.write.publisher import MAX_BATCH, Message

if TYPE_CHECKING:
    from penstock.bus.bus import Bus
    from penstock.bus.state.kv import Entry

log = logging.getLogger(__name__)

BUCKET = "checkpoints"
MARKS, LOST = "marks", "lost."
# How many sequences beyond the last one known are not used: as many as may have been stored since
# the last note was written.
MARGIN = {streams.RAW: 10_000, streams.EVENTS: 10_000, streams.COMMANDS: 200}
NUMBERED = tuple(MARGIN)
WATCHED = (
    *NUMBERED,
    *("KV_runs", "KV_sessions", "KV_claims", "KV_sent", "KV_pauses", "KV_approvals"),
)
AGAIN_S = 0.2  # before a stream counts as shorter it is looked at once more
ANSWER_S = 0.5  # a stream that has no leader now is looked at the next time
NOTICED = timedelta(hours=1)  # how long /readyz speaks of a loss
MAX_KEPT = 50  # losses of a stream

EXPECTED_LAST = "Nats-Expected-Last-Sequence"
# What a stream is filled with: the run id is none, so that nobody takes it for a run's.
NOBODY = "skipped"
_FILLERS = {
    streams.RAW: (subjects.raw(NOBODY, "penstock"), subjects.raw_stored(NOBODY, "penstock")),
    streams.EVENTS: (subjects.event("system.skipped", NOBODY),) * 2,
    streams.COMMANDS: (subjects.command("penstock", "skipped", NOBODY),) * 2,
}


@dataclass(frozen=True, slots=True)
class Loss:
    """The end of a stream that was lost, by stream sequences."""

    stream: str
    stands: int  # the last message that was left
    known: int  # the last one that anybody knew of
    skipped_to: int  # none of the sequences after `stands` up to this one is ever used (again)
    found_at: str  # RFC 3339, by the server's clock

    def covers(self, sequence: int) -> bool:
        """Whether what had this sequence is lost."""
        return self.stands < sequence <= max(self.known, self.skipped_to)

    def __str__(self) -> str:
        return (
            f"{self.stream} came back with the messages up to {self.stands} only, of at least "
            f"{self.known} (found at {self.found_at[:19]}Z)"
        )


@dataclass
class _Look:
    """What the server and KV say at one moment, and what this process knew before it asked."""

    own: dict[str, int]
    last: dict[str, int] = field(default_factory=dict)  # by stream; without those that are silent
    now: str = ""
    marks: dict[str, int] = field(default_factory=dict)
    revision: int = 0  # of the marks
    losses: dict[str, list[Loss]] = field(default_factory=dict)
    revisions: dict[str, int] = field(default_factory=dict)  # of each list of losses


class Continuity:
    """What one process knows of the streams' ends. `repairs`: it puts them in order, too."""

    def __init__(self, bus: Bus, *, repairs: bool) -> None:
        self._bus = bus
        self._repairs = repairs
        self._known: dict[str, int] = {}
        self._losses: dict[str, tuple[Loss, ...]] = {}
        self._looked: _Look | None = None
        self._found: dict[str, Loss] = {}  # by us, and said
        self._begun = False  # what is found at the start is nobody's news
        self._callbacks: set[Callable[[Loss], None]] = set()
        self._context = contextvars.copy_context()

    def knows(self, stream: str, sequence: int) -> None:
        """That sequence was read. (What was acknowledged to us is known anyway.)"""
        if sequence > self._known.get(stream, 0):
            self._known[stream] = sequence

    def on_loss(self, callback: Callable[[Loss], None]) -> Callable[[], None]:
        """Call back for each loss that is learned of, once it is put in order; returns the end."""
        self._callbacks.add(callback)
        return lambda: self._callbacks.discard(callback)

    def of(self, stream: str) -> tuple[Loss, ...]:
        """All known losses of a stream, the oldest first."""
        return self._losses.get(stream, ())

    @property
    def all(self) -> tuple[Loss, ...]:
        """Every known loss."""
        return tuple(loss for losses in self._losses.values() for loss in losses)

    def covers(self, stream: str, sequence: int) -> Loss | None:
        """The loss in which that message of the stream went, if it did."""
        return next((loss for loss in self.of(stream) if loss.covers(sequence)), None)

    def count(self, stream: str) -> int:
        """How many messages of the stream are known to be lost, all losses together."""
        return sum(loss.known - loss.stands for loss in self.of(stream))

    @property
    def notices(self) -> list[str]:
        """What was lost of late, and what to do about it, in words for people."""
        since = self._bus.clock.now() - NOTICED
        return [
            _NOTICE.format(loss)
            for loss in self.all
            if datetime.fromisoformat(loss.found_at) > since
        ]

    async def check(self) -> str:
        """Look once; put in order what is not. Returns why nothing may be done yet, else nothing.

        Raises BusError where the notes cannot be read or written.
        """
        look = await self._look()
        behind = self._behind(look)
        if behind:
            # a leader that was just elected may not have taken in all that it has
            await asyncio.sleep(AGAIN_S)
            before, look = look, await self._look()
            behind = self._behind(look)
            still = {
                stream: known
                for stream, known in behind.items()
                if look.last[stream] == before.last.get(stream)
            }
            if not self._repairs:
                await self._raise_marks(look, still)
            elif still:
                for stream, known in sorted(still.items()):
                    await self._put_in_order(look, stream, known)
                look = await self._look()
                behind = self._behind(look)
        self._learn(look)
        self._looked = None if behind else look
        waiting = [name for name in behind if name in NUMBERED]
        return _WAITS.format(", ".join(sorted(waiting))) if waiting else ""

    async def note(self) -> None:
        """Write down how far the streams reached at the last check. Raises BusError."""
        look, self._looked = self._looked, None
        if look is not None:
            await self._note(look)

    def _behind(self, look: _Look) -> dict[str, int]:
        """The streams that end before what is known of them, and what is."""
        return {
            stream: known
            for stream, last in look.last.items()
            if (known := self._known_of(stream, look)) > last
        }

    def _known_of(self, stream: str, look: _Look) -> int:
        known = look.marks.get(stream, 0)
        if stream in NUMBERED:
            known = max(known, look.own[stream])
            # one who died while it put the stream in order
            known = max(known, *(loss.skipped_to for loss in look.losses.get(stream, ())), 0)
        return known

    def _own(self, stream: str) -> int:
        """The last sequence of the stream that this process knows was there."""
        return max(self._known.get(stream, 0), self._bus.publisher.stored.get(stream, 0))

    async def _look(self) -> _Look:
        # what is known first, what there is afterwards: others write meanwhile
        look = _Look(own={stream: self._own(stream) for stream in NUMBERED})
        entries = await self._bus.bucket(BUCKET).entries()
        for entry in entries:
            _read(entry, look)
        if self._repairs:
            await self._ask_events(look)
        watched = WATCHED if self._repairs else NUMBERED
        answers = await asyncio.gather(*map(self._state, watched))
        for stream, answer in zip(watched, answers, strict=True):
            if answer is not None:
                look.last[stream] = answer["state"]["last_seq"]
                look.now = max(look.now, answer["ts"])
        # and again what was lost: another one may be putting a stream in order meanwhile
        for entry in await self._bus.bucket(BUCKET).entries(f"{LOST}*"):
            _read(entry, look)
        return look

    async def _state(self, stream: str) -> dict[str, Any] | None:
        try:
            return await self._bus.api(f"STREAM.INFO.{stream}", timeout_s=ANSWER_S)
        except BusError as error:
            log.debug("%s: %s", stream, error)
            return None

    async def _ask_events(self, look: _Look) -> None:
        """An event names the source frame that it was made of."""
        try:
            last = await self._bus.tail(streams.EVENTS, ">")
        except BusError as error:
            log.debug("the last event: %s", error)
            return
        if last is not None and (position := last.headers.get(messages.RAW_POSITION)):
            look.marks[streams.RAW] = max(look.marks.get(streams.RAW, 0), int(position))

    def _learn(self, look: _Look) -> None:
        """Take in the losses of streams that are in order by now."""
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
                    # what it begins may be held back like everything else
                    loop.call_soon(callback, loss, context=self._context.copy())
        self._begun = True

    async def _note(self, look: _Look) -> None:
        """Write down how far the streams reach."""
        marks = {
            stream: max(last, look.marks.get(stream, 0)) if stream in NUMBERED else last
            for stream, last in look.last.items()
        }
        if any(look.marks.get(stream) != last for stream, last in marks.items()):
            value = orjson.dumps({**look.marks, **marks})
            # whoever was first has seen as much
            await self._bus.bucket(BUCKET).update(MARKS, value, look.revision)

    async def _raise_marks(self, look: _Look, behind: Iterable[str]) -> None:
        """Tell whoever puts streams in order that we know of more than is there."""
        more = {
            stream: known
            for stream in behind
            if stream in NUMBERED and (known := self._own(stream)) > look.marks.get(stream, 0)
        }
        if more:
            value = orjson.dumps({**look.marks, **more})
            await self._bus.bucket(BUCKET).update(MARKS, value, look.revision)

    async def _put_in_order(self, look: _Look, stream: str, known: int) -> None:
        """Write down what was lost; then see to it that none of its sequences is used again."""
        stands = look.last[stream]
        losses = look.losses.setdefault(stream, [])
        begun = losses and stands < losses[-1].skipped_to and known <= losses[-1].skipped_to
        if not begun:
            to = known + MARGIN[stream] if stream in NUMBERED else stands
            if stream in NUMBERED and not await self._ends_at(stream, stands):
                return
            losses.append(Loss(stream, stands, known, to, look.now))
            log.error("%s", _NOTICE.format(losses[-1]))
            self._found[stream] = losses[-1]
            value = orjson.dumps([asdict(loss) for loss in losses[-MAX_KEPT:]])
            revision = look.revisions.get(stream, 0)
            if await self._bus.bucket(BUCKET).update(LOST + stream, value, revision) is None:
                return  # another one is at it
        if stream in NUMBERED:
            await self._skip(stream, stands, losses[-1].skipped_to)
        else:
            look.marks[stream] = stands
            await self._bus.bucket(BUCKET).put(MARKS, orjson.dumps(look.marks))

    async def _ends_at(self, stream: str, stands: int) -> bool:
        """Whether the stream ends there, as whoever leads it says: it takes the first filler."""
        subject, _ = _FILLERS[stream]
        try:
            expected = {EXPECTED_LAST: str(stands)}
            await self._bus.publisher.publish(Message(subject, b"", expected))
        except FenceConflict:
            return False
        return True

    async def _skip(self, stream: str, last: int, to: int) -> None:
        subject, stored = _FILLERS[stream]
        publisher = self._bus.publisher
        while last < to:
            batch = [Message(subject, b"", {}) for _ in range(min(MAX_BATCH, to - last))]
            if len(batch) == 1 or stream == streams.COMMANDS:  # which takes no batches
                last = max(await asyncio.gather(*map(publisher.publish, batch)))
            else:
                last = await publisher.publish_batch(batch)
        await self._bus.api(f"STREAM.PURGE.{stream}", {"filter": stored})


def _read(entry: Entry, look: _Look) -> None:
    if entry.key == MARKS:
        for stream, last in orjson.loads(entry.value).items():
            look.marks[stream] = max(look.marks.get(stream, 0), last)
        look.revision = entry.revision
    elif entry.key.startswith(LOST):
        stream = entry.key.removeprefix(LOST)
        look.losses[stream] = [Loss(**each) for each in orjson.loads(entry.value)]
        look.revisions[stream] = entry.revision
    elif entry.key.startswith("normalizer.") and entry.value.isdigit():
        # how far a partition of RAW is done
        look.marks[streams.RAW] = max(look.marks.get(streams.RAW, 0), int(entry.value))


_NOTICE = (
    "NATS has lost data: {}. Runs of which source frames are gone end with code history_lost, "
    "cursors of lost events get 410; what can be made again is made again. If it had lost power, "
    "`sync_interval: always` in its configuration prevents that (shared/penstock/bus, Power)"
)
_WAITS = (
    "NATS has lost the end of {}: nothing is sent or read until a normalizer has put that in "
    "order, which takes some seconds. Is one running?"
)
