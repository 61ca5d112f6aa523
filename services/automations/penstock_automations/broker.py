"""The FastStream broker: pull subscribers on the bus's connection, with manual acknowledgement.

The broker works on the connection of the `Bus`, so it has the bus's NATS user, TLS and reconnects.
The streams and the durable consumers are declared by the bus (`consumer`), not by FastStream.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Any, Self

from faststream import AckPolicy
from faststream.nats import JStream, NatsBroker, PullSub

from penstock.bus import Bus, Msg, NatsError, Stored
from penstock.bus.connection.retry import first_answer

log = logging.getLogger(__name__)

_NANO = 1_000_000_000
_FILL_S = 0.05  # how long a batch waits to fill, when another process took its messages
_POLL_S = 1.0  # how long a request for one message stays open
_QUIET_S = 1.0  # how long batches are asked for after a message that others follow
AGAIN_S = 5.0  # seconds before a message comes again whose handler failed unexpectedly


@dataclass(frozen=True, slots=True)
class Consumer:
    """A durable consumer. `max_pending`: how many messages may be unacknowledged at once.

    The server delivers a message again when it was not acknowledged for `ack_wait_s` seconds, as
    often as necessary: a message that fails again and again is given up by its handler.
    """

    stream: str
    durable: str
    subjects: tuple[str, ...]
    ack_wait_s: float
    max_pending: int = 1000
    from_now: bool = False  # whether a new consumer skips the messages that are stored already


async def declare(bus: Bus, consumer: Consumer) -> None:
    """Make the durable consumer, or change the subjects of the one that exists.

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
    """A message that a subscriber has taken, and how it is answered."""

    __slots__ = ("_msg", "pending", "stored")

    def __init__(self, msg: Msg) -> None:
        self._msg = msg
        metadata = msg.metadata
        self.pending = metadata.num_pending  # how many messages of the consumer come after this one
        self.stored = Stored(
            msg.subject,
            metadata.sequence.stream,
            dict(msg.headers or {}),
            msg.data,
            metadata.num_delivered or 1,
        )

    async def ack(self) -> None:
        """Tell the server that the message is done. Without an answer, it is delivered again."""
        await self._answer(self._msg.ack)

    async def give_back(self, delay_s: float) -> None:
        """Have the server deliver the message again after `delay_s` seconds."""
        await self._answer(lambda: self._msg.nak(delay=delay_s))

    async def working(self) -> None:
        """Tell the server that the message is still being worked on."""
        await self._answer(self._msg.in_progress)

    async def _answer(self, send: Callable[[], Awaitable[None]]) -> None:
        with contextlib.suppress(NatsError):
            await send()


class _OnBus(NatsBroker):
    """A broker on a connection that exists already, and that it does not close."""

    def __init__(self, bus: Bus, grace_s: float) -> None:
        # FastStream's own log lines would contain payloads; handlers log for themselves.
        super().__init__(apply_types=False, logger=None, graceful_timeout=grace_s)
        self._bus = bus

    async def _connect(self) -> Any:
        self.config.connect(self._bus.client)
        return self._bus.client

    async def stop(self, *error: Any) -> None:
        self._connection = None  # NatsBroker would drain the connection, which is the bus's
        await super().stop(*error)


class _Fetches:
    """Sets what the next fetch of a subscriber asks for: `pull`, which FastStream reads each time.

    A fetch for several messages lasts until all have come or its time is over. In a quiet time it
    would delay each message, or poll the server twenty times per second. So a fetch asks for one
    message, unless the last message said that others wait behind it.
    """

    def __init__(self, size: int) -> None:
        self._size = size
        self.pull = PullSub(batch_size=1, timeout=_POLL_S)
        self._quiet: asyncio.TimerHandle | None = None

    def follow(self, pending: int) -> None:
        """Ask for as many messages as wait behind the newest one that was taken."""
        if self._quiet is not None:
            self._quiet.cancel()
        if pending == 0:
            return self._ask_for_one()
        self.pull.batch_size, self.pull.timeout = min(self._size, pending), _FILL_S
        # Another process may take all that waits, and no message would end the short requests.
        self._quiet = asyncio.get_running_loop().call_later(_QUIET_S, self._ask_for_one)

    def _ask_for_one(self) -> None:
        self.pull.batch_size, self.pull.timeout = 1, _POLL_S


class _Batches:
    """Collects the messages of one fetch, whose handlers FastStream calls at once."""

    def __init__(
        self, fetches: _Fetches, handle: Callable[[Sequence[Taken]], Awaitable[None]]
    ) -> None:
        self._fetches = fetches
        self._handle = handle
        self._open: list[Taken] | None = None
        self._turn = asyncio.Lock()

    async def take(self, message: Msg) -> None:
        """Add a message to the open batch; the first message of a batch handles the batch."""
        taken = Taken(message)
        if self._open is not None:
            self._open.append(taken)
            return
        batch = self._open = [taken]
        await asyncio.sleep(0)  # the other handlers of this fetch begin
        self._open = None
        batch.sort(key=lambda each: each.stored.sequence)
        self._fetches.follow(min(each.pending for each in batch))
        async with self._turn:
            try:
                await self._handle(batch)
            except Exception:  # without this, the fetching loop would end with its first failure
                log.exception("%d messages are handled again", len(batch))
                for each in batch:
                    await each.give_back(AGAIN_S)


class Broker:
    """The subscribers of one process."""

    def __init__(self, bus: Bus, grace_s: float) -> None:
        self._broker = _OnBus(bus, grace_s)
        # A pull subscriber of FastStream takes `_INBOX.` unless it is told another prefix, and the
        # service's NATS user may not subscribe to that.
        self._inbox_prefix = f"{bus.settings.inbox_prefix}.".encode()

    def batches(
        self, consumer: Consumer, size: int, handle: Callable[[Sequence[Taken]], Awaitable[None]]
    ) -> None:
        """Call `handle` with up to `size` messages at a time, one batch after another.

        FastStream's own batches are not used: its loop fetches until the batch is full or the time
        is over, and if the last of these requests fails, it drops the messages that it has. The
        server would deliver them again only after `ack_wait_s`.
        """
        fetches = _Fetches(size)
        self._subscribe(consumer, fetches.pull, _Batches(fetches, handle).take)

    def messages(self, consumer: Consumer, handle: Callable[[Taken], Awaitable[None]]) -> None:
        """Call `handle` with one message after another.

        Messages are fetched one by one, since a request for several waits until it is filled or
        over, and would delay each message of a quiet time. A handler that leaves its work to a task
        is called with the next message at once.
        """

        async def on_message(message: Msg) -> None:
            await handle(Taken(message))

        self._subscribe(consumer, PullSub(batch_size=1, timeout=_POLL_S), on_message)

    async def start(self) -> None:
        """Start all subscribers. Their consumers must exist (`declare`)."""
        await self._broker.start()

    async def stop(self) -> None:
        """Take no more messages, and wait for the handlers that are running.

        Call this before the bus is closed: FastStream's loops would ask a closed connection for
        messages without a pause, and nothing else of the process could run.
        """
        await self._broker.stop()

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(self, *error: object) -> None:
        await self.stop()

    def _subscribe(self, consumer: Consumer, pull: PullSub, handle: Any) -> None:
        subscriber = self._broker.subscriber(
            consumer.subjects[0],
            stream=JStream(consumer.stream, declare=False),
            durable=consumer.durable,
            pull_sub=pull,
            ack_policy=AckPolicy.MANUAL,
            decoder=_undecoded,
            inbox_prefix=self._inbox_prefix,
        )
        subscriber(handle)


async def _undecoded(message: Any, _original: Any = None) -> Any:
    return message.raw_message
