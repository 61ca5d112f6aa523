"""One client of a hub: a place in its ring, or in the stream itself while it catches up."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass
from typing import TYPE_CHECKING

from penstock.bus import BusError, Stored
from penstock.telemetry import DELIVERED, SLOW_CLIENTS
from penstock.web.auth import Identity
from penstock.web.read_turns import ReadTurns, Turn
from penstock_edge.settings import EdgeSettings
from penstock_edge.sources.history import Past
from penstock_edge.sources.locate import Place
from penstock_edge.stream.direct_write import Direct, http_chunk
from penstock_edge.stream.open_streams import Departure, retry_ms
from penstock_edge.views.cursor import LAST_FRAME, Cursor
from penstock_edge.views.items import Encoding, Item

if TYPE_CHECKING:
    from penstock_edge.stream.hub import Hub

log = logging.getLogger(__name__)

LAG_RETRY_S = 0.05
UNAVAILABLE_RETRY_S = 0.5
LAG_TRIES = 40
PIECE_BYTES = 256 * 1024  # of the past in one write, or one message

_TAKEN_NOTHING = Cursor(0, 0)


@dataclass(slots=True)
class Chunk:
    """Items that go out in one write. `end` is the ring's position after them."""

    body: bytes
    end: int
    items: tuple[Item, ...]
    _framed: bytes = b""

    @property
    def framed(self) -> bytes:
        """The body as an HTTP chunk, made once for all who are given it."""
        if not self._framed:
            self._framed = http_chunk(self.body)
        return self._framed


class Client:
    """Gives the bytes of one client's stream, in order; never waits for another client."""

    def __init__(
        self, hub: Hub, place: Place, on_leave: Callable[[Client], None], turns: ReadTurns
    ) -> None:
        self.hub = hub
        self._turns = turns
        self._turn: Turn = nullcontext
        self.dropped = False
        self.expired = False
        self.departure: Departure | None = None
        self.resumable = False  # until the response says that it is
        self.task: asyncio.Task[None] | None = None  # whose write is cancelled by a drop
        self.direct: Direct | None = None  # once the head is sent, where the server allows it
        self._writing_since: float | None = None
        self._on_leave = on_leave
        self._after: Cursor | None = place.after
        self._preface = (
            hub.view.notice("history_truncated", "earlier events are no longer kept")
            if place.truncated
            else b""
        )
        self._live_after = place.live_after  # the last of the replay, until that was told
        self._end_after: int | None = None
        if self._live_after is not None and self._live_after < place.start:
            self._preface += self._told_live()
        self._start = place.start
        self._at: int | None = None  # position in the ring; None while reading the past
        self._next = place.start  # in the stream
        self._past: Past | None = None
        self._read: list[Stored] = []  # of the past, and not encoded yet; the next is the last
        self._encoding: Encoding | None = None  # of the past
        self._replayed: Stored | None = None
        self._lags = 0
        self._last_given = False
        self._gone = False
        self._wake = asyncio.Event()
        self._idle = False  # at the ring's end, with nothing to write
        self._wrote_at = asyncio.get_running_loop().time()
        self._beat_due = False
        self._warnings = b""
        self._offset = 0
        self._count = DELIVERED.labels(hub.view.dialect).inc

    def read_for(self, who: Identity) -> None:
        """The past is read in this caller's turns."""
        self._turn = self._turns.named(who)

    async def take(self) -> bytes | None:
        """What is to be written next; None when the stream is over."""
        while not (self._gone or self.finished):
            if self.expired or self.departure:
                self._gone = True
                return self._farewell() or None
            if words := self._words():
                return words
            if self._at is not None and self._at < self.hub.base:
                self._fall_behind()
            if self._at is None:
                if body := await self._replay():
                    return body
            elif chunk := self.hub.chunk(self._at):
                self._pass(chunk)
                if body := self._rest(chunk.items, chunk.body):
                    return body
            elif self.hub.closed:
                return None
            else:
                self._idle = True
                await self._wake.wait()
                self._idle = False
                self._wake.clear()
        return None

    def _words(self) -> bytes:
        """What the edge itself has to say here."""
        if self._preface:
            preface, self._preface = self._preface, b""
            return preface
        if self._warnings:
            warnings, self._warnings = self._warnings, b""
            return warnings
        if self._beat_due:
            self._beat_due = False
            return self.hub.view.form.keep_alive
        if self._live_after is None or self._at is None or self.hub.chunk(self._at):
            return b""
        # the end of the replay may be a message that is not among what this client is given
        return self._told_live() if self.hub.floor > self._live_after else b""

    @property
    def finished(self) -> bool:
        """True when all that it was to be given has been."""
        return self._last_given or (self._end_after is not None and self._next > self._end_after)

    def end_after(self, sequence: int) -> None:
        """The stream ends once the message of this stream sequence, if it comes, was given."""
        self._end_after = sequence
        self._wake.set()

    def wake(self) -> int:
        """There may be something to take; returns how many items were written at once."""
        written = self._write_directly() if self._idle and self.direct else 0
        if not written:
            self._wake.set()
        return written

    def _write_directly(self) -> int:
        at = self._at
        chunk = self.hub.chunk(at) if at is not None and at >= self.hub.base else None
        if (
            chunk is None
            or not chunk.body
            or chunk.items[-1].last
            or self._after is not None
            or self._live_after is not None
            or self._end_after is not None
            or self._wake.is_set()
            or self.direct is None
            or not self.direct.write(chunk.framed)
        ):
            return 0
        self._pass(chunk)
        self.wrote()
        if self.hub.chunk(chunk.end):
            self._wake.set()
        return len(chunk.items)

    def _pass(self, chunk: Chunk) -> None:
        self._at = chunk.end
        self._offset = chunk.items[-1].offset
        self._next = chunk.items[-1].sequence + 1

    def expire(self) -> None:
        """Whoever reads may not do so any more: the stream ends here."""
        self.expired = True
        self._wake.set()

    def warn(self, code: str, message: str) -> None:
        """Something of the edge's own that the client is told between two events."""
        self._warnings += self.hub.view.notice(code, message)
        self._wake.set()

    def depart(self, why: Departure) -> None:
        """The stream ends here; its client may come back at once."""
        self.departure = why
        self._wake.set()

    def _farewell(self) -> bytes:
        """What must be said of an early end: when to come back, or that it is not the whole."""
        if self.departure:
            return self.hub.view.form.come_back(retry_ms())
        return self.last_words()

    def last_words(self) -> bytes:
        """What tells those who could take an early end for the whole."""
        words = b"".join(self.hub.view.encoding().cut())
        # wherever the last write ended: an empty line between frames is nothing
        return words and b"\n\n" + words

    def leave(self) -> None:
        """The client is gone; its stream is over."""
        self._gone = True
        self._wake.set()
        self._on_leave(self)

    def begin_write(self) -> None:
        """A write is handed to the connection, which may not take it at once."""
        self._writing_since = asyncio.get_running_loop().time()

    def wrote(self) -> None:
        """A write was taken by the connection."""
        self._writing_since = None
        self._wrote_at = asyncio.get_running_loop().time()

    def beat(self, period_s: float, settings: EdgeSettings) -> None:
        """Called at intervals: ask for a keep-alive after two silent ones, drop the slow.

        Slow is whose one write hangs for a whole interval, with more than `max_pending_bytes`
        behind it, or for `write_timeout_s`.
        """
        view = self.hub.view
        kept_alive = view.droppable if view.kept_alive is None else view.kept_alive
        now = asyncio.get_running_loop().time()
        if self._writing_since is not None:
            hangs_s = now - self._writing_since
            behind = view.droppable and self._pending_bytes > settings.max_pending_bytes
            if hangs_s >= settings.write_timeout_s or (behind and hangs_s >= period_s):
                self._drop(hangs_s)
        elif kept_alive and view.form.keep_alive and now - self._wrote_at >= 2 * period_s:
            self._beat_due = True
            self._wake.set()

    @property
    def _pending_bytes(self) -> int:
        # whoever reads the past does so at its own pace
        return 0 if self._at is None else self.hub.delivered_bytes - self._offset

    def _drop(self, hangs_s: float) -> None:
        if not self.dropped and self.task is not None:
            self.dropped = True
            log.warning(
                "%s: a client is dropped: it has taken nothing for %.1f s, with %d bytes pending",
                *(" ".join(self.hub.view.key), hangs_s, self._pending_bytes),
            )
            SLOW_CLIENTS.inc()
            self.task.cancel()

    def _rest(self, items: tuple[Item, ...], body: bytes) -> bytes:
        """The part of these items that this client does not have."""
        self._last_given = items[-1].last
        self._count(len(items))
        after, live_after = self._after, self._live_after
        if after is None and live_after is None:
            return body
        if after is not None and items[-1].sequence > after.sequence:
            self._after = None
        pieces = []
        for item in items:
            if live_after is not None and item.sequence > live_after:
                pieces.append(self._told_live())
                live_after = None
            pieces.append(item.body if after is None else item.after(after))
        if live_after == items[-1].sequence:
            pieces.append(self._told_live())
        return b"".join(pieces)

    def _told_live(self) -> bytes:
        self._live_after = None
        return self.hub.view.form.live_marker

    def _fall_behind(self) -> None:
        """The ring has moved on: what was missed is read from the stream."""
        self._at = None
        if self.hub.view.stateful:
            # all of it again, but only what follows is written
            self._after = max(self._after or _TAKEN_NOTHING, Cursor(self._next - 1, LAST_FRAME))
            self._next = self._start

    def _enter(self) -> None:
        self._at = self.hub.position(self._next)
        self._past = self._encoding = self._replayed = None
        self._lags = 0

    async def _replay(self) -> bytes:
        """A batch from the stream itself; or, where the ring is reached, nothing."""
        hub = self.hub
        if self._encoding is None:
            if self._next >= hub.floor:
                self._enter()
                return b""
            self._encoding = hub.view.encoding()
        if not self._read and not await self._read_on():
            return b""
        if self._read:
            return await self._encoded()
        if self._lags < LAG_TRIES and not hub.joins(self._replayed):
            self._lags += 1
            self._past = None  # to be asked again
            await asyncio.sleep(LAG_RETRY_S)
            return b""
        if self._lags == LAG_TRIES:
            self._preface = hub.view.notice("history_truncated", "some events are not kept")
        self._enter()
        return b""

    async def _read_on(self) -> bool:
        """Read the next of the past, if there is more; False where that has to be asked again."""
        hub = self.hub
        if self._past is None:
            self._past = hub.past(self._next, self._turn)
        try:
            step = await self._past.step(hub.floor)
        except BusError as error:
            log.warning("reading %s: %s", " ".join(hub.view.key), error)
            await asyncio.sleep(UNAVAILABLE_RETRY_S)
            return False
        self._read = step.given[::-1]
        # where nothing of a step is for this client, it is seen whether the client is still there
        return step.is_last or bool(step.given)

    async def _encoded(self) -> bytes:
        """Some of what was read: a client that does not read must not hold much more."""
        assert self._encoding is not None
        self._lags = 0
        items: list[Item] = []
        size_bytes = 0
        while self._read and size_bytes < PIECE_BYTES:
            self._replayed = self._read.pop()
            items.append(await self.hub.encode(self._encoding, self._replayed))
            size_bytes += len(items[-1].body)
        self._next = items[-1].sequence + 1
        return self._rest(tuple(items), b"".join([item.body for item in items]))
