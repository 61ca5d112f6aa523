"""Follows a run: first its stored history, then live messages, each once and in order.

A followed run needs one core subscription and no JetStream consumer. Core messages can be lost (by
a reconnect, or by a slow reader), so each live message must be the direct successor of the message
before it. When a live message is no direct successor, messages were lost, so the stream itself is
read. The stream is also read after each reconnect and after each silence of the subscription. The
reads become less frequent during a longer silence, so 10,000 idle runs cost next to nothing.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from penstock.bus import messages, streams, subjects
from penstock.bus.budget import counted_bytes
from penstock.bus.connection.incoming import Incoming, Listener
from penstock.bus.connection.jetstream import HasJetStream
from penstock.bus.errors import BusError
from penstock.bus.messages import Stored
from penstock.bus.read.direct import last, read
from penstock.bus.read.run_histories import histories
from penstock.bus.sealing import FIRST_BYTES, OPENED
from penstock.log_fields import run_of

log = logging.getLogger(__name__)

PROBE_S = 5.0  # seconds of silence after which the stream is read
MAX_PROBE_S = 60.0  # the longest such time; the time grows while the silence lasts
RETRY_S = 0.05  # seconds before a lagging replica is read again
# the most bytes of live messages that are kept while the history is read
MAX_EARLY_BYTES = 4 * 1024 * 1024


@dataclass(frozen=True, slots=True)
class Followed:
    """Describes what to follow: the pattern in the stream, the republished subject, and the order.

    `numbers` returns a message's number, and the number of the message directly before it. The
    second number is None if it is unknown; then no gap is found before this message.

    If `can_repeat` is True, a message that NATS has lost may be published again with its number.
    """

    stream: str
    pattern: str
    live: str
    numbers: Callable[[Stored], tuple[int, int | None]]
    can_repeat: bool = False

    def follows(self, before: Stored, after: Stored) -> bool:
        """Return whether no message is missing between the two messages, as far as is known."""
        number_before = self.numbers(after)[1]
        return number_before is None or number_before == self.numbers(before)[0]


def _ignore(batch: list[Stored]) -> None:
    pass


def _event_numbers(stored: Stored) -> tuple[int, int]:
    number = int(stored.headers[messages.SEQUENCE])
    return number, number - 1


def _frame_numbers(stored: Stored) -> tuple[int, int | None]:
    # The header has the sequence of the previous message. In a republished message, this is the
    # previous message on the same subject. In the answer to a direct get, this is the previous
    # message of the same answer, so the first message of an answer has the sequence 0.
    return stored.sequence, int(stored.headers.get("Nats-Last-Sequence", 0)) or None


_ENDS = frozenset({"lifecycle.completed", "lifecycle.failed", "lifecycle.cancelled"})


def _ends_run(subject: str) -> bool:
    return subject.rpartition(".")[0] in _ENDS


def events(run_id: str) -> Followed:
    return Followed(
        streams.events_for(run_id),
        subjects.events_of_run(run_id),
        subjects.live_of_run(run_id),
        _event_numbers,
        can_repeat=True,
    )


def raw(run_id: str, writer: str) -> Followed:
    return Followed(
        streams.raw_for(run_id),
        subjects.raw_stored(run_id, writer),
        subjects.frames(run_id, writer),
        _frame_numbers,
    )


class Follow:
    """Delivers lists of messages, from stream sequence `start` on, until `stop` is called.

    `deliver` gets the messages in order and no message twice. A live message is delivered while the
    bytes from the server are parsed, so `deliver` must not wait. `deliver` should leave slow work
    to a later turn of the event loop, and do the work of many messages in that turn. Gaps in the
    stream itself (expired or deleted messages) are skipped with a warning.
    """

    __slots__ = (
        "_bus",
        "_deliver",
        "_early",
        "_early_bytes",
        "_first_probe_s",
        "_followed",
        "_last_number",
        "_last_subject",
        "_left_out",
        "_listener",
        "_loop",
        "_next",
        "_probe_at",
        "_probe_s",
        "_repair",
        "_stop_listening",
        "_stopped",
        "_timer",
        "_timer_at",
    )

    def __init__(
        self,
        bus: HasJetStream,
        followed: Followed,
        start: int,
        deliver: Callable[[list[Stored]], None],
        probe_s: float = PROBE_S,
    ) -> None:
        self._bus = bus
        self._followed = followed
        self._next = max(start, 1)
        self._deliver = deliver
        self._probe_s = self._first_probe_s = probe_s
        # The number and the subject of the message that was delivered last; None before the first
        # one. The message itself is not kept: it would be freed when the next message comes, and
        # by then its memory is no longer in the processor's cache.
        self._last_number: int | None = None
        self._last_subject = ""
        self._early: list[Stored] = []  # live messages that wait for the end of the repair
        self._early_bytes = 0
        self._left_out = False  # whether live messages were dropped, which the repair must read
        self._repair: asyncio.Task[None] | None = None
        self._loop: asyncio.AbstractEventLoop
        self._timer: asyncio.TimerHandle | None = None
        self._timer_at = 0.0  # when the timer fires, on the event loop's clock
        self._probe_at = 0.0  # when the probe is due, on the same clock; the timer may fire earlier
        self._listener: Listener | None = None
        self._stop_listening: Callable[[], None] | None = None
        self._stopped = False

    async def start(self) -> None:
        """Subscribe first, then read the history, so that no message is lost in between."""
        # kept, since Python 3.11 gets the loop by a system call
        self._loop = asyncio.get_running_loop()
        self._listener = await self._bus.jetstream.listen(
            self._followed.live, self._on_live, is_patient=True
        )
        self._stop_listening = self._bus.jetstream.on_reconnect(self._begin_repair)
        self._begin_repair()

    async def stop(self) -> None:
        self._stopped = True
        self._deliver = _ignore
        # All references to this object are dropped, so that Python frees the object without the
        # cycle collector.
        if self._stop_listening:
            self._stop_listening()
            self._stop_listening = None
        if self._timer:
            self._timer.cancel()
            self._timer = None
        if self._listener:
            self._listener.stop()
            self._listener = None
        repair, self._repair = self._repair, None
        if repair and repair is not asyncio.current_task():
            repair.cancel()
            await asyncio.wait([repair])

    def _on_live(self, msg: Incoming) -> None:
        stream, stored = msg.republished()
        if stream != self._followed.stream:
            return  # `live.>` and `frames.>` have the messages of all shards
        number = self._number_if_next(stored) if self._repair is None else None
        content = self._bus.jetstream.content
        if number is not None and (
            (stored.payload[:FIRST_BYTES] not in OPENED and not content.refuses_clear)
            or content.open_now(stored)
        ):
            self._accept([stored], number)
        elif stored.sequence >= self._next:
            self._buffer_early(stored)
            # The first message after an empty history is no gap: nothing before it is missing. Nor
            # is one whose key the repair must read.
            is_gap = self._repair is None and self._last_number is not None and number is None
            self._bus.jetstream.gaps += is_gap
            self._begin_repair()

    def _buffer_early(self, stored: Stored) -> None:
        if self._early_bytes > MAX_EARLY_BYTES:
            self._left_out = True
        else:
            self._early.append(stored)
            self._early_bytes += counted_bytes(stored.payload)

    def _number_if_next(self, stored: Stored) -> int | None:
        """Return the message's number; None if other messages must be delivered before it."""
        if stored.sequence < self._next or self._last_number is None:
            return None
        number, number_before = self._followed.numbers(stored)
        if number_before is not None and number_before != self._last_number:
            return None
        return number

    def _accept(self, batch: list[Stored], last_number: int) -> None:
        last = batch[-1]
        self._last_number, self._last_subject = last_number, last.subject
        self._next = last.sequence + 1
        self._probe_s = self._first_probe_s
        self._set_timer()
        self._deliver(batch)

    def _set_timer(self) -> None:
        self._probe_at = self._loop.time() + self._probe_s
        # If the present timer fires before the probe is due, no new timer is made here. `_on_timer`
        # then makes the next timer. To cancel and make a timer for each event took 8 % of the
        # edge's time.
        if self._timer is None or self._timer_at > self._probe_at:
            self._arm()

    def _arm(self) -> None:
        if self._timer:
            self._timer.cancel()
            self._timer = None
        if not self._stopped:
            self._timer_at = self._probe_at
            self._timer = self._loop.call_at(self._probe_at, self._on_timer)

    def _on_timer(self) -> None:
        if self._loop.time() < self._probe_at:
            self._arm()
        else:
            self._timer = None
            self._probe()

    def _probe(self) -> None:
        # The wait is random. Otherwise all runs that fell silent together would be probed together.
        longest = max(MAX_PROBE_S, self._first_probe_s)
        self._probe_s = min(self._probe_s * random.uniform(2.0, 3.0), longest)
        self._begin_repair(self._catch_up_if_behind)

    def _begin_repair(self, repair: Callable[[], Awaitable[None]] | None = None) -> None:
        if self._repair is None and not self._stopped:
            self._repair = asyncio.create_task(self._repaired(repair or self._catch_up))

    async def _repaired(self, repair: Callable[[], Awaitable[None]]) -> None:
        try:
            await repair()
        except Exception:
            # `deliver` failed. The next probe continues after the messages of the failed call.
            pattern = self._followed.pattern
            log.exception("following %s", pattern, extra=run_of(pattern))
        finally:
            self._repair = None
            self._set_timer()

    async def _catch_up_if_behind(self) -> None:
        followed = self._followed
        try:
            async with self._bus.jetstream.reading:
                newest = await last(self._bus, followed.stream, followed.pattern)
        except BusError as error:
            log.warning(
                *("%s is looked at later: %s", followed.pattern, error),
                extra=run_of(followed.pattern),
            )
            return  # the next probe or reconnect asks again
        await self._accept_early()
        behind = newest is not None and newest.sequence >= self._next
        if behind or self._early or self._left_out:
            await self._catch_up()

    async def _catch_up(self) -> None:
        while not self._stopped:
            try:
                found, pending = await self._read_on()
            except BusError as error:
                pattern = self._followed.pattern
                log.warning("%s is read on later: %s", pattern, error, extra=run_of(pattern))
                await asyncio.sleep(RETRY_S * 10)
                continue
            if found:
                self._accept_found(found)
            await self._accept_early()
            if pending or self._left_out:
                self._left_out = False
                continue
            if not self._early:
                return
            await asyncio.sleep(RETRY_S)  # the replica that answered lags behind the live messages

    async def _read_on(self) -> tuple[list[Stored], int]:
        # Request the last message first. At a reconnect, most followers have already read all
        # messages, and a `read` without a match costs the server much more (see `direct.last`).
        bus, stream, pattern = self._bus, self._followed.stream, self._followed.pattern
        async with bus.jetstream.reading:
            newest = await last(bus, stream, pattern)
        if newest is None or newest.sequence < self._next:
            return [], 0
        if newest.sequence == self._next:
            return [newest], 0
        start = self._next
        return await histories(bus, stream).read(
            pattern, start, newest.sequence, lambda: read(bus, stream, pattern, start)
        )

    def _accept_found(self, found: list[Stored]) -> None:
        if self._repeats(found[0]):
            self._next = found[-1].sequence + 1
            found = [stored for stored in found if not self._repeats(stored)]
            if not found:
                return
        # A lagging replica returns fewer messages but skips none, so a gap in the answer is a gap
        # in the stream itself.
        sequence, last_number = self._next - 1, self._last_number
        for stored in found:
            number, number_before = self._followed.numbers(stored)
            if None not in (last_number, number_before) and number_before != last_number:
                log.warning(
                    "%s: no message is left between %d and %d of %s",
                    self._followed.pattern,
                    sequence,
                    stored.sequence,
                    self._followed.stream,
                    extra=run_of(self._followed.pattern),
                )
            sequence, last_number = stored.sequence, number
        self._accept(found, number)

    def _repeats(self, stored: Stored) -> bool:
        """Return whether a message repeats a delivered event that NATS lost.

        The normalizer makes a lost event again from the same source frames, with the same number.
        If the source frames are lost, too, the run gets a new last event, and this event may have a
        number that was delivered before. So a run's last event never counts as a repetition.
        """
        if self._last_number is None or not self._followed.can_repeat:
            return False
        ends = _ends_run(stored.subject) and not _ends_run(self._last_subject)
        return self._followed.numbers(stored)[0] <= self._last_number and not ends

    async def _accept_early(self) -> None:
        try:
            # Further messages may arrive meanwhile. They have the same key, or come again.
            await self._bus.jetstream.content.open(*self._early)
        except BusError as error:
            pattern = self._followed.pattern
            log.warning("%s is read on later: %s", pattern, error, extra=run_of(pattern))
            await asyncio.sleep(RETRY_S * 10)
        early, self._early, self._early_bytes = self._early, [], 0
        for stored in early:
            number = None if self._early else self._number_if_next(stored)
            if number is not None and self._bus.jetstream.content.open_now(stored):
                self._accept([stored], number)
            elif stored.sequence >= self._next:
                self._buffer_early(stored)
