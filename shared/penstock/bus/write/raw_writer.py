"""Writes source frames to RAW, each once and in order, by one writer at a time."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from penstock.bus import messages, streams, subjects
from penstock.bus.connection.retry import RETRY_S
from penstock.bus.errors import (
    BusError,
    BusUnavailable,
    FenceConflict,
    HistoryLost,
    OutcomeUnknown,
    StreamFull,
)
from penstock.bus.messages import Message, Stored
from penstock.bus.write import fence
from penstock.bus.write.fence import Writes, tail

log = logging.getLogger(__name__)


class Losses(Protocol):
    """The interface to the known losses of streams; `state.continuity` implements it."""

    def covers(self, stream: str, sequence: int) -> object | None: ...


class WritesRaw(Writes, Protocol):
    """The interface that a `RawWriter` needs; `Bus` implements it."""

    @property
    def continuity(self) -> Losses: ...


@dataclass(slots=True)
class RawWriter:
    """Appends source frames of one run and writer to RAW, each once and in order.

    `write` returns when the frame is stored. While the bus is away, `write` waits, so the caller
    stops reading its upstream. Several tasks may write: their frames are stored one after the
    other. `connection` is unique to this object: it distinguishes the frames of this object from
    the frames of a later writer.
    """

    bus: WritesRaw
    run_id: str
    writer: str
    connection: str
    last: int = 0  # stream sequence of the writer's last frame
    index: int = 0  # how many frames this object has written
    _made_s: float = field(init=False)  # when this object was made, in Unix seconds of NATS's clock
    # Without the lock, the frames of two tasks would conflict. The last frame that one task then
    # reads may be older than the frame that the other task has stored meanwhile, so `_store` would
    # raise HistoryLost.
    _turn: asyncio.Lock = field(default_factory=asyncio.Lock, init=False)

    def __post_init__(self) -> None:
        self._made_s = self.bus.clock.time()

    @classmethod
    async def resume(cls, bus: WritesRaw, run_id: str, writer: str, connection: str) -> RawWriter:
        """Return a writer that goes on after the last stored frame. Waits while the bus is away."""
        stored = await tail(bus, streams.raw_for(run_id), subjects.raw_stored(run_id, writer))
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
        """Store one source frame; a frame over 512 KiB is stored as parts in one atomic batch.

        Returns the stream sequence. `received` is RFC 3339 (default: now, by NATS's clock).

        Raises:
            FenceConflict: another writer has taken the run over; this writer can store no more
                frames.
            HistoryLost: RAW no longer has the last frame of this writer.
            BusError: the server refuses the message.
        """
        async with self._turn:
            self.index += 1
            common = {
                messages.LEG: str(leg),
                messages.CONNECTION: self.connection,
                messages.INDEX: str(self.index),
                messages.RECEIVED: received or self.bus.clock.stamp(),
                **(headers or {}),
            }
            return await self._store(self._batch(kind, payload, common))

    async def rename(self, connection: str) -> None:
        """Write later frames with this connection. Waits for the writes that are under way: their
        frames would otherwise look like those of another writer."""
        async with self._turn:
            self.connection = connection

    async def holds(self) -> bool:
        """Return False when another writer has taken the run over. Waits while the bus is away."""
        pattern = subjects.raw_stored(self.run_id, self.writer)
        return not self._is_foreign(await tail(self.bus, streams.raw_for(self.run_id), pattern))

    async def continue_after_loss(self) -> None:
        """Continue after the frames that remain when `write` has raised HistoryLost.

        Waits while the bus is away. After a loss, NATS uses sequences again, so a sequence does not
        tell whose frame the last one is. A frame of another connection that is older than this
        object is of an earlier writer; a later one shows that another writer has taken the run
        over, and raises FenceConflict.
        """
        pattern = subjects.raw_stored(self.run_id, self.writer)
        stored = await tail(self.bus, streams.raw_for(self.run_id), pattern)
        if stored and stored.headers.get(messages.CONNECTION) != self.connection:
            clock = self.bus.clock
            if clock.time() - clock.age_s(stored.stored_at) > self._made_s:
                raise FenceConflict(f"run {self.run_id} was taken over")
        self.last = stored.sequence if stored else 0

    def _batch(self, kind: str, payload: bytes, common: Mapping[str, str]) -> list[Message]:
        """Return the frame as one message, or as its parts."""
        subject = subjects.raw(self.run_id, self.writer)
        size = fence.MAX_MESSAGE_BYTES
        pieces = [payload[start : start + size] for start in range(0, len(payload), size)] or [b""]
        if len(pieces) == 1:
            return [Message(subject, payload, {**common, messages.KIND: kind})]
        return [
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

    async def _store(self, batch: Sequence[Message]) -> int:
        pattern = subjects.raw_stored(self.run_id, self.writer)
        level = logging.WARNING
        while True:
            try:
                self.last = await fence.append(self.bus, pattern, batch, self.last)
                return self.last
            except (BusUnavailable, StreamFull) as error:
                log.log(level, "run %s: RAW does not take frames: %s", self.run_id, error)
                # Only the first failure of a frame is a warning, since a thousand runs may wait.
                level = logging.DEBUG
                await asyncio.sleep(RETRY_S)
            except (OutcomeUnknown, FenceConflict):
                stored = await tail(self.bus, streams.raw_for(self.run_id), pattern)
                if self.last > (stored.sequence if stored else 0) and not await self._has_aged():
                    raise HistoryLost(
                        f"run {self.run_id}: RAW has lost its frame {self.last}"
                    ) from None
                if self._is_foreign(stored):
                    raise FenceConflict(f"run {self.run_id} was taken over") from None
                # 0 if all frames of this writer have expired
                self.last = stored.sequence if stored else 0
                if stored and self._is_this(stored):
                    return self.last
                # This frame is not stored, so the loop appends the frame again, after the new last
                # frame. This writer itself may have stored the new last frame, in an earlier
                # `write` that was cancelled.

    async def _has_aged(self) -> bool:
        """Return whether this writer's last frame is gone because it exceeded RAW's age limit."""
        stream = streams.raw_for(self.run_id)
        while True:
            try:
                state = (await self.bus.jetstream.api(f"STREAM.INFO.{stream}"))["state"]
            except BusError:
                await asyncio.sleep(RETRY_S)
                continue
            lost = self.bus.continuity.covers(stream, self.last)
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
