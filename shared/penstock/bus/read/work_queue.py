"""Processes messages of a durable consumer, and acknowledges a message when its handler returns."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable, Sequence
from contextlib import AbstractAsyncContextManager
from typing import Protocol

import orjson
from nats.errors import Error as NatsError

from penstock import log_fields
from penstock.bus.connection.jetstream import HasJetStream
from penstock.bus.connection.retry import first_answer
from penstock.bus.errors import (
    CONSUMER_NOT_FOUND,
    ApiError,
    BusError,
    BusUnavailable,
    OutcomeUnknown,
)
from penstock.bus.messages import Stored
from penstock.bus.read import leader
from penstock.bus.read.direct import replay
from penstock.bus.read.pull import NANO, Delivery, PullLoop
from penstock.bus.subjects import run_id_of, traceback_id

log = logging.getLogger(__name__)

AGAIN_S = 1.0  # seconds before a step that failed is repeated
# For `take_up`: the most handlers that run at once, the most calls of a handler that raises
# `Retry`, and the longest pause between two calls, in seconds.
TAKE_UP_AT_ONCE, TAKE_UP_TRIES, TAKE_UP_PAUSE_S = 16, 3, 0.3
# The server's limit of deliveries of one message. Even if every process that takes the message is
# killed, the limit is reached only after hours.
SERVER_LIMIT = 1000
CHECK_S = 0.2  # seconds between two checks whether there is room for more messages
# The reason that a work queue gives when it ends a message that it has made a dead letter. The
# server publishes the reason, and `admin.advisories` makes no second dead letter of the message.
BURIED = "penstock: the message is a dead letter"
AGAIN = b"-NAK"  # the beginning of the answer that asks the server for another delivery
MAX_PENDING = 10_000  # the most messages that are delivered and not acknowledged


class Retry(Exception):
    """A handler cannot finish now; the queue calls the handler again after `delay_s`."""

    def __init__(self, delay_s: float) -> None:
        super().__init__(f"again in {delay_s:g} s")
        self.delay_s = delay_s


class NeverFinished(Exception):
    """Several processes in a row began to handle a message, and did not survive it."""

    def __init__(self, times: int) -> None:
        super().__init__(
            f"delivered {times} times and never finished: each process that took it was killed, "
            "perhaps by this message"
        )


class CountsAttempts(Protocol):
    """The interface of `penstock.bus.state.attempts.Attempts`."""

    def at(self, step: str, stored: Stored) -> AbstractAsyncContextManager[None]:
        """Return the context in which a message may kill this process.

        Entering the context raises NeverFinished if earlier processes did not survive it.
        """


class WorkQueue:
    """Processes messages of one durable consumer, up to `concurrency` at a time.

    When a handler returns, the queue acknowledges the message. When a handler raises `Retry`, or
    while the bus is away, the same process keeps the message and calls the handler again; this does
    not count as a delivery. Any other exception is logged, and the server delivers the message
    again, up to `max_deliver` times. Then `on_poison` gets the message.

    The server counts all deliveries, including deliveries to processes that were killed or stopped.
    So a message with `max_deliver` deliveries may never have failed. Therefore, this process tries
    the message once more if the message has not failed in this process.

    A delivery without an answer does not count. `attempts` finds the messages that kill the
    processes that handle them, and `on_poison` gets such a message with NeverFinished. Pass None if
    the handler itself records the steps that may kill its process. If a message cannot be given up,
    the server stops delivering it after `SERVER_LIMIT` deliveries and publishes an advisory.

    With `deletes`, a message that was acknowledged or given up is deleted from the stream. The
    stream then needs no age limit. If the process ends after it has answered and before it has
    deleted the message, the message stays in the stream. So give such messages a TTL.

    `room` returns how many more messages may be taken. Pass `room` where this number depends on
    more than the number of running handlers.
    """

    def __init__(
        self,
        bus: HasJetStream,
        stream: str,
        durable: str,
        patterns: Sequence[str],
        handle: Callable[[Stored], Awaitable[None]],
        *,
        on_poison: Callable[[Stored, Exception], Awaitable[None]],
        attempts: CountsAttempts | None,
        room: Callable[[], int] | None = None,
        concurrency: int = 64,
        ack_wait_s: float = 30.0,
        max_deliver: int = 5,
        deletes: bool = False,
    ) -> None:
        self._bus = bus
        self._stream = stream
        self._durable = durable
        self._patterns = patterns
        self._handle = handle
        self._on_poison = on_poison
        self._attempts = attempts
        self._room = room or (lambda: concurrency)
        self._concurrency = concurrency
        self._ack_wait_s = ack_wait_s
        self._max_deliver = max_deliver
        self._deletes = deletes
        # The stream sequences of messages that failed in this process. Another process may have
        # processed some of these messages since then.
        self._failed: set[int] = set()
        self._tasks: set[asyncio.Task[None]] = set()
        self._in_hand: set[int] = set()  # stream sequences of messages being handled
        self._taken_up: set[int] = set()  # stream sequences that `take_up` has handled
        self._stopped = asyncio.Event()
        what = f"taking work from {durable}"
        self._pull = PullLoop(
            bus.jetstream, stream, self, batch=concurrency, look_s=CHECK_S, what=what
        )

    async def run(self) -> None:
        """Take messages until cancelled; then wait for the handlers that are running."""
        self._stopped.clear()
        measured, name = self._bus.jetstream.waiting, (self._stream, self._durable)
        measured[name] = self.waiting
        try:
            await self._pull.run()
        finally:
            measured.pop(name, None)
            self._stopped.set()
            if self._tasks:
                await asyncio.wait(self._tasks)

    async def take_up(self, upto: int | None = None) -> int:
        """Handle messages that other processes hold unacknowledged, before `ack_wait_s` is over.

        Call this when a process that takes messages of this consumer has ended. A running process
        may hold some of the messages, so handling a message twice must do no harm. The same holds
        for every repeated delivery. This method acknowledges no message: the server delivers each
        message once more, and the handler then finds that the work is done. A handler that raises
        `Retry` is called up to three times; a handler that fails is not called again.

        With `upto`, this method leaves out messages beyond that stream sequence, and messages that
        an earlier call has handled.

        Returns the highest stream sequence that has been delivered to any process; 0 if the
        consumer does not exist yet.

        Raises:
            BusError: the server does not answer or refuses the request.
        """
        try:
            info = await self._bus.jetstream.api(f"CONSUMER.INFO.{self._stream}.{self._durable}")
        except ApiError as error:
            if error.code != CONSUMER_NOT_FOUND:
                raise
            return 0  # no process has taken a message yet
        begin, delivered = info["ack_floor"]["stream_seq"] + 1, int(info["delivered"]["stream_seq"])
        last = delivered if upto is None else min(upto, delivered)
        self._taken_up = {sequence for sequence in self._taken_up if sequence >= begin}
        mine = 0 if upto is None else len(self._in_hand)
        if info["num_ack_pending"] <= mine or last < begin:
            return delivered
        skipped = self._in_hand if upto is None else self._in_hand | self._taken_up
        side_by_side = asyncio.Semaphore(TAKE_UP_AT_ONCE)

        async def handled(stored: Stored) -> None:
            for _ in range(TAKE_UP_TRIES):
                async with side_by_side:
                    log_fields.bind(run_id_of(stored.subject))
                    if self._room() <= 0:
                        return
                    try:
                        await self._attempt(stored)
                        self._taken_up.add(stored.sequence)
                        return None
                    except Retry as retry:
                        delay_s = retry.delay_s
                    except Exception:
                        return log.exception("%s: failed, it is delivered again", stored.subject)
                await self._pause(min(delay_s, TAKE_UP_PAUSE_S))

        for pattern in self._patterns:
            found = []
            async for stored in replay(self._bus, self._stream, pattern, begin):
                if stored.sequence > last:
                    break
                if stored.sequence not in skipped:
                    stored.delivered = 0  # 0 means that the number of deliveries is unknown
                    found.append(stored)
            await asyncio.gather(*map(handled, found))
        return delivered

    async def waiting(self) -> int:
        """Return how many messages no process has taken yet; 0 if the consumer does not exist yet.

        Raises:
            BusError: the server does not answer or refuses the request.
        """
        try:
            info = await self._bus.jetstream.api(f"CONSUMER.INFO.{self._stream}.{self._durable}")
        except ApiError as error:
            if error.code != CONSUMER_NOT_FOUND:
                raise
            return 0
        return int(info["num_pending"])

    async def create(self) -> str:
        """Make the durable consumer if it does not exist; part of `PullUse`."""
        call = f"CONSUMER.DURABLE.CREATE.{self._stream}.{self._durable}"
        config = {
            "stream_name": self._stream,
            "config": {
                "durable_name": self._durable,
                "filter_subjects": list(self._patterns),
                "ack_policy": "explicit",
                "ack_wait": int(self._ack_wait_s * NANO),
                "max_deliver": SERVER_LIMIT,
                "max_ack_pending": MAX_PENDING,
            },
        }
        await first_answer(lambda: self._bus.jetstream.api(call, config))
        return self._durable

    def room(self) -> int:
        """Return how many messages may be under way at most; part of `PullUse`."""
        # `_room` may not yet count a message whose handler has just begun. So the running handlers
        # are subtracted.
        return min(self._concurrency, self._room()) - len(self._tasks)

    def on_message(self, delivery: Delivery) -> None:
        """Handle a message in a separate task; part of `PullUse`."""
        task = asyncio.create_task(self._work(delivery))
        self._tasks.add(task)
        task.add_done_callback(self._done)
        self._pull.wake.set()

    async def work(self) -> bool:
        """Return False, since tasks process the messages; part of `PullUse`."""
        return False

    def _done(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        self._pull.wake.set()

    async def _work(self, delivery: Delivery) -> None:
        run_id = run_id_of(delivery.stored.subject)
        log_fields.bind(run_id)
        log_fields.traced(run_id, delivery.stored.headers.get("traceparent"))
        heartbeat = asyncio.create_task(self._heartbeat(delivery))
        self._in_hand.add(delivery.stored.sequence)
        try:
            verdict = await self._verdict(delivery)
        except Exception:
            log.exception(
                "%s: could not be given up, it is delivered again; traceback %s",
                delivery.stored.subject,
                traceback_id(delivery.stored.subject, delivery.stored.sequence),
            )
            return
        finally:
            heartbeat.cancel()
            self._in_hand.discard(delivery.stored.sequence)
        if self._deletes and not verdict.startswith(AGAIN):
            await self._answer_and_delete(delivery, verdict)
            return
        with contextlib.suppress(NatsError):  # without an answer, the message is redelivered
            await self._bus.jetstream.connection.publish(delivery.reply, verdict)

    async def _answer_and_delete(self, delivery: Delivery, verdict: bytes) -> None:
        """Answer the server, and then delete the message.

        If the message were deleted first, the server would report the message as terminated.
        """
        stored = delivery.stored
        try:
            await self._bus.jetstream.request(delivery.reply, verdict)
        except BusError as error:
            log.debug("%s may be delivered again: %s", stored.subject, error)
        while not self._stopped.is_set():
            try:
                await leader.delete(self._bus, self._stream, stored.sequence)
                return
            except BusError as error:
                log.warning("%s is deleted in %g s: %s", stored.subject, AGAIN_S, error)
                await self._pause(AGAIN_S)

    async def _verdict(self, delivery: Delivery) -> bytes:
        """Handle a message; return the answer to the server: done, deliver again, or never deliver
        again."""
        stored = delivery.stored
        while not self._stopped.is_set():
            try:
                await self._attempt(stored)
            except Retry as retry:
                await self._pause(retry.delay_s)
            except (BusUnavailable, OutcomeUnknown) as error:
                log.warning("%s: retried, since the bus was away: %s", stored.subject, error)
                await self._pause(AGAIN_S)
            except NeverFinished as error:
                await self._on_poison(stored, error)
                return b"+TERM " + BURIED.encode()
            except Exception as error:
                is_last = stored.delivered >= self._max_deliver
                if is_last and self._has_failed(stored):
                    await self._on_poison(stored, error)
                    self._failed.discard(stored.sequence)
                    return b"+TERM " + BURIED.encode()
                self._failed.add(stored.sequence)
                log.exception(
                    "%s: attempt %d failed, traceback %s",
                    stored.subject,
                    stored.delivered,
                    traceback_id(stored.subject, stored.sequence),
                )
                if not is_last:
                    return _nak(AGAIN_S)
                await self._pause(AGAIN_S)
            else:
                self._failed.discard(stored.sequence)
                return b"+ACK"
        return _nak(0)

    async def _attempt(self, stored: Stored) -> None:
        if self._attempts is None:
            await self._handle(stored)
            return
        async with self._attempts.at(self._durable, stored):
            await self._handle(stored)

    def _has_failed(self, stored: Stored) -> bool:
        """Return False for a repeated delivery of a message that has not failed in this process."""
        if len(self._failed) > MAX_PENDING:
            self._failed.clear()
        return stored.delivered == 1 or stored.sequence in self._failed

    async def _pause(self, delay_s: float) -> None:
        """Wait for `delay_s` seconds, or until `run` ends.

        When `run` ends, the message is given back at once, so that another process can take it.
        """
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(delay_s):
                await self._stopped.wait()

    async def _heartbeat(self, delivery: Delivery) -> None:
        while True:
            await asyncio.sleep(self._ack_wait_s / 3)
            with contextlib.suppress(NatsError):
                await self._bus.jetstream.connection.publish(delivery.reply, b"+WPI")


def _nak(delay_s: float) -> bytes:
    return AGAIN + b" " + orjson.dumps({"delay": int(delay_s * NANO)})
