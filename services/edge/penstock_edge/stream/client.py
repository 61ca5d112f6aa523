"""A client of a hub takes items from the ring or from a replay, until the client's stream ends
(decision 0090).

A client is in one of four phases:
- `Replay`: the client's position is before the ring, and the client reads the JetStream stream;
- `Live`: the client has a position in the hub's ring, and takes items from the ring by itself;
- `IN_SYNC`: the client is in sync, so the hub writes the items of the ring to the client's
  connection;
- None: the client's stream has ended.

A client begins with a replay. When the replay reaches the ring, the client becomes live. If the
ring then evicts items that the client does not have yet, the client replays again.

A live client gets in sync under three conditions: it has taken all items of the ring, its driver
writes directly to a connection that accepts bytes (`Direct`), and the next items need no change for
this client. Each call of `wake` makes a client in sync live again. The client then checks whether
it must write bytes of its own, for example a notice of the edge.

The live marker is a frame that tells a client that all further events are new (`?markers=on`).
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from contextlib import nullcontext
from typing import Final

from penstock.log_fields import run_of
from penstock.telemetry import DELIVERED, SLOW_CLIENTS
from penstock.web.auth import Identity
from penstock.web.read_scheduler import ReadScheduler, Turn
from penstock_edge.settings import EdgeSettings
from penstock_edge.sources.locate import StartPosition
from penstock_edge.stream.drivers import ByTask, Driver, OwnFrames, Writing
from penstock_edge.stream.hub import Hub
from penstock_edge.stream.open_streams import ReconnectReason, is_keep_alive_due, retry_ms
from penstock_edge.stream.phases import IDLE, IN_SYNC, End, Idle, InSync, Live
from penstock_edge.stream.replay import Reached, Replay
from penstock_edge.stream.ring import http_chunk
from penstock_edge.views.cursor import LAST_FRAME, Cursor, StreamSequence
from penstock_edge.views.items import Item
from penstock_edge.views.view import Delivery, ReadFrom

log = logging.getLogger(__name__)

_BEFORE_ALL: Final = Cursor(0, 0)


_MOVED: Final = {ReconnectReason.AGE: End.AGED, ReconnectReason.DRAIN: End.DRAINED}


class Client:
    """Provides the bytes of one client's stream in order, and never waits for another client. Only
    the driver's task may call `next_write`. Any task may call the other methods at any time."""

    __slots__ = (
        "_after",
        "_end_after",
        "_next",
        "_on_leave",
        "_own",
        "_phase",
        "_releases",
        "_start",
        "_turn",
        "_turns",
        "_was_last",
        "driver",
        "end",
        "hub",
        "is_resumable",
        "writing",
    )

    def __init__(
        self,
        hub: Hub,
        start: StartPosition,
        on_leave: Callable[[Client], None],
        turns: ReadScheduler,
    ) -> None:
        self.hub = hub
        # set to True by a response whose client can reconnect with a cursor
        self.is_resumable = False
        self.driver: Driver | None = None
        self.end: End | None = None
        self._on_leave: Callable[[Client], None] | None = on_leave
        # The functions that are called when the client leaves.
        self._releases: tuple[Callable[[], object], ...] = ()
        self._turns = turns
        self._turn: Turn = nullcontext
        self._start = StreamSequence(start.start)
        self._phase: Replay | Live | InSync | None = Replay(hub, self._start)
        # one more than the sequence of the newest item that the client has taken
        self._next = self._start
        # frames up to and including this cursor are not written
        self._after: Cursor | None = start.after
        self._end_after: int | None = None
        self._was_last = False  # whether the newest item that the client has taken ends the stream
        self._own = OwnFrames(hub.view, start.live_after)
        self.writing = Writing()
        if start.truncated:
            self._own.warn("history_truncated", "earlier events are no longer kept")
        if start.live_after is not None and start.live_after < start.start:
            self._own.mark_live()

    # The following methods are called by the driver, or by the task of a response that ASGI sends.

    async def take(self) -> bytes | None:
        """Wait for the bytes to write next, and return them; None when the stream has ended. Only
        the task of a response that is sent by ASGI may call this method."""
        driver = self.driver
        if driver is None:
            driver = self.driver = ByTask()
        assert isinstance(driver, ByTask)
        while isinstance(taken := await self.next_write(), Idle):
            await driver.wait()
        return taken

    async def next_write(self) -> bytes | Idle | None:
        """Return the bytes to write next, None at the end of the stream, `IDLE` if there is nothing
        to write until the next `wake`: the client may then be in sync. This waits only while a
        replay reads from NATS."""
        while (phase := self._phase) is not None:
            if self._is_complete():
                self._finish(End.COMPLETE)
                return None
            if self.end is not None:
                self._phase = None
                return self._last_bytes() or None
            if own := self._own.next(is_at_marker=self._is_at_marker()):
                return own
            if phase is IN_SYNC:
                return IDLE
            found: bytes | Idle
            if isinstance(phase, Replay):
                found = await self._replayed(phase)
            else:
                found = self._from_ring(phase)
            if found:
                return found
        return None

    def read_for(self, who: Identity) -> None:
        self._turn = self._turns.for_caller(who)

    def interruption(self) -> bytes:
        """Return the frames that mark the stream as incomplete, if the client cannot continue
        it."""
        frames = b"".join(self.hub.view.encoding().interruption())
        # The last write may have ended inside a frame. The empty line ends this frame. If the last
        # write ended between two frames, the empty line has no meaning.
        return frames and b"\n\n" + frames

    # The following methods are called by the hub, by `Hubs.maintain` and by the surfaces.

    def wake(self) -> None:
        """Let the driver call `next_write`; leave the group in sync first."""
        self.leave_in_sync()
        if self.driver is not None:
            self.driver.wake()

    def leave_in_sync(self) -> None:
        """Get a position of its own, and write by the driver."""
        if self._phase is IN_SYNC:
            at, next_ = self.hub.leave_in_sync(self)
            self._next = max(self._next, next_)
            self._phase = Live(at, self.hub.ring.offset_before(at))

    def fail(self) -> None:
        self.leave_in_sync()
        if self.driver is not None:
            self.driver.fail()

    # The responses with saved cursors read the following properties, at most a few times a second.

    @property
    def cursor(self) -> Cursor | None:
        """The newest position that was written to the connection, if any."""
        next_ = self._next
        if self._phase is IN_SYNC:
            next_ = max(next_, self.hub.in_sync.next_of(self))
        return Cursor(next_ - 1, LAST_FRAME) if next_ > 1 else self._after

    @property
    def has_all_events(self) -> bool:
        """Whether all events that the hub has were written to the connection."""
        phase = self._phase
        at_end = isinstance(phase, Live) and self.hub.ring.chunk(phase.at) is None
        return at_end or phase is IN_SYNC

    @property
    def transport(self) -> asyncio.WriteTransport | None:
        """The connection's transport, unless ASGI must be used."""
        return self.driver.transport if self.driver is not None else None

    @property
    def has_left(self) -> bool:
        return self._on_leave is None

    def when_left(self, release: Callable[[], object]) -> None:
        self._releases += (release,)

    def end_after(self, sequence: int) -> None:
        """End at the latest after the first item with a higher sequence, if this message never
        comes."""
        self._end_after = sequence
        self.wake()

    def warn(self, code: str, message: str) -> None:
        self._own.warn(code, message)
        self.wake()

    def expire(self) -> None:
        """End the stream because the caller's credential is no longer valid. Without the reason in
        the last frame, a client such as an EventSource would reconnect, and would give up silently
        when the edge refuses the new request."""
        self._own.warn(
            "token_expired", "the credential has expired or was revoked; connect with another one"
        )
        self._end_with(End.EXPIRED)

    def ask_to_reconnect(self, reason: ReconnectReason) -> None:
        self._end_with(_MOVED[reason])

    def leave(self) -> None:
        """Leave the hub, because the client has closed the connection or the response is complete.
        Further calls do nothing."""
        self.leave_in_sync()
        self._finish(End.LEFT)
        on_leave, self._on_leave = self._on_leave, None
        if on_leave is None:
            return
        on_leave(self)
        releases, self._releases = self._releases, ()
        for release in releases:
            release()
        # The driver and this client refer to each other. Without the reference to the driver, both
        # are freed as soon as they are no longer used, without the garbage collector.
        driver, self.driver = self.driver, None
        if driver is not None:
            driver.wake()

    def maintain(self, now: float, period_s: float, settings: EdgeSettings) -> None:
        """Drop a slow client, or send a keep-alive to a client with an idle stream. `Hubs.maintain`
        calls this method every `period_s` seconds."""
        if self.writing.since is not None:
            self._drop_if_slow(now - self.writing.since, period_s, settings)
            return
        wrote_at = self.writing.last_at
        if self._phase is IN_SYNC:
            wrote_at = max(wrote_at, self.hub.in_sync.wrote_at)
        keep_alive = self.hub.view.framing.keep_alive
        if not keep_alive or not is_keep_alive_due(now - wrote_at, period_s):
            return
        write = self.driver.write if self.driver is not None else None
        if self._phase is IN_SYNC and write is not None:
            # The client stays in the group while it writes the keep-alive, because a client that
            # leaves the group needs a task until it joins the group again.
            self.writing.last_at = now
            try:
                write(http_chunk(keep_alive))
            except Exception:
                extra = run_of(self.hub.view.run_id)
                log.exception("a client's stream ends, because a write has failed", extra=extra)
                self.fail()
        else:
            self._own.is_keep_alive_due = True
            self.wake()

    # The following methods decide when and how the stream ends.

    def _is_complete(self) -> bool:
        return self._was_last or (self._end_after is not None and self._next > self._end_after)

    def _end_with(self, end: End) -> None:
        """End the stream after the driver has written `_last_bytes`. An earlier reason stays."""
        self.end = self.end or end
        self.wake()

    def _finish(self, end: End) -> None:
        self.end = self.end or end
        self._phase = None

    def _last_bytes(self) -> bytes:
        """Return the last bytes of a stream that ends before the run does: the delay before the
        reconnection for a client that is asked to reconnect, else the frames of `interruption`,
        after notices if the credential has expired."""
        if self.end in (End.AGED, End.DRAINED):
            return self.hub.view.framing.reconnect(retry_ms())
        if self.end is End.EXPIRED:
            return self._own.take_notices() + self.interruption()
        return self.interruption()

    def _drop_if_slow(self, hangs_s: float, period_s: float, settings: EdgeSettings) -> None:
        """Drop the client if its present write has lasted for `write_timeout_s`, or, if the client
        can reconnect, for `period_s` while more than `max_pending_bytes` of the ring wait for
        it."""
        is_resumable = self.hub.view.delivery is Delivery.RESUMABLE
        behind = is_resumable and self._pending_bytes > settings.max_pending_bytes
        if not (hangs_s >= settings.write_timeout_s or (behind and hangs_s >= period_s)):
            return
        if self.end is End.SLOW or self.driver is None:
            return
        before, self.end = self.end, End.SLOW
        if not self.driver.drop():
            self.end = before
            return
        log.warning(
            "%s: a client is dropped: it has taken nothing for %.1f s, with %d bytes pending",
            " ".join(self.hub.view.key),
            hangs_s,
            self._pending_bytes,
            extra=run_of(self.hub.view.run_id),
        )
        SLOW_CLIENTS.inc()

    @property
    def _pending_bytes(self) -> int:
        """Return 0 if the client is not live."""
        live = self._phase
        return self.hub.ring.delivered_bytes - live.taken_bytes if isinstance(live, Live) else 0

    def _is_at_marker(self) -> bool:
        """Return whether the live marker must be written alone. Usually `_own_part` writes it
        before or after an item. But if the newest messages of the replay are not for this client,
        there is no item at its place."""
        live_after, phase = self._own.live_after, self._phase
        if live_after is None or not isinstance(phase, Live):
            return False
        return self.hub.ring.chunk(phase.at) is None and self.hub.first_sequence > live_after

    # The following methods take items from the ring or from the replay.

    def _from_ring(self, phase: Live) -> bytes | Idle:
        """Return the next items; `IDLE` if the client has all, and nothing if the client's phase
        has changed, or if the items have no bytes for this client."""
        ring = self.hub.ring
        if phase.at < ring.base:
            self._fall_behind()
        elif (chunk := ring.chunk(phase.at)) is not None:
            newest = chunk.items[-1]
            phase.at = chunk.end
            phase.taken_bytes = chunk.end_bytes
            self._next = StreamSequence(newest.sequence + 1)
            return self._own_part(chunk.items, chunk.body)
        elif self.hub.is_closed:
            self._finish(End.FAILED if self.hub.is_failed else End.STOPPED)
        else:
            self._join_in_sync(phase)
            return IDLE
        return b""

    def _join_in_sync(self, live: Live) -> None:
        """Let the hub write the next items, if this client needs exactly the hub's bytes. A client
        that cannot get in sync stays live; the hub wakes it when the ring gets items."""
        is_plain = self._after is None and self._own.live_after is None and self._end_after is None
        write = self.driver.write if is_plain and self.driver is not None else None
        if write is not None and self.hub.join_in_sync(self, live.at, write):
            self._phase = IN_SYNC

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
        start = self._next
        if self.hub.view.reads_from is ReadFrom.START:
            # The dialect needs the run's earlier events, so the run is encoded again from its
            # start. Only frames after `_after` are written.
            self._after = max(self._after or _BEFORE_ALL, Cursor(self._next - 1, LAST_FRAME))
            self._next = start = self._start
        self._phase = Replay(self.hub, start)

    def _own_part(self, items: tuple[Item, ...], body: bytes) -> bytes:
        self._was_last = items[-1].last
        DELIVERED.labels(self.hub.view.dialect).inc(len(items))
        after, live_after = self._after, self._own.live_after
        if after is None and live_after is None:
            return body
        if after is not None and items[-1].sequence > after.sequence:
            self._after = None
        pieces = []
        for item in items:
            if live_after is not None and item.sequence > live_after:
                pieces.append(self._own.take_live_marker())
                live_after = None
            pieces.append(item.body if after is None else item.after(after))
        if live_after == items[-1].sequence:
            pieces.append(self._own.take_live_marker())
        return b"".join(pieces)
