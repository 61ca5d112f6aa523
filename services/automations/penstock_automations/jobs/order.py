"""Keeps the deliveries of a run in order, for rules that ask for it.

KV `deliveries` has one queue for each ordered rule and run. Processes may report the events of a
run in any order and more than once, since the server delivers an event to any of them, and again
after a kill. The order is that of the stream: who extends a queue reads the run's events since the
last one that the queue has taken, and writes the queue if nobody else has written it meanwhile. So
runs are independent of each other, and no process has to wait for another one.

Only the first job of a queue is in DELIVERIES; when it has its outcome, the next one follows. Every
step may be repeated.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace

from penstock.bus import Bus
from penstock_automations.jobs.job import Job
from penstock_automations.jobs.publish import publish
from penstock_automations.jobs.queue import MAX_WAITING, Queue, position

# Returns the jobs of a run's events for a rule, after one stream sequence and up to another.
Between = Callable[[Job, int, int], Awaitable[Sequence[Job]]]


FULL = f"{MAX_WAITING} deliveries of this run wait for an earlier one"


class Order:
    """The queues of ordered deliveries."""

    def __init__(self, bus: Bus) -> None:
        self._bus = bus
        self._bucket = bus.bucket("deliveries")

    async def extend(self, jobs: Sequence[Job], between: Between) -> Job | None:
        """Put jobs of one rule and run into their queue, and all jobs that belong before them.

        Returns the job to publish, if these jobs made it the first one. A repeated call returns the
        first job again if it is one of `jobs`: its caller may have ended before it published the
        job. A job for which the queue has no room fails at once, out of order.

        Raises:
            BusError: the queue could not be read or written; repeat the call.
        """
        last = max(jobs, key=position)
        while True:
            queue, revision = await self._queue(last)
            if position(last) <= queue.upto:
                first = queue.first
                known = {job.key for job in jobs}
                return first if first is not None and first.key in known else None
            found = {position(job): job for job in jobs if position(job) > queue.upto}
            for job in await between(last, queue.upto, position(last)):
                found.setdefault(position(job), job)
            extended, refused = queue.extended([job for _, job in sorted(found.items())])
            for job in refused:
                # Before the queue is written: after it, nobody would look at these events again.
                failed = replace(job, ordered=False, failure=FULL, failure_code="queue_full")
                await publish(self._bus, failed)
            if await self._write(last, extended, revision):
                return None if queue.jobs else extended.first

    async def done(self, job: Job) -> Job | None:
        """Remove a job that has its outcome; return the job that is now first, if there is one.

        A repeated call returns the first job again: its caller may have ended before it sent it.

        Raises:
            BusError: the queue could not be read or written; repeat the call.
        """
        while True:
            queue, revision = await self._queue(job)
            left = queue.without(job)
            if left == queue or await self._write(job, left, revision):
                return left.first

    async def _queue(self, job: Job) -> tuple[Queue, int]:
        entry = await self._bucket.get(job.order_key)
        return (Queue.parse(entry.value), entry.revision) if entry is not None else (Queue(), 0)

    async def _write(self, job: Job, queue: Queue, revision: int) -> bool:
        return await self._bucket.update(job.order_key, queue.dump(), revision) is not None
