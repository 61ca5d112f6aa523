"""Keeps the deliveries of a run in order, for rules that ask for it.

KV `deliveries` has one queue for each ordered rule and run. Only the first job of a queue is in
DELIVERIES; when it has its outcome, the next one follows. Every step may be repeated.
"""

from __future__ import annotations

import orjson

from penstock.bus import Bus
from penstock_automations.jobs.job import Job


class Order:
    """The queues of ordered deliveries."""

    def __init__(self, bus: Bus) -> None:
        self._bucket = bus.bucket("deliveries")

    async def append(self, job: Job) -> bool:
        """Put a job at the end of its queue unless it is there; return whether it is the first.

        Raises:
            BusError: the queue could not be read or written; repeat the call.
        """
        while True:
            queue, revision = await self._queue(job)
            if any(each.key == job.key for each in queue):
                return queue[0].key == job.key
            queue.append(job)
            if await self._write(job, queue, revision):
                return len(queue) == 1

    async def done(self, job: Job) -> Job | None:
        """Remove a job that has its outcome; return the job that is now first, if there is one.

        A repeated call returns the first job again: its caller may have ended before it sent it.

        Raises:
            BusError: the queue could not be read or written; repeat the call.
        """
        while True:
            queue, revision = await self._queue(job)
            left = [each for each in queue if each.key != job.key]
            if len(left) == len(queue) or await self._write(job, left, revision):
                return left[0] if left else None

    async def _queue(self, job: Job) -> tuple[list[Job], int]:
        entry = await self._bucket.get(job.order_key)
        if entry is None:
            return [], 0
        return [Job.parse(orjson.dumps(each)) for each in orjson.loads(entry.value)], entry.revision

    async def _write(self, job: Job, queue: list[Job], revision: int) -> bool:
        if not queue:
            return await self._bucket.delete(job.order_key, revision)
        value = orjson.dumps([orjson.loads(each.dump()) for each in queue])
        return await self._bucket.update(job.order_key, value, revision) is not None
