"""Passes each answer to the function that expects it, and settles the futures of requests."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from nats.errors import TimeoutError as NatsTimeout

from penstock.bus.connection.incoming import Incoming


class Answers:
    """Holds the reply subjects of one connection at which answers are expected, all below `prefix`.

    One subscription to `prefix.*` gets all answers, so an answer costs the server and this process
    no subscription.
    """

    __slots__ = ("_asked", "_takers", "prefix")

    def __init__(self) -> None:
        self.prefix = ""  # empty until there is a subscription
        self._asked = 0  # how many reply subjects were made so far
        # the function that takes an answer, by reply subject
        self._takers: dict[str, Callable[[Incoming], object]] = {}

    def __bool__(self) -> bool:
        return bool(self._takers)

    def expect(self, take: Callable[[Incoming], object]) -> str:
        """Return a new reply subject; `take` is called with each answer, until `forget`."""
        self._asked += 1
        reply = f"{self.prefix}.{self._asked}"
        self._takers[reply] = take
        return reply

    def forget(self, reply: str) -> None:
        self._takers.pop(reply, None)

    def take(self, message: Incoming) -> None:
        take = self._takers.get(message.subject)
        if take is not None:
            take(message)


def settle(answer: asyncio.Future[Incoming], message: Incoming) -> None:
    if not answer.done():
        answer.set_result(message)


def time_out(answer: asyncio.Future[Any]) -> None:
    """End the wait for an answer with nats-py's error, unless the request has ended."""
    if not answer.done():
        answer.set_exception(NatsTimeout())
