"""Implements the pull loop of `Reader` and `WorkQueue`. The loop takes 7 to 9 µs for each message.

nats-py's `fetch` takes 25 to 46 µs for each message (see docs/decisions).
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from enum import Enum, auto
from typing import Protocol

import orjson
from nats.errors import Error as NatsError

from penstock.bus.connection.incoming import Incoming, Listener
from penstock.bus.connection.jetstream import JetStream
from penstock.bus.connection.retry import RETRY_S
from penstock.bus.errors import BusError
from penstock.bus.messages import Stored
from penstock.bus.sealing import FIRST_BYTES, SEALED
from penstock.busyness import until_tick_s

log = logging.getLogger(__name__)

NANO = 1_000_000_000  # nanoseconds in one second
HEARTBEAT_S = 0.5  # seconds between two heartbeats of the consumer while a request is open
# The server ends an open request at a multiple of `EXPIRES_S`, at least half of it later, and the
# first request of a subscription at a multiple of `FIRST_EXPIRES_S`. All are multiples of
# `HEARTBEAT_S`. The server refuses a request that lasts for less than two heartbeats.
EXPIRES_S, FIRST_EXPIRES_S = 30.0, 2.5
SILENCE_S = 1.5  # seconds without a heartbeat after which the consumer's leader counts as gone
# The number of checks in a row that must find no heartbeat before the silence counts. A busy
# process reads heartbeats late. After only one check, such a process would conclude that a working
# leader is gone.
SILENT_CHECKS = 3
# The most seconds before a consumer that failed is opened anew: `RETRY_S` for each failure in a
# row, up to this limit.
MAX_RETRY_S = 0.5
# the most bytes in one batch; without this limit, a batch could have 256 MiB
MAX_REQUEST_BYTES = 4 * 1024 * 1024

# The beginning of a heartbeat's headers. Their full parsing took a tenth of an idle process.
_HEARTBEAT = b"NATS/1.0 100"
# The texts of a status 409 that ends only one request. A status 409 with any other text means that
# the consumer is gone or has moved.
_REQUEST_ENDS = frozenset({"Batch Completed", "Message Size Exceeds MaxBytes"})


@dataclass(slots=True)
class Delivery:
    """A message with its sequence in its consumer, and the subject that acknowledges it."""

    stored: Stored
    consumer_sequence: int
    reply: str


def _delivery(msg: Incoming) -> Delivery:
    # The reply subject:
    # $JS.ACK.[domain.hash.]stream.consumer.delivered.stream_seq.consumer_seq.time.pending[.token]
    tokens = msg.reply.split(".")
    at = 4 if len(tokens) < 11 else 6
    return Delivery(
        Stored(msg.subject, int(tokens[at + 1]), msg.headers, msg.data, int(tokens[at])),
        int(tokens[at + 2]),
        msg.reply,
    )


def _stored_at(reply: str) -> str:
    tokens = reply.split(".")
    at_s = int(tokens[7 if len(tokens) < 11 else 9]) / NANO
    return datetime.fromtimestamp(at_s, UTC).isoformat()


class PullUse(Protocol):
    """The interface of an object that uses a pull loop, such as `Reader` and `WorkQueue`."""

    async def create(self) -> str:
        """Make or find the consumer, and return the consumer's name. May raise BusError."""

    def room(self) -> int:
        """Return the most messages that may be under way, including those that were requested."""

    def on_message(self, delivery: Delivery) -> None:
        """Take a message. The loop calls this with each message as it arrives; it must not wait."""

    async def work(self) -> bool:
        """Process messages that were taken; return False when there was nothing to process."""


class Phase(Enum):
    """The state of the subscription at which messages arrive."""

    CLOSED = auto()
    OPEN = auto()
    BROKEN = auto()  # the consumer is gone or messages were lost; the loop opens the consumer anew


class PullLoop:
    """Keeps requests open at one consumer, and opens the consumer anew when the consumer fails.

    `what` describes the activity for the log. `batch` is the limit of messages in one request.
    Every `look_s` seconds the loop checks whether there is room for more messages and whether
    heartbeats are missing.
    """

    def __init__(
        self,
        jetstream: JetStream,
        stream: str,
        use: PullUse,
        *,
        batch: int,
        look_s: float,
        what: str,
    ) -> None:
        self._loop: asyncio.AbstractEventLoop
        self._jetstream = jetstream
        self._connection = jetstream.connection
        self._stream = stream
        self._use = use
        self._on_message: Callable[[Delivery], None] = use.on_message
        self._batch = batch
        self._look_s = look_s
        self._what = what
        self._phase = Phase.CLOSED
        self._outstanding = 0  # messages that were requested and have not come yet
        self._inbox = ""
        self._listener: Listener | None = None
        self._last_heard = 0.0
        self._looks = 0  # checks since `_last_heard`
        self._is_in_step = False  # whether heartbeats come together with those of other loops
        self._finishing = False  # whether `finish` was called
        self._looking: asyncio.TimerHandle | None = None  # calls `_look`
        self.consumer = ""
        self.wake = asyncio.Event()  # set when there may be something to request or to process

    async def run(self) -> None:
        """Pull until cancelled, or until `use.work` raises anything but a BusError."""
        # kept, since Python 3.11 gets the loop by a system call
        self._loop = asyncio.get_running_loop()
        stop = self._jetstream.on_reconnect(self.restart)
        failures = 0
        try:
            while True:
                try:
                    self._open(await self._use.create())
                    failures = 0
                    await self._pull()
                except (BusError, NatsError) as error:
                    failures += 1
                    # Only the first failure is a warning. Otherwise every reader would repeat the
                    # warning for as long as the bus is away.
                    level = logging.WARNING if failures == 1 else logging.DEBUG
                    log.log(level, "%s: %s", self._what, error)
                    await asyncio.sleep(min(failures * RETRY_S, MAX_RETRY_S))
        finally:
            stop()
            self.close()

    def restart(self) -> None:
        self._phase = Phase.BROKEN
        self.wake.set()

    def close(self) -> None:
        if self._listener is not None:
            self._listener.stop()
            self._listener = None
            self._phase = Phase.CLOSED

    async def finish(self) -> None:
        """Request no more messages, and take those that the server has sent already.

        Call this before `run` is cancelled. Otherwise messages that are on their way are dropped,
        and come again only after the consumer's acknowledgement wait.
        """
        listener, self._finishing = self._listener, True
        if listener is not None:
            with contextlib.suppress(NatsError):
                await self._connection.stop_listening(listener)

    def _open(self, consumer: str) -> None:
        self.close()
        self.consumer = consumer
        self._outstanding = 0
        self._is_in_step = False
        self._phase = Phase.OPEN
        self._inbox = self._connection.new_inbox()
        self._listener = self._connection.listen(self._inbox, self._on_msg)
        self._on_heartbeat()

    async def _pull(self) -> None:
        # A timer beside the loop, and no timeout for each wait: a wait with a timeout costs a third
        # of all calls with which this loop takes a message.
        self._look_later()
        try:
            while self._phase is Phase.OPEN:
                # Cleared before the request, which may wait: nothing else would repeat a `restart`.
                self.wake.clear()
                if want := self._wanted():
                    await self._request(want)
                if not await self._use.work():
                    await self.wake.wait()
        finally:
            if self._looking is not None:
                self._looking.cancel()

    def _look_later(self) -> None:
        # The timers of all loops of a process fire together, so that it wakes once for them.
        after_s = until_tick_s(self._look_s, self._loop.time())
        self._looking = self._loop.call_later(after_s, self._look)

    def _look(self) -> None:
        self._look_later()
        if self._is_silent():
            self.restart()
        elif self._wanted():
            self.wake.set()

    def request_more(self) -> None:
        """Let the loop request messages, once half of the last request has arrived. `work` is not
        called for messages that `on_message` has processed."""
        if self._outstanding <= self._batch // 2:
            self.wake.set()

    def _wanted(self) -> int:
        """Return how many messages to request now: up to the room that there is, once half of the
        last request has arrived."""
        want = min(self._use.room(), self._batch) - self._outstanding
        if want <= 0 or (self._outstanding and want < self._batch // 2):
            return 0
        return 0 if self._finishing or not self._connection.is_usable else want

    async def _request(self, want: int) -> None:
        # The server counts the time to a heartbeat from the request. The requests of all loops of a
        # process end at the same moments, so the next ones begin together, and the process wakes
        # once for the heartbeats of all.
        every_s = EXPIRES_S if self._is_in_step else FIRST_EXPIRES_S
        expires_s = until_tick_s(every_s, self._loop.time())
        self._is_in_step = True
        self._outstanding += want
        await self._connection.publish(
            f"$JS.API.CONSUMER.MSG.NEXT.{self._stream}.{self.consumer}",
            orjson.dumps(
                {
                    "batch": want,
                    "max_bytes": MAX_REQUEST_BYTES,
                    "expires": int(expires_s * NANO),
                    "idle_heartbeat": int(HEARTBEAT_S * NANO),
                }
            ),
            self._inbox,
        )

    def _on_heartbeat(self) -> None:
        self._last_heard = self._loop.time()
        self._looks = 0

    def _is_silent(self) -> bool:
        """Return whether several checks in a row found that an open request gets no heartbeats."""
        self._looks += 1
        silent_s = self._loop.time() - self._last_heard
        return self._outstanding > 0 and silent_s > SILENCE_S and self._looks >= SILENT_CHECKS

    def _on_msg(self, msg: Incoming) -> None:
        self._on_heartbeat()
        if msg.block.startswith(_HEARTBEAT):
            return
        if msg.reply:
            self._outstanding -= 1
            delivery = _delivery(msg)
            if self._jetstream.content.refuses_clear and msg.data[:FIRST_BYTES] not in SEALED:
                delivery.stored.stored_at = _stored_at(msg.reply)
            self._on_message(delivery)
            return
        status = msg.headers.get("Status", "")
        if status in ("404", "408") or msg.headers.get("Description") in _REQUEST_ENDS:
            left = int(msg.headers.get("Nats-Pending-Messages", self._outstanding))
            self._outstanding = max(0, self._outstanding - left)
            self.wake.set()
        else:
            self.restart()
