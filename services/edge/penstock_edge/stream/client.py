"""A client of a hub takes items from the ring or from a replay, until the client's stream ends.

A client is in one of three phases:

- `Replay`: the client's position is before the ring, and the client reads the JetStream stream;
- `Live`: the client has a position in the hub's ring;
- None: the client's stream has ended.

A client begins with a replay. When the replay reaches the ring, the client becomes live. If the
ring then evicts items that the client does not have yet, the client replays again.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass
from enum import Enum
from typing import Final

from penstock.telemetry import DELIVERED, SLOW_CLIENTS
from penstock.web.auth import Identity
from penstock.web.read_scheduler import ReadScheduler, Turn
from penstock_edge.settings import EdgeSettings
from penstock_edge.sources.locate import StartPosition
from penstock_edge.stream.direct_write import Direct
from penstock_edge.stream.hub import Hub
from penstock_edge.stream.open_streams import ReconnectReason, retry_ms
from penstock_edge.stream.replay import Reached, Replay
from penstock_edge.stream.ring import Chunk
from penstock_edge.views.cursor import LAST_FRAME, Cursor
from penstock_edge.views.items import Item
from penstock_edge.views.positions import ByteOffset, RingPosition, StreamSequence
from penstock_edge.views.view import Delivery, ReadFrom

log = logging.getLogger(__name__)

_BEFORE_ALL: Final = Cursor(0, 0)


class End(Enum):
    """Why a client's stream has ended."""

    COMPLETE = "complete"  # the client has all items that the request asked for
    LEFT = "left"  # the client has closed the connection
    EXPIRED = "expired"  # the client's credential has expired or was revoked
    AGED = "aged"  # the stream was open for long enough; the client reconnects
    DRAINED = "drained"  # this edge shuts down; the client reconnects to another edge
    SLOW = "slow"  # the client does not read
    STOPPED = "stopped"  # the hub was stopped
    FAILED = "failed"  # the hub has failed


_MOVED: Final = {ReconnectReason.AGE: End.AGED, ReconnectReason.DRAIN: End.DRAINED}


@dataclass(slots=True)
class Live:
    """The phase in which a client takes items from the ring."""

    at: RingPosition
    taken_bytes: ByteOffset  # the number of bytes of all items before `at`
    idle: bool = False  # the client is at the ring's end, and has nothing to write


class Client:
    """Provides the bytes of one client's stream in order, and never waits for another client.

    Only one task, the response, may call `take`. Any task may call the other methods at any time.
    """

    def __init__(
        self,
        hub: Hub,
        start: StartPosition,
        on_leave: Callable[[Client], None],
        turns: ReadScheduler,
    ) -> None:
        self.hub = hub
        self.resumable = False  # the response sets True if the client knows its cursor
        self.task: asyncio.Task[None] | None = None  # is cancelled when the client is dropped
        self.direct: Direct | None = None  # is set after the head is sent, if uvicorn allows it
        self.end: End | None = None
        self._on_leave = on_leave
        self._turns = turns
        self._turn: Turn = nullcontext
        self._start = StreamSequence(start.start)
        self._phase: Replay | Live | None = Replay(hub, self._start)
        self._next = self._start  # one more than the sequence of the newest item that was taken
        self._after: Cursor | None = start.after  # frames up to this cursor are not written
        self._live_after: int | None = start.live_after  # None after the live marker is written
        self._end_after: int | None = None
        self._was_last = False  # whether the newest item that was taken ends the stream
        self._notices = b""
        self._keep_alive_due = False
        self._wake = asyncio.Event()
        self._writing_since: float | None = None
        self._wrote_at = asyncio.get_running_loop().time()
        self._count = DELIVERED.labels(hub.view.dialect).inc
        if start.truncated:
            self.warn("history_truncated", "earlier events are no longer kept")
        if self._live_after is not None and self._live_after < start.start:
            self._notices += self._live_marker()

    # Called by the response

    async def take(self) -> bytes | None:
        """Wait for the bytes to write next, and return them; None when the stream has ended."""
        while self._phase is not None:
            if self._is_complete():
                self._finish(End.COMPLETE)
            elif self.end is not None:
                self._phase = None
                return self._farewell() or None
            elif notice := self._notice():
                return notice
            elif body := await self._items(self._phase):
                return body
        return None

    def read_for(self, who: Identity) -> None:
        """Read the stream in the turns of this caller."""
        self._turn = self._turns.named(who)

    def begin_write(self) -> None:
        """Note that a write begins; the connection may not accept the bytes at once."""
        self._writing_since = asyncio.get_running_loop().time()

    def wrote(self) -> None:
        """Note that the connection has accepted the bytes of the write."""
        self._writing_since = None
        self._wrote_at = asyncio.get_running_loop().time()

    def interruption(self) -> bytes:
        """Return the frames that mark the stream as incomplete.

        The result is empty if the client can reconnect and continue.
        """
        frames = b"".join(self.hub.view.encoding().interruption())
        # The last write may have ended inside a frame. The empty line ends this frame; between two
        # frames, an empty line has no meaning.
        return frames and b"\n\n" + frames

    # Called by the hub, by `Hubs.maintain` and by the surfaces

    def wake(self) -> int:
        """Make the client look for new items; return the number of items written at once."""
        live = self._phase
        if isinstance(live, Live) and live.idle and self.direct is not None:
            written = self._write_at_once(live, self.direct)
            if written:
                return written
        self._wake.set()
        return 0

    def end_after(self, sequence: int) -> None:
        """End the stream after the message with this stream sequence.

        If this client does not get the message, the stream ends after the first later item.
        """
        self._end_after = sequence
        self._wake.set()

    def warn(self, code: str, message: str) -> None:
        """Write a notice of the edge to the client, between two events."""
        self._notices += self.hub.view.notice(code, message)
        self._wake.set()

    def expire(self) -> None:
        """End the stream, because the caller's credential is no longer valid."""
        self._end_with(End.EXPIRED)

    def ask_to_reconnect(self, reason: ReconnectReason) -> None:
        """End the stream, and ask the client to reconnect."""
        self._end_with(_MOVED[reason])

    def leave(self) -> None:
        """Leave the hub: the client has closed the connection, or the response is complete."""
        self._finish(End.LEFT)
        self._wake.set()
        self._on_leave(self)

    def maintain(self, period_s: float, settings: EdgeSettings) -> None:
        """Drop the client if it is slow, and keep an idle stream alive; called every `period_s`."""
        now = asyncio.get_running_loop().time()
        if self._writing_since is not None:
            self._drop_if_slow(now - self._writing_since, period_s, settings)
            return
        if self.hub.view.framing.keep_alive and now - self._wrote_at >= 2 * period_s:
            self._keep_alive_due = True
            self._wake.set()

    # The end

    def _is_complete(self) -> bool:
        return self._was_last or (self._end_after is not None and self._next > self._end_after)

    def _end_with(self, end: End) -> None:
        """End the stream after `_farewell` was written, unless the stream has ended already."""
        self.end = self.end or end
        self._wake.set()

    def _finish(self, end: End) -> None:
        """End the stream at once."""
        self.end = self.end or end
        self._phase = None

    def _farewell(self) -> bytes:
        """Return the last bytes of a stream that ends too early.

        If the client is asked to reconnect, these bytes name the time until the reconnection.
        Otherwise they are the frames of `interruption`.
        """
        if self.end in (End.AGED, End.DRAINED):
            return self.hub.view.framing.reconnect(retry_ms())
        return self.interruption()

    def _drop_if_slow(self, hangs_s: float, period_s: float, settings: EdgeSettings) -> None:
        """Drop the client if one write has lasted for too long.

        The limit is `write_timeout_s`. If more than `max_pending_bytes` wait behind the write, and
        the client can reconnect, the limit is `period_s`.
        """
        resumable = self.hub.view.delivery is Delivery.RESUMABLE
        behind = resumable and self._pending_bytes > settings.max_pending_bytes
        if not (hangs_s >= settings.write_timeout_s or (behind and hangs_s >= period_s)):
            return
        if self.end is End.SLOW or self.task is None:
            return
        self.end = End.SLOW
        log.warning(
            "%s: a client is dropped: it has taken nothing for %.1f s, with %d bytes pending",
            *(" ".join(self.hub.view.key), hangs_s, self._pending_bytes),
        )
        SLOW_CLIENTS.inc()
        self.task.cancel()

    @property
    def _pending_bytes(self) -> int:
        """The number of bytes in the ring that this client has not taken; 0 during a replay."""
        live = self._phase
        return self.hub.ring.delivered_bytes - live.taken_bytes if isinstance(live, Live) else 0

    # Notices, keep-alives and the live marker

    def _notice(self) -> bytes:
        """Return the bytes to write before the next item; empty if there are none."""
        if self._notices:
            notices, self._notices = self._notices, b""
            return notices
        if self._keep_alive_due:
            self._keep_alive_due = False
            return self.hub.view.framing.keep_alive
        return self._live_marker() if self._is_live_unmarked() else b""

    def _is_live_unmarked(self) -> bool:
        """Return whether the live marker must be written now, although no item is to be written.

        Usually `_own_part` writes the live marker next to an item. But if the newest messages of
        the replay are not for this client, there may be no item next to which the marker fits.
        """
        if self._live_after is None or not isinstance(self._phase, Live):
            return False
        at_end = self.hub.ring.chunk(self._phase.at) is None
        return at_end and self.hub.floor > self._live_after

    def _live_marker(self) -> bytes:
        """Return the live marker, and note that the marker is written."""
        self._live_after = None
        return self.hub.view.framing.live_marker

    # The items

    async def _items(self, phase: Replay | Live) -> bytes:
        """Return the bytes of the next items; empty if `take` must look again."""
        if isinstance(phase, Replay):
            return await self._replayed(phase)
        ring = self.hub.ring
        if phase.at < ring.base:
            self._fall_behind()
        elif (chunk := ring.chunk(phase.at)) is not None:
            self._advance(phase, chunk)
            return self._own_part(chunk.items, chunk.body)
        elif self.hub.closed:
            self._finish(End.FAILED if self.hub.failed else End.STOPPED)
        else:
            phase.idle = True
            await self._wake.wait()
            phase.idle = False
            self._wake.clear()
        return b""

    async def _replayed(self, replay: Replay) -> bytes:
        found = await replay.take(self._turn)
        if isinstance(found, Reached):
            if found.truncated:
                self.warn("history_truncated", "some events are not kept")
            if self._phase is replay:  # False if the client has left meanwhile
                at = self.hub.ring.position(self._next)
                self._phase = Live(at, self.hub.ring.offset_before(at))
            return b""
        if not found:
            return b""
        self._next = StreamSequence(found[-1].sequence + 1)
        return self._own_part(found, b"".join([item.body for item in found]))

    def _fall_behind(self) -> None:
        """Replay the items that the ring evicted before the client has taken them."""
        start = self._next
        if self.hub.view.reads_from is ReadFrom.START:
            # The run is encoded again from its start, but only new frames are written.
            self._after = max(self._after or _BEFORE_ALL, Cursor(self._next - 1, LAST_FRAME))
            self._next = start = self._start
        self._phase = Replay(self.hub, start)

    def _write_at_once(self, live: Live, direct: Direct) -> int:
        """Write the next chunk to the connection without waking the response's task.

        Returns:
            The number of items in the chunk; 0 if the task must take the chunk.
        """
        ring = self.hub.ring
        chunk = ring.chunk(live.at) if live.at >= ring.base else None
        if chunk is None or not self._takes_unchanged(chunk):
            return 0
        if not direct.write(chunk.framed):
            return 0
        self._advance(live, chunk)
        self.wrote()
        if ring.chunk(chunk.end) is not None:
            self._wake.set()
        return len(chunk.items)

    def _takes_unchanged(self, chunk: Chunk) -> bool:
        """Return whether this client gets the chunk's bytes next, without any change.

        The result is False if the task was woken for another reason, if frames up to a cursor must
        be left out, if the live marker must be written, or if the stream may end with this chunk.
        """
        is_plain = self._after is None and self._live_after is None and self._end_after is None
        return (
            is_plain and not self._wake.is_set() and bool(chunk.body) and not chunk.items[-1].last
        )

    def _advance(self, live: Live, chunk: Chunk) -> None:
        newest = chunk.items[-1]
        live.at = chunk.end
        live.taken_bytes = ByteOffset(newest.offset)
        self._next = StreamSequence(newest.sequence + 1)

    def _own_part(self, items: tuple[Item, ...], body: bytes) -> bytes:
        """Return the bytes of these items that this client needs, with the live marker if due."""
        self._was_last = items[-1].last
        self._count(len(items))
        after, live_after = self._after, self._live_after
        if after is None and live_after is None:
            return body
        if after is not None and items[-1].sequence > after.sequence:
            self._after = None
        pieces = []
        for item in items:
            if live_after is not None and item.sequence > live_after:
                pieces.append(self._live_marker())
                live_after = None
            pieces.append(item.body if after is None else item.after(after))
        if live_after == items[-1].sequence:
            pieces.append(self._live_marker())
        return b"".join(pieces)
