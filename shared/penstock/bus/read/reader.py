"""Reads a stream in order, by an ephemeral consumer without acknowledgements."""

from __future__ import annotations

import contextlib
import secrets
from collections.abc import Awaitable, Callable

from nats.errors import Error as NatsError

from penstock.bus.connection.jetstream import HasJetStream
from penstock.bus.connection.retry import first_answer
from penstock.bus.messages import Stored
from penstock.bus.read.pull import HEARTBEAT_S, NANO, Delivery, PullLoop
from penstock.bus.sealing import FIRST_BYTES, OPENED


class Reader:
    """Reads each message that matches a pattern once and in order, from a stream sequence on.

    `handle` is called with each message, unless `take` returns True for it. `take` is called with a
    message as it arrives, if no earlier one waits; so a message that needs no waiting costs no turn
    of the event loop. `take` must neither wait nor raise.

    While `handle` waits, at most one batch (and 4 MiB) is read ahead. When `handle` raises a
    BusError, the reader delivers the same message again; any other exception ends `run`. The reader
    acknowledges no messages, so a caller that must remember its position records the position
    itself.
    """

    def __init__(
        self,
        bus: HasJetStream,
        stream: str,
        pattern: str,
        start: int,
        handle: Callable[[Stored], Awaitable[None]],
        batch: int = 500,
        take: Callable[[Stored], bool] = lambda stored: False,
    ) -> None:
        self._jetstream = bus.jetstream
        self._stream = stream
        self._pattern = pattern
        self._next = start
        self._handle = handle
        self._batch = batch
        self._take = take
        self._pending: list[Delivery] = []
        self._is_handling = False  # whether messages that were in `_pending` wait for `handle`
        self._expected = 1  # the consumer sequence of the next message, if none is lost
        what = f"reading {pattern} of {stream}"
        self._pull = PullLoop(
            bus.jetstream, stream, self, batch=batch, look_s=HEARTBEAT_S, what=what
        )

    async def run(self) -> None:
        """Read until cancelled, or until `handle` raises anything but a BusError."""
        try:
            await self._pull.run()
        finally:
            if self._jetstream.is_ready and self._pull.consumer:
                with contextlib.suppress(NatsError):
                    await self._delete()

    async def create(self) -> str:
        # Close first, so that no message of the old consumer arrives any more.
        self._pull.close()
        self._pending.clear()
        self._expected = 1
        # `first_answer` may send the request several times. Because of the name, the server makes
        # only one consumer.
        name = secrets.token_hex(8)
        config = {
            "stream_name": self._stream,
            "config": {
                "name": name,
                "deliver_policy": "by_start_sequence",
                "opt_start_seq": max(self._next, 1),
                "filter_subject": self._pattern,
                "ack_policy": "none",
                "mem_storage": True,
                "num_replicas": 1,
                "inactive_threshold": 60 * NANO,
            },
        }
        call = f"CONSUMER.CREATE.{self._stream}"
        answer = await first_answer(lambda: self._jetstream.api(call, config))
        return str(answer["name"])

    def room(self) -> int:
        return self._batch

    def on_message(self, delivery: Delivery) -> None:
        stored = delivery.stored
        waits = self._pending or self._is_handling or delivery.consumer_sequence != self._expected
        content = self._jetstream.content
        if not waits and (stored.payload[:FIRST_BYTES] in OPENED or content.refuses_clear):
            waits = not content.open_now(stored)  # its key must be read first
        if not waits and self._take(stored):
            self._advance(delivery)
            self._pull.request_more()
            return
        self._pending.append(delivery)
        self._pull.wake.set()

    async def work(self) -> bool:
        if not self._pending:
            return False
        self._is_handling = True
        try:
            await self._handle_pending()
        finally:
            self._is_handling = False
        return True

    async def _handle_pending(self) -> None:
        batch, self._pending = self._pending, []
        await self._jetstream.content.open(*(delivery.stored for delivery in batch))
        for delivery in batch:
            if delivery.consumer_sequence != self._expected:
                self._pull.restart()  # a new consumer starts with the lost message
                return
            await self._handle(delivery.stored)
            self._advance(delivery)

    def _advance(self, delivery: Delivery) -> None:
        self._expected += 1
        self._next = delivery.stored.sequence + 1

    async def _delete(self) -> None:
        # The request waits for no answer, since the consumer or its leader may no longer exist.
        subject = f"$JS.API.CONSUMER.DELETE.{self._stream}.{self._pull.consumer}"
        await self._jetstream.connection.publish(subject)
