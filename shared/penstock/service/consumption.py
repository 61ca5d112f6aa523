"""Processes the messages of a durable consumer in every shard of its stream."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Final

from penstock.bus import Bus, Consumer, WorkQueue, streams
from penstock.bus.read.work_queue import CountsAttempts, GiveUp, Handle
from penstock.bus.shards import each_shard

_OF_SHARD: Final[Mapping[str, Callable[[int], str]]] = {
    streams.RAW: streams.raw_of,
    streams.EVENTS: streams.events_of,
}


class Consumption:
    """The processing of one durable consumer's messages by one process. If the consumer's stream is
    RAW or EVENTS, the messages of all shards are processed, also of shards that are made later."""

    def __init__(
        self,
        bus: Bus,
        consumer: Consumer,
        handle: Handle,
        give_up: GiveUp,
        attempts: CountsAttempts | None,
    ) -> None:
        self._bus = bus
        self._consumer = consumer
        self._handle = handle
        self._give_up = give_up
        self._attempts = attempts
        self._of_shard = _OF_SHARD.get(consumer.stream)
        # one for each shard of the stream; only one if the stream has no shards
        self._queues = [] if self._of_shard is not None else [self._queue_of(consumer.stream)]

    @property
    def name(self) -> str:
        return f"{self._consumer.durable} of {self._consumer.stream}"

    @property
    def finish_s(self) -> float:
        return self._consumer.finish_s

    async def run(self) -> None:
        async with asyncio.TaskGroup() as group:
            for queue in self._queues:
                group.create_task(queue.run())
            if self._of_shard is not None:
                async for shard in each_shard(self._bus, len(self._queues)):
                    self._queues.append(self._queue_of(self._of_shard(shard)))
                    group.create_task(self._queues[-1].run())

    async def take_up(self, upto: int | None = None) -> int:
        """Handle messages that processes which have ended held: see `WorkQueue.take_up`. This is
        only for a stream without shards, because `upto` is a sequence of one stream."""
        [queue] = self._queues
        return await queue.take_up(upto)

    async def count_waiting(self) -> int:
        return sum([await queue.count_waiting() for queue in self._queues])

    def _queue_of(self, stream: str) -> WorkQueue:
        return WorkQueue(
            self._bus,
            replace(self._consumer, stream=stream),
            self._handle,
            give_up=self._give_up,
            attempts=self._attempts,
        )
