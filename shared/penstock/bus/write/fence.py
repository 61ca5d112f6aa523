"""Fenced appends: what must not be written twice carries the expected last sequence.

The only place that builds fence headers. The pattern comes from the subject, because a pattern that
does not cover it is accepted by the server in silence, and then fences nothing.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from penstock.bus import messages, streams, subjects
from penstock.bus.errors import (
    BusError,
    BusUnavailable,
    FenceConflict,
    HistoryLost,
    OutcomeUnknown,
    StreamFull,
)
from penstock.bus.read.direct import Stored
from penstock.bus.write.publisher import EXPECTED_SEQUENCE, EXPECTED_SUBJECT, Message

if TYPE_CHECKING:
    from penstock.bus.bus import Bus

log = logging.getLogger(__name__)

MAX_MESSAGE_BYTES = 512 * 1024
RETRY_S = 0.25
# When the leader dies nobody answers. The fence tells whether it was stored, so ask again soon:
# an election takes four seconds and more, and whoever asks late adds to it.
APPEND_TIMEOUT_S = 2.0


def _fenced(message: Message, pattern: str, last: int) -> Message:
    return Message(
        message.subject,
        message.payload,
        {**message.headers, EXPECTED_SUBJECT: pattern, EXPECTED_SEQUENCE: str(last)},
    )


async def append(bus: Bus, pattern: str, batch: Sequence[Message], last: int) -> int:
    """Store one message, or several all together, after stream sequence `last` (0: nothing yet).

    Returns the stream sequence of the last one. Raises FenceConflict, OutcomeUnknown,
    BusUnavailable, StreamFull, MessageTooLarge.
    """
    first = _fenced(batch[0], pattern, last)
    if len(batch) == 1:
        return await bus.publisher.publish(first, APPEND_TIMEOUT_S)
    return await bus.publisher.publish_batch([first, *batch[1:]], APPEND_TIMEOUT_S)


async def tail(bus: Bus, stream: str, pattern: str) -> Stored | None:
    """The last stored message under a fence, from the leader; waits for the bus as needed."""
    while True:
        try:
            return await bus.tail(stream, pattern)
        except (BusUnavailable, OutcomeUnknown):
            await asyncio.sleep(RETRY_S)


@dataclass(slots=True)
class RawWriter:
    """Appends source frames of one run and writer to RAW, each once, in order.

    `write` returns when the frame is stored. While the bus is away it waits, which is what holds
    an upstream back. Raises FenceConflict when another writer has taken the run over, and
    nothing of this one can be stored any more; HistoryLost when what it had stored is gone.
    """

    bus: Bus
    run_id: str
    writer: str
    connection: str  # unique to this writer: tells its own frames from a successor's
    last: int = 0
    index: int = 0

    @classmethod
    async def resume(cls, bus: Bus, run_id: str, writer: str, connection: str) -> RawWriter:
        """A writer that goes on after whatever stands there."""
        stored = await tail(bus, streams.RAW, subjects.raw_stored(run_id, writer))
        return cls(bus, run_id, writer, connection, stored.sequence if stored else 0)

    async def write(
        self,
        kind: str,
        payload: bytes = b"",
        *,
        leg: int,
        received: str | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> int:
        """Store one source frame; over 512 KiB as parts in one atomic batch."""
        self.index += 1
        common = {
            messages.LEG: str(leg),
            messages.CONNECTION: self.connection,
            messages.INDEX: str(self.index),
            messages.RECEIVED: received or self.bus.clock.stamp(),
            **(headers or {}),
        }
        subject = subjects.raw(self.run_id, self.writer)
        pieces = [
            payload[start : start + MAX_MESSAGE_BYTES]
            for start in range(0, len(payload), MAX_MESSAGE_BYTES)
        ] or [b""]
        if len(pieces) == 1:
            batch = [Message(subject, payload, {**common, messages.KIND: kind})]
        else:
            batch = [
                Message(
                    subject,
                    piece,
                    {
                        **common,
                        messages.KIND: "part",
                        messages.PART: f"{n}/{len(pieces)}",
                        messages.WHOLE: kind,
                    },
                )
                for n, piece in enumerate(pieces, 1)
            ]
        return await self._store(batch)

    async def holds(self) -> bool:
        """False when another writer has taken the run over. Waits for the bus."""
        pattern = subjects.raw_stored(self.run_id, self.writer)
        return not self._is_foreign(await tail(self.bus, streams.RAW, pattern))

    async def _store(self, batch: Sequence[Message]) -> int:
        pattern = subjects.raw_stored(self.run_id, self.writer)
        level = logging.WARNING
        while True:
            try:
                self.last = await append(self.bus, pattern, batch, self.last)
                return self.last
            except (BusUnavailable, StreamFull) as error:
                log.log(level, "run %s: RAW does not take frames: %s", self.run_id, error)
                level = logging.DEBUG  # with a thousand runs, once is enough
                await asyncio.sleep(RETRY_S)
            except (OutcomeUnknown, FenceConflict):
                stored = await tail(self.bus, streams.RAW, pattern)
                if self.last > (stored.sequence if stored else 0) and not await self._has_aged():
                    raise HistoryLost(
                        f"run {self.run_id}: RAW has lost its frame {self.last}"
                    ) from None
                if self._is_foreign(stored):
                    raise FenceConflict(f"run {self.run_id} was taken over") from None
                self.last = stored.sequence if stored else 0  # all of it may have aged
                if stored and self._is_this(stored):
                    return self.last
                # The frame is not there; what is may be an earlier one whose write was cancelled.

    async def go_on(self) -> None:
        """After HistoryLost: write after what is left. Waits for the bus."""
        pattern = subjects.raw_stored(self.run_id, self.writer)
        stored = await tail(self.bus, streams.RAW, pattern)
        self.last = stored.sequence if stored else 0

    async def _has_aged(self) -> bool:
        """Whether our last frame is gone because frames are kept only for a time."""
        while True:
            try:
                state = (await self.bus.api(f"STREAM.INFO.{streams.RAW}"))["state"]
            except BusError:
                await asyncio.sleep(RETRY_S)
                continue
            lost = self.bus.continuity.covers(streams.RAW, self.last)
            return lost is None and state["first_seq"] > self.last

    def _is_foreign(self, stored: Stored | None) -> bool:
        return (
            stored is not None
            and stored.sequence != self.last
            and stored.headers.get(messages.CONNECTION) != self.connection
        )

    def _is_this(self, stored: Stored) -> bool:
        headers = stored.headers
        return (headers.get(messages.CONNECTION), headers.get(messages.INDEX)) == (
            self.connection,
            str(self.index),
        )
