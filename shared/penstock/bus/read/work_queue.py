"""Processes messages of a durable consumer, and acknowledges a message when its handler returns."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from typing import Any, Protocol, TypeAlias

import orjson
from nats.errors import Error as NatsError

from penstock import log_fields
from penstock.bus.connection.jetstream import HasJetStream
from penstock.bus.connection.retry import first_answer
from penstock.bus.errors import (
    CONSUMER_NOT_FOUND,
    ApiError,
    BusError,
    ContentErased,
    MessageTooLarge,
)
from penstock.bus.messages import Stored, Unreadable
from penstock.bus.read import leader
from penstock.bus.read.direct import replay
from penstock.bus.read.pull import HEARTBEAT_S, NANO, Delivery, PullLoop
from penstock.bus.subjects import run_id_of, traceback_id

log = logging.getLogger(__name__)

AGAIN_S = 1.0  # seconds before a step that failed is repeated
# For `take_up`: the most handlers that run at once, the most calls of a handler that raises
# `Retry`, and the longest pause between two calls, in seconds.
TAKE_UP_AT_ONCE, TAKE_UP_TRIES, TAKE_UP_PAUSE_S = 16, 3, 0.3
# The number of deliveries after which a message whose handler fails is given up.
MAX_DELIVER = 5
# The server's limit of deliveries of one message. Even if every process that takes the message is
# killed, the limit is reached only after hours.
SERVER_LIMIT = 1000
CANCEL_S = 1.0  # the most seconds that a cancelled handler may take to end
CHECK_S = 0.2  # seconds between two checks whether `Consumer.room` has grown
# The reason that a work queue gives when it ends a message that it has made a dead letter. The
# server publishes the reason, and `admin.advisories` makes no second dead letter of the message.
BURIED = "penstock: the message is a dead letter"
MAX_PENDING = 10_000  # the most messages that are delivered and not acknowledged

# The answers to the server.
DONE = b"+ACK"
NEVER_AGAIN = b"+TERM " + BURIED.encode()
WORKING = b"+WPI"  # the message is still being handled

Handle: TypeAlias = Callable[[Stored], Awaitable[None]]
GiveUp: TypeAlias = Callable[[Stored, Exception], Awaitable[None]]


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
        """Return the context in which a message may kill this process. Entering it raises
        NeverFinished if earlier processes did not survive it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Consumer:
    """A durable consumer of a stream, and the limits for the processing of its messages.

    `subjects` are the consumer's filters. If another component changes the filters, pass `make`,
    which makes the consumer or changes it, and may raise BusError.

    `room` returns how many handlers may run now. Pass `room` where this number depends on more than
    the number of running handlers; it is at most `at_once`.

    With `deletes`, a message that was acknowledged or given up is deleted from the stream. The
    stream then needs no age limit. If the process ends after it has answered and before it has
    deleted the message, the message stays in the stream. So give such messages a TTL.
    """

    stream: str
    durable: str
    subjects: tuple[str, ...] = ()
    make: Callable[[], Awaitable[None]] | None = None
    ack_wait_s: float = 30.0
    at_once: int = 64  # the most handlers that run at once
    room: Callable[[], int] | None = None
    deletes: bool = False
    # the seconds that running handlers get to finish when the work stops
    finish_s: float = 5.0


class WorkQueue:
    """Processes messages of one durable consumer.

    When a handler returns, the queue acknowledges the message. When a handler raises `Retry` or a
    BusError, the same process keeps the message and calls the handler again; this does not count as
    a delivery. Any other exception is logged, and the server delivers the message again, up to
    `MAX_DELIVER` times. Then `give_up` gets the message.

    The server counts all deliveries, including deliveries to processes that were killed or stopped.
    So a message with `MAX_DELIVER` deliveries may never have failed. Therefore, this process tries
    the message once more if the message has not failed in this process.

    A delivery without an answer does not count. `attempts` finds the messages that kill the
    processes that handle them, and `give_up` gets such a message with NeverFinished. Pass None if
    the handler itself records the steps that may kill its process. If a message cannot be given up,
    the server stops delivering it after `SERVER_LIMIT` deliveries and publishes an advisory.
    """

    def __init__(
        self,
        bus: HasJetStream,
        consumer: Consumer,
        handle: Handle,
        *,
        give_up: GiveUp,
        attempts: CountsAttempts | None,
    ) -> None:
        self._bus = bus
        self._consumer = consumer
        self._handle = handle
        self._give_up = give_up
        self._attempts = attempts
        # The stream sequences of messages that failed in this process. Another process may have
        # processed some of these messages since then.
        self._failed: set[int] = set()
        # by stream sequence: the messages that are being handled, with their newest deliveries
        self._in_hand: dict[int, Delivery] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._taken_up: set[int] = set()  # stream sequences that `take_up` has handled
        self._stopped = asyncio.Event()
        self._pull = PullLoop(
            bus.jetstream,
            consumer.stream,
            self,
            batch=consumer.at_once,
            look_s=CHECK_S if consumer.room is not None else HEARTBEAT_S,
            what=f"taking work from {consumer.durable}",
        )

    async def run(self) -> None:
        """Take messages until cancelled; then give the running handlers `finish_s` to finish.

        Handlers that have not finished then are cancelled, and their messages are given back, so
        that another process can take them at once.
        """
        self._stopped.clear()
        measured, name = (
            self._bus.jetstream.waiting,
            (self._consumer.stream, self._consumer.durable),
        )
        measured[name] = self.count_waiting
        reporting = asyncio.create_task(self._report_work())
        try:
            await self._pull.run()
        finally:
            measured.pop(name, None)
            self._stopped.set()
            try:
                await self._finish()
            finally:
                reporting.cancel()

    async def _finish(self) -> None:
        try:
            if self._tasks:
                await asyncio.wait(self._tasks, timeout=self._consumer.finish_s)
        finally:  # also if `run` is cancelled again
            for task in self._tasks:
                task.cancel()
            if self._tasks:
                await asyncio.wait(self._tasks, timeout=CANCEL_S)

    async def count_waiting(self) -> int:
        """Return how many messages no process has taken yet; 0 without the consumer."""
        info = await self._info()
        return int(info["num_pending"]) if info is not None else 0

    async def _info(self) -> dict[str, Any] | None:
        call = f"CONSUMER.INFO.{self._consumer.stream}.{self._consumer.durable}"
        try:
            return await self._bus.jetstream.api(call)
        except ApiError as error:
            if error.code != CONSUMER_NOT_FOUND:
                raise
            return None

    # The messages that other processes hold

    async def take_up(self, upto: int | None = None) -> int:
        """Handle messages that other processes hold unacknowledged, before `ack_wait_s` is over.

        Call this when a process that takes messages of this consumer has ended. A running process
        may hold some of the messages, so handling one twice must do no harm, as with every repeated
        delivery. This method acknowledges no message: the server delivers each once more, and the
        handler then finds that the work is done. A handler that raises `Retry` is called up to
        three times; a handler that fails is not called again.

        With `upto`, this method leaves out messages beyond that stream sequence, and messages that
        an earlier call has handled.

        Returns the highest stream sequence that has been delivered to any process; 0 if the
        consumer does not exist yet.
        """
        info = await self._info()
        if info is None:
            return 0  # no process has taken a message yet
        begin, delivered = info["ack_floor"]["stream_seq"] + 1, int(info["delivered"]["stream_seq"])
        last = delivered if upto is None else min(upto, delivered)
        self._taken_up = {sequence for sequence in self._taken_up if sequence >= begin}
        mine = 0 if upto is None else len(self._in_hand)
        if info["num_ack_pending"] <= mine or last < begin:
            return delivered
        skipped = set(self._in_hand) if upto is None else self._in_hand.keys() | self._taken_up
        side_by_side = asyncio.Semaphore(TAKE_UP_AT_ONCE)
        for pattern in self._consumer.subjects:
            found = []
            async for stored in replay(self._bus, self._consumer.stream, pattern, begin):
                if stored.sequence > last:
                    break
                if stored.sequence not in skipped:
                    stored.delivered = 0  # 0 means that the number of deliveries is unknown
                    found.append(stored)
            await asyncio.gather(*(self._take_up_one(each, side_by_side) for each in found))
        return delivered

    async def _take_up_one(self, stored: Stored, side_by_side: asyncio.Semaphore) -> None:
        for _ in range(TAKE_UP_TRIES):
            async with side_by_side:
                log_fields.bind(run_id_of(stored.subject))
                if self._free_places() <= 0:
                    return
                try:
                    await self._attempt(stored)
                except Retry as retry:
                    delay_s = retry.delay_s
                except Exception:
                    log.exception("%s: failed, it is delivered again", stored.subject)
                    return
                else:
                    self._taken_up.add(stored.sequence)
                    return
            await self._pause(min(delay_s, TAKE_UP_PAUSE_S))

    # The methods of `PullUse`

    async def create(self) -> str:
        consumer = self._consumer
        if consumer.make is not None:
            await consumer.make()
            return consumer.durable
        call = f"CONSUMER.DURABLE.CREATE.{consumer.stream}.{consumer.durable}"
        config = {
            "stream_name": consumer.stream,
            "config": {
                "durable_name": consumer.durable,
                "filter_subjects": list(consumer.subjects),
                "ack_policy": "explicit",
                "ack_wait": int(consumer.ack_wait_s * NANO),
                "max_deliver": SERVER_LIMIT,
                "max_ack_pending": MAX_PENDING,
            },
        }
        await first_answer(lambda: self._bus.jetstream.api(call, config))
        return consumer.durable

    def room(self) -> int:
        # `Consumer.room` may not yet count a message whose handler has just begun. So the running
        # handlers are subtracted.
        return min(self._consumer.at_once, self._free_places()) - len(self._tasks)

    def _free_places(self) -> int:
        return self._consumer.at_once if self._consumer.room is None else self._consumer.room()

    def on_message(self, delivery: Delivery) -> None:
        sequence = delivery.stored.sequence
        is_repeated = sequence in self._in_hand
        self._in_hand[sequence] = delivery
        if is_repeated:
            # The server got no report in time, as from a process that was suspended. A second
            # handler beside the first could do the work twice. The first handler's answer goes to
            # the newest delivery.
            subject = delivery.stored.subject
            log.warning(
                "%s: delivered again while it is handled",
                subject,
                extra=log_fields.run_of(subject),
            )
        else:
            task = asyncio.create_task(self._work(delivery.stored))
            self._tasks.add(task)
            task.add_done_callback(self._on_done)
        self._pull.wake.set()

    async def work(self) -> bool:
        return False

    def _on_done(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        self._pull.wake.set()

    # The handling of one message

    async def _work(self, stored: Stored) -> None:
        run_id = run_id_of(stored.subject)
        log_fields.bind(run_id)
        log_fields.traced(run_id, stored.headers.get("traceparent"))
        try:
            answer = await self._answer_to(stored)
        except asyncio.CancelledError:
            delivery = self._in_hand.pop(stored.sequence)
            if self._stopped.is_set() and self._bus.jetstream.is_ready:
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(CANCEL_S):
                        await self._answer(delivery, again_after(0))
            raise
        except Exception:
            del self._in_hand[stored.sequence]
            log.exception(
                "%s: could not be given up, it is delivered again; traceback %s",
                stored.subject,
                traceback_id(stored.subject, stored.sequence),
            )
            return
        delivery = self._in_hand.pop(stored.sequence)
        if self._consumer.deletes and answer in (DONE, NEVER_AGAIN):
            await self._answer_and_delete(delivery, answer)
        else:
            await self._answer(delivery, answer)

    async def _answer_to(self, stored: Stored) -> bytes:
        has_waited = False
        while not self._stopped.is_set():
            try:
                await self._bus.jetstream.content.open(stored)
                if isinstance(stored.payload, Unreadable):
                    return await self._without_content(stored, stored.payload.error)
                await self._attempt(stored)
            except Retry as retry:
                await self._pause(retry.delay_s)
            except NeverFinished as error:
                await self._give_up(stored, error)
                return NEVER_AGAIN
            except Exception as error:
                if isinstance(error, BusError) and not isinstance(error, MessageTooLarge):
                    # Nothing is wrong with the message. Only the first failure is a warning,
                    # because an outage may last for hours.
                    level = logging.DEBUG if has_waited else logging.WARNING
                    log.log(level, "%s: tried again every second: %s", stored.subject, error)
                    has_waited = True
                elif not self._is_last(stored):
                    self._log_failure(stored)
                    return again_after(AGAIN_S)
                elif self._has_failed(stored):
                    await self._give_up(stored, error)
                    self._failed.discard(stored.sequence)
                    return NEVER_AGAIN
                else:
                    self._log_failure(stored)
                await self._pause(AGAIN_S)
            else:
                self._failed.discard(stored.sequence)
                return DONE
        return again_after(0)

    async def _without_content(self, stored: Stored, error: Exception) -> bytes:
        if isinstance(error, ContentErased):
            log.info("%s: not handled: %s", stored.subject, error)
            return DONE
        await self._give_up(stored, error)
        return NEVER_AGAIN

    async def _attempt(self, stored: Stored) -> None:
        if self._attempts is None:
            await self._handle(stored)
            return
        async with self._attempts.at(self._consumer.durable, stored):
            await self._handle(stored)

    def _is_last(self, stored: Stored) -> bool:
        return stored.delivered >= MAX_DELIVER

    def _log_failure(self, stored: Stored) -> None:
        self._failed.add(stored.sequence)
        log.exception(
            "%s: attempt %d failed, traceback %s",
            stored.subject,
            stored.delivered,
            traceback_id(stored.subject, stored.sequence),
        )

    def _has_failed(self, stored: Stored) -> bool:
        """Return False for a repeated delivery of a message that has not failed in this process."""
        if len(self._failed) > MAX_PENDING:
            self._failed.clear()
        return stored.delivered == 1 or stored.sequence in self._failed

    async def _pause(self, delay_s: float) -> None:
        """Wait for `delay_s` seconds, or until `run` ends. When `run` ends, the message is given
        back at once, so that another process can take it."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(delay_s):
                await self._stopped.wait()

    # The answers to the server

    async def _report_work(self) -> None:
        """Report the messages that are handled for long, so that no other process gets them.

        A message is first reported when a third to two thirds of `ack_wait_s` have passed. Most
        messages are handled before, and cost no report.
        """
        known: set[int] = set()  # the messages that were in hand at the last look
        while True:
            await asyncio.sleep(self._consumer.ack_wait_s / 3)
            for sequence, delivery in tuple(self._in_hand.items()):
                if sequence in known:
                    await self._answer(delivery, WORKING)
            known = set(self._in_hand)

    async def _answer(self, delivery: Delivery, answer: bytes) -> None:
        with contextlib.suppress(NatsError):  # without an answer, the message is redelivered
            await self._bus.jetstream.connection.publish(delivery.reply, answer)

    async def _answer_and_delete(self, delivery: Delivery, answer: bytes) -> None:
        """Answer the server, and then delete the message. If the message were deleted first, the
        server would report the message as terminated."""
        stored = delivery.stored
        try:
            await self._bus.jetstream.request(delivery.reply, answer)
        except BusError as error:
            log.debug("%s may be delivered again: %s", stored.subject, error)
        while not self._stopped.is_set():
            try:
                await leader.delete(self._bus, self._consumer.stream, stored.sequence)
                return
            except BusError as error:
                log.warning("%s is deleted in %g s: %s", stored.subject, AGAIN_S, error)
                await self._pause(AGAIN_S)


def again_after(delay_s: float) -> bytes:
    return b"-NAK " + orjson.dumps({"delay": int(delay_s * NANO)})
