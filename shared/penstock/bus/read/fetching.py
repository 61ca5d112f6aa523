"""Fetches the messages of a durable consumer, and leaves the acknowledgements to the caller."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from contextlib import suppress

import orjson
from nats.errors import Error as NatsError

from penstock.bus.connection.jetstream import HasJetStream
from penstock.bus.read.pull import NANO, Delivery, PullLoop

CHECK_S = 0.2  # seconds between two checks whether there is room for more messages


class Fetching:
    """Fetches the messages of a consumer that exists already, ahead of the caller.

    `batch` is the most messages that one request asks for. `room` returns how many more messages
    the caller can take now; the caller calls `more` when this number has grown. Without `room`, the
    next batch is fetched while a batch is handled. Until the caller calls `handled` for a message,
    the server is told every third of `ack_wait_s` that the message is being worked on. `stop` gives
    back messages that were fetched and not handled.
    """

    def __init__(
        self,
        bus: HasJetStream,
        stream: str,
        durable: str,
        batch: int,
        ack_wait_s: float,
        room: Callable[[], int] | None = None,
    ) -> None:
        self._bus = bus
        self._ack_wait_s = ack_wait_s
        self._stream = stream
        self._durable = durable
        self._room = room if room is not None else (lambda: 2 * batch)
        self._fetched: deque[Delivery] = deque()
        # By reply subject: the messages that were taken, and for which `handled` was not called
        # yet.
        self._in_hand: dict[str, Delivery] = {}
        self._came = asyncio.Event()
        what = f"fetching from {durable}"
        self._pull = PullLoop(bus.jetstream, stream, self, batch=batch, look_s=CHECK_S, what=what)
        self._tasks: list[asyncio.Task[None]] = []

    def start(self) -> None:
        """Begin to fetch."""
        self._tasks = [
            asyncio.create_task(self._pull.run()),
            asyncio.create_task(self._report_work()),
        ]

    async def stop(self) -> None:
        """Stop fetching, and give back the messages that were not handled."""
        if self._tasks:
            await self._pull.finish()
            for task in self._tasks:
                task.cancel()
            await asyncio.wait(self._tasks)
            self._tasks = []
        for each in (*self._in_hand.values(), *self._fetched):
            await self.give_back(each, 0)
        self._in_hand.clear()
        self._fetched.clear()

    def more(self) -> None:
        """Look whether there is room for more messages."""
        self._pull.wake.set()

    def take(self, limit: int) -> list[Delivery]:
        """Return up to `limit` messages that were fetched, in the order in which they came.

        A message counts against the room until the caller calls `handled`.
        """
        taken = [self._fetched.popleft() for _ in range(min(limit, len(self._fetched)))]
        self._in_hand |= {each.reply: each for each in taken}
        return taken

    def handled(self, delivery: Delivery) -> None:
        """Stop counting a message that is done, or that the caller's `room` counts now."""
        self._in_hand.pop(delivery.reply, None)
        self.more()

    async def wait(self, timeout_s: float) -> bool:
        """Return True when there is a message to take; False if none came in time."""
        if not self._fetched:
            self._came.clear()
            with suppress(TimeoutError):
                async with asyncio.timeout(timeout_s):
                    await self._came.wait()
        return bool(self._fetched)

    async def ack(self, delivery: Delivery) -> None:
        """Acknowledge the message. The server delivers it again if the acknowledgement is lost."""
        await self._answer(delivery, b"+ACK")

    async def ack_and_wait(self, delivery: Delivery) -> None:
        """Acknowledge the message, and wait until the server knows this: the message may then be
        deleted.

        Raises:
            BusError: it is unknown whether the server has the acknowledgement.
        """
        await self._bus.jetstream.request(delivery.reply, b"+ACK")

    async def working(self, delivery: Delivery) -> None:
        """Tell the server that the message is still being worked on."""
        await self._answer(delivery, b"+WPI")

    async def give_back(self, delivery: Delivery, delay_s: float) -> None:
        """Have the server deliver the message again after `delay_s` seconds."""
        await self._answer(delivery, b"-NAK " + orjson.dumps({"delay": int(delay_s * NANO)}))

    async def _report_work(self) -> None:
        while True:
            await asyncio.sleep(self._ack_wait_s / 3)
            for each in (*self._in_hand.values(), *self._fetched):
                await self.working(each)

    async def _answer(self, delivery: Delivery, answer: bytes) -> None:
        with suppress(NatsError):
            await self._bus.jetstream.connection.publish(delivery.reply, answer)

    # The methods that the pull loop calls

    async def create(self) -> str:
        """Return the consumer's name, if it exists. Raises BusError."""
        await self._bus.jetstream.api(f"CONSUMER.INFO.{self._stream}.{self._durable}")
        return self._durable

    def room(self) -> int:
        """Return how many messages may be under way at most."""
        return self._room() - len(self._fetched) - len(self._in_hand)

    def on_message(self, delivery: Delivery) -> None:
        """Keep a message for the caller."""
        self._fetched.append(delivery)
        self._came.set()

    async def work(self) -> bool:
        """Return False, because the caller handles the messages, not the loop."""
        return False
