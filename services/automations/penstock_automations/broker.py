"""Runs FastStream pull subscribers on the bus's connection, with manual acknowledgement.

The broker works on the connection of the `Bus`, so it has the bus's NATS user, TLS and reconnects.
FastStream makes no streams and no consumers: the bus makes the streams, and `declare` makes the
durable consumers.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Self

from faststream import AckPolicy
from faststream.nats import JStream, NatsBroker, PullSub

from penstock import log_fields
from penstock.bus import Bus, NatsTimeout
from penstock.bus.connection.retry import first_answer
from penstock.bus.read.fetching import Fetching
from penstock.bus.read.pull import Delivery
from penstock.bus.subjects import run_id_of

log = logging.getLogger(__name__)

_NANO = 1_000_000_000
_POLL_S = 1.0  # seconds after which FastStream checks whether it must stop
_AT_ONCE = 16  # how many single messages of a consumer are handled at once
AGAIN_S = 5.0  # seconds until a message is delivered again after its handler failed unexpectedly


@dataclass(frozen=True, slots=True)
class Consumer:
    """The configuration of a durable consumer.

    `max_pending` is the number of messages that may be unacknowledged at once. If a message is not
    acknowledged for `ack_wait_s` seconds, the server delivers it again. The server does this
    without a limit, so the handler must give up a message that always fails.
    """

    stream: str
    durable: str
    subjects: tuple[str, ...]
    ack_wait_s: float
    max_pending: int = 1000
    from_now: bool = False  # whether a new consumer skips the messages that are stored already


async def declare(bus: Bus, consumer: Consumer) -> None:
    """Make the durable consumer, or change the subjects of the existing consumer.

    Raises:
        BusError: the server does not answer, or refuses the consumer.
    """
    config: dict[str, Any] = {
        "durable_name": consumer.durable,
        "filter_subjects": list(consumer.subjects),
        "deliver_policy": "new" if consumer.from_now else "all",
        "ack_policy": "explicit",
        "ack_wait": int(consumer.ack_wait_s * _NANO),
        "max_ack_pending": consumer.max_pending,
        "max_deliver": -1,
    }
    call = f"CONSUMER.DURABLE.CREATE.{consumer.stream}.{consumer.durable}"
    body = {"stream_name": consumer.stream, "config": config}
    await first_answer(lambda: bus.jetstream.api(call, body))


class Taken:
    """A message that a subscriber has fetched. The methods answer the server."""

    __slots__ = ("_delivery", "_fetching", "stored")

    def __init__(self, delivery: Delivery, fetching: Fetching) -> None:
        self._delivery = delivery
        self._fetching = fetching
        self.stored = delivery.stored

    async def ack(self) -> None:
        """Acknowledge the message, so that the server does not deliver the message again."""
        await self._fetching.ack(self._delivery)

    async def ack_and_wait(self) -> None:
        """Acknowledge the message, and wait until the server confirms this; then the message may be
        deleted.

        Raises:
            BusError: it is unknown whether the server has the acknowledgement.
        """
        await self._fetching.ack_and_wait(self._delivery)

    async def give_back(self, delay_s: float) -> None:
        """Have the server deliver the message again after `delay_s` seconds."""
        await self._fetching.give_back(self._delivery, delay_s)

    async def working(self) -> None:
        """Report to the server that the message is still being handled."""
        await self._fetching.working(self._delivery)

    def mark_handled(self) -> None:
        """Count the message as handed to its handler, so that another message may be fetched."""
        self._fetching.handled(self._delivery)

    # The properties that FastStream reads.

    @property
    def subject(self) -> str:
        """The message's subject."""
        return self.stored.subject

    @property
    def headers(self) -> Mapping[str, str]:
        """The message's headers."""
        return self.stored.headers

    @property
    def data(self) -> bytes:
        """The message's payload."""
        return self.stored.payload


class _Subscription:
    """Gives FastStream batches of messages, in place of nats-py's pull subscription."""

    def __init__(self, fetching: Fetching, size: int) -> None:
        self._fetching = fetching
        self._size = size
        fetching.start()

    async def fetch(self, batch: int, timeout: float) -> list[Taken]:
        """Return up to `batch` messages that have arrived; wait for the first message.

        FastStream calls this method again until the batch is full or a call returns nothing. This
        method waits only for the first message, so that a single message is handled at once.
        """
        is_rest = batch < self._size
        if not await self._fetching.wait(0 if is_rest else timeout):
            raise NatsTimeout
        return [Taken(each, self._fetching) for each in self._fetching.take(batch)]

    async def unsubscribe(self) -> None:
        """Fetch no more."""
        await self._fetching.stop()


class _Subscriptions:
    """The part of nats-py's JetStream that FastStream's pull subscribers use."""

    def __init__(self) -> None:
        self._made: dict[tuple[str, str], Callable[[], _Subscription]] = {}

    def add(self, consumer: Consumer, make: Callable[[], _Subscription]) -> None:
        """Register a consumer: its subscribers fetch from the subscription that `make` returns."""
        self._made[consumer.stream, consumer.durable] = make

    async def pull_subscribe(self, stream: str, durable: str, **_: object) -> _Subscription:
        """Return the subscription of a consumer."""
        return self._made[stream, durable]()


class _OnBus(NatsBroker):
    """A broker that uses the bus's connection, and does not close it."""

    def __init__(self, bus: Bus, grace_s: float, subscriptions: _Subscriptions) -> None:
        # FastStream's own log lines would contain payloads; handlers log for themselves.
        super().__init__(apply_types=False, logger=None, graceful_timeout=grace_s)
        self._bus = bus
        self._subscriptions: Any = subscriptions

    async def _connect(self) -> Any:
        self.config.connect(self._bus.client)
        # Fetch with `_Subscriptions`. nats-py's `fetch` takes three times as long for each message.
        # A request of nats-py for several messages returns only when all messages have come or the
        # request's time is over.
        self.config.connection_state.connect(self._bus.client, self._subscriptions)
        return self._bus.client

    async def stop(self, *error: Any) -> None:
        self._connection = None  # NatsBroker would drain the connection, which belongs to the bus
        await super().stop(*error)


class Broker:
    """The subscribers of one process."""

    def __init__(self, bus: Bus, grace_s: float) -> None:
        self._bus = bus
        self._subscriptions = _Subscriptions()
        self._broker = _OnBus(bus, grace_s, self._subscriptions)
        self._grace_s = grace_s
        # for each consumer: the running handlers of single messages
        self._running: list[set[asyncio.Task[None]]] = []

    def batches(
        self,
        consumer: Consumer,
        size: int,
        handle: Callable[[Sequence[Taken]], Awaitable[None]],
        room: Callable[[], int] | None = None,
    ) -> Callable[[], None]:
        """Call `handle` with up to `size` messages at a time, one batch after another.

        `room` returns how many more messages may be fetched, beyond the messages that `handle` has
        got. Without `room`, the next batch is fetched while a batch is handled. The caller calls
        the returned function when `room` has changed.
        """
        names = consumer.stream, consumer.durable
        fetching = Fetching(self._bus, *names, size, consumer.ack_wait_s, room)

        async def on_batch(batch: list[Taken]) -> None:
            try:
                await handle(batch)
            except Exception:  # without this handler, the first failure would end the fetching loop
                log.exception("%d messages are handled again", len(batch))
                for each in batch:
                    await each.give_back(AGAIN_S)
            finally:
                for each in batch:
                    each.mark_handled()

        self._subscriptions.add(consumer, lambda: _Subscription(fetching, size))
        subscriber = self._broker.subscriber(
            consumer.subjects[0],
            stream=JStream(consumer.stream, declare=False),
            durable=consumer.durable,
            pull_sub=PullSub(batch_size=size, timeout=_POLL_S, batch=True),
            ack_policy=AckPolicy.MANUAL,
            decoder=_undecoded,
        )
        subscriber(on_batch)
        return fetching.more

    def messages(self, consumer: Consumer, handle: Callable[[Taken], Awaitable[None]]) -> None:
        """Call `handle` with each message; up to 16 calls run at once."""
        running: set[asyncio.Task[None]] = set()

        async def on_message(taken: Taken) -> None:
            log_fields.bind(run_id_of(taken.subject))
            try:
                await handle(taken)
            # without this handler, the message would wait until `ack_wait` has passed
            except Exception:
                log.exception("%s is handled again", taken.stored.subject)
                await taken.give_back(AGAIN_S)

        async def on_batch(batch: Sequence[Taken]) -> None:
            for taken in batch:
                task = asyncio.create_task(on_message(taken))
                running.add(task)
                task.add_done_callback(on_done)

        def on_done(task: asyncio.Task[None]) -> None:
            running.discard(task)
            more()

        more = self.batches(consumer, _AT_ONCE, on_batch, lambda: _AT_ONCE - len(running))
        self._running.append(running)

    async def start(self) -> None:
        """Start all subscribers. Their consumers must exist (`declare`)."""
        await self._broker.start()

    async def stop(self) -> None:
        """Take no more messages, and wait for the handlers that are running.

        Call this before the bus is closed. On a closed connection, FastStream's loops would ask for
        messages without a pause, and no other task of the process could run.
        """
        await self._broker.stop()
        left = [task for running in self._running for task in running]
        if left:
            await asyncio.wait(left, timeout=self._grace_s)
            for task in left:
                task.cancel()
            await asyncio.wait(left)

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(self, *error: object) -> None:
        await self.stop()


async def _undecoded(message: Any, _original: Any = None) -> Any:
    return message.raw_message
