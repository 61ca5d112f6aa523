"""Appends messages with a fence, the expected last sequence, so that no message is stored twice.

This is the only module that builds fence headers. Callers must derive the pattern from the subject
of the message. If a pattern does not cover this subject, the server reports no error, and the fence
has no effect.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Protocol

from penstock.bus.connection.clock import Clock
from penstock.bus.connection.jetstream import HasJetStream
from penstock.bus.connection.retry import RETRY_S
from penstock.bus.errors import BusError, BusUnavailable, OutcomeUnknown
from penstock.bus.messages import EXPECTED_SEQUENCE, Message, Stored
from penstock.bus.read import leader
from penstock.bus.write.publisher import EXPECTED_SUBJECT, Publisher

MAX_MESSAGE_BYTES = 512 * 1024  # the most payload bytes in one message
# Seconds to wait for the acknowledgement of an append. After the leader was killed, no server
# answers until an election has ended. An election takes four seconds or more. With a long timeout,
# the retry could begin long after the election. The timeout may be short because the fence makes a
# retry safe.
APPEND_TIMEOUT_S = 2.0


class Writes(HasJetStream, Protocol):
    """The interface that writing needs; `Bus` implements it."""

    @property
    def publisher(self) -> Publisher: ...

    @property
    def clock(self) -> Clock: ...


def _fenced(message: Message, pattern: str, last: int) -> Message:
    if isinstance(message.headers, bytes):
        lines = f"{EXPECTED_SUBJECT}: {pattern}\r\n{EXPECTED_SEQUENCE}: {last}\r\n".encode()
        return Message(message.subject, message.payload, message.headers + lines)
    return message.with_headers({EXPECTED_SUBJECT: pattern, EXPECTED_SEQUENCE: str(last)})


async def append(bus: Writes, pattern: str, batch: Sequence[Message], last: int) -> int:
    """Store one message, or several as one batch, after stream sequence `last`.

    `last` is the sequence of the last message under the pattern, 0 without such a message. Returns
    the stream sequence of the last stored message.

    Raises:
        FenceConflict: the last message under the pattern has another sequence than `last`.
        BusUnavailable, StreamFull, MessageTooLarge: nothing was stored.
        OutcomeUnknown: no acknowledgement came in time.
    """
    first = _fenced(batch[0], pattern, last)
    if len(batch) == 1:
        return await bus.publisher.publish(first, APPEND_TIMEOUT_S)
    return await bus.publisher.publish_batch([first, *batch[1:]], APPEND_TIMEOUT_S)


def post(
    bus: Writes,
    pattern: str,
    message: Message,
    last: int,
    settled: Callable[[int | BusError], None],
    *,
    is_patient: bool = False,
) -> bool:
    """Store one message after stream sequence `last`, as `append` does, without waiting.

    `settled` is called once, later, with the message's stream sequence or the error that `append`
    would raise. Returns False, and sends nothing, if the message cannot be sent now. In this case,
    `append` would wait until it can send the message. For `is_patient` see `Publisher.post`.
    """
    fenced = _fenced(message, pattern, last)
    return bus.publisher.post(fenced, settled, APPEND_TIMEOUT_S, is_patient=is_patient)


async def tail(bus: HasJetStream, stream: str, pattern: str) -> Stored | None:
    """Return the last stored message that matches, from the leader; None when no message matches.
    Waits while the bus is away."""
    while True:
        try:
            return await leader.tail(bus, stream, pattern)
        except (BusUnavailable, OutcomeUnknown):
            await asyncio.sleep(RETRY_S)
