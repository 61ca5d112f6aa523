"""Fenced appends: a message that must not be stored twice names the expected last sequence.

This is the only module that builds fence headers. Callers must derive the pattern from the subject:
the server reports no error for a pattern that does not cover the message's subject, and then the
fence does nothing.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Protocol

from penstock.bus.connection.clock import Clock
from penstock.bus.connection.jetstream import HasJetStream
from penstock.bus.errors import BusUnavailable, OutcomeUnknown
from penstock.bus.messages import Message, Stored
from penstock.bus.read import leader
from penstock.bus.write.publisher import EXPECTED_SEQUENCE, EXPECTED_SUBJECT, Publisher

MAX_MESSAGE_BYTES = 512 * 1024
RETRY_S = 0.25
# Nobody answers after the leader died. The fence makes a retry safe, so the timeout is short: an
# election takes four seconds and more, and a long timeout would add its rest to it.
APPEND_TIMEOUT_S = 2.0


class Writes(HasJetStream, Protocol):
    """What writing needs: a `Bus` has it."""

    @property
    def publisher(self) -> Publisher:
        """Pipelined publishing."""

    @property
    def clock(self) -> Clock:
        """NATS's time."""


def _fenced(message: Message, pattern: str, last: int) -> Message:
    return Message(
        message.subject,
        message.payload,
        {**message.headers, EXPECTED_SUBJECT: pattern, EXPECTED_SEQUENCE: str(last)},
    )


async def append(bus: Writes, pattern: str, batch: Sequence[Message], last: int) -> int:
    """Store one message, or several as one batch, after stream sequence `last` (0: none yet).

    Returns the stream sequence of the last one.

    Raises:
        FenceConflict: the last message under the pattern is another one.
        BusUnavailable, StreamFull, MessageTooLarge: nothing was stored.
        OutcomeUnknown: no acknowledgement came in time.
    """
    first = _fenced(batch[0], pattern, last)
    if len(batch) == 1:
        return await bus.publisher.publish(first, APPEND_TIMEOUT_S)
    return await bus.publisher.publish_batch([first, *batch[1:]], APPEND_TIMEOUT_S)


async def tail(bus: HasJetStream, stream: str, pattern: str) -> Stored | None:
    """The last stored message under a fence, from the leader. Waits while the bus is away.

    Raises:
        BusError: the server refuses to answer.
    """
    while True:
        try:
            return await leader.tail(bus, stream, pattern)
        except (BusUnavailable, OutcomeUnknown):
            await asyncio.sleep(RETRY_S)
