"""Processes the events for which steps listen."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from penstock.bus import Bus, Stored, WorkQueue
from penstock.bus.read.work_queue import CountsAttempts
from penstock_workflows.effects.listens import DURABLE, Listens


class ListenQueue(WorkQueue):
    """Processes the messages of one shard's consumer. `Listens` changes the subjects of this
    consumer."""

    def __init__(
        self,
        bus: Bus,
        stream: str,
        listens: Listens,
        handle: Callable[[Stored], Awaitable[None]],
        *,
        on_poison: Callable[[Stored, Exception], Awaitable[None]],
        attempts: CountsAttempts,
        room: Callable[[], int],
        concurrency: int,
        ack_wait_s: float,
    ) -> None:
        super().__init__(
            bus,
            stream,
            DURABLE,
            (),
            handle,
            on_poison=on_poison,
            attempts=attempts,
            room=room,
            concurrency=concurrency,
            ack_wait_s=ack_wait_s,
        )
        self._listens = listens

    async def create(self) -> str:
        """Make the consumers with the types for which steps listen now; return the consumer's
        name."""
        await self._listens.update_consumers()
        return DURABLE
