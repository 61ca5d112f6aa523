"""Keeps the deliveries of a run in order, for rules that ask for this order.

KV `deliveries` has one queue for each ordered rule and run. The server delivers an event to any
process, and again after a kill. So processes may report the events of a run in any order and more
than once. The queue nevertheless has the order of the stream. A process that extends a queue first
reads all events of the run since the last event in the queue. The process writes the queue only if
no other process has written the queue meanwhile. So runs are independent of each other, and no
process has to wait for another process.

Only the first job of a queue is in DELIVERIES. When this job has its outcome, the next job is
published. Every step may be repeated.

A queue moves on within moments while its receiver works. Only when its first delivery has to wait,
the deliveries behind it get records, so that lists show them (decision 0313).
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace

from penstock.bus import Bus
from penstock_automations.jobs.job import Job
from penstock_automations.jobs.publish import publish
from penstock_automations.jobs.queue import MAX_WAITING, Queue, position

# A function `(job, after, upto)`. It returns the jobs of the job's rule and run for the events
# whose stream sequence is greater than `after` and at most `upto`.
Between = Callable[[Job, int, int], Awaitable[Sequence[Job]]]
# A function that stores a record of each job, unless the job has one.
Record = Callable[[Sequence[Job]], Awaitable[None]]


FULL = f"{MAX_WAITING} deliveries of this run wait for an earlier one"


class Order:
    """The queues of ordered deliveries."""

    def __init__(self, bus: Bus, record: Record) -> None:
        self._bus = bus
        self._record = record
        self._bucket = bus.bucket("deliveries")

    async def extend(self, jobs: Sequence[Job], between: Between) -> Job | None:
        """Append jobs of one rule and run to their queue; first append all earlier jobs that the
        queue lacks.

        Returns the first job of the queue if the caller must publish it, else None. A repeated call
        returns the first job again if it is one of `jobs`, because an earlier caller may have ended
        before it published the job. If the queue has no room for a job, the job fails at once,
        before the jobs in the queue are done. Raises BusError; repeat the call.
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
            wanted = [job for _, job in sorted(found.items())]
            extended, refused = queue.extended(wanted)
            if queue.is_listed:
                await self._record(wanted[: len(wanted) - len(refused)])
            for job in refused:
                # Publish the failed jobs before the queue is written. If the process ended between
                # a write of the queue and these jobs, no process would look at their events again.
                failed = replace(job, ordered=False, failure=FULL, failure_code="queue_full")
                await publish(self._bus, failed)
            if await self._write(last, extended, revision):
                return None if queue.jobs else extended.first

    async def remove(self, job: Job) -> Job | None:
        """Remove a job that has its outcome; return the job that is now first, or None.

        A repeated call returns the first job again, because an earlier caller may have ended before
        it published this job. Raises BusError; repeat the call.
        """
        while True:
            queue, revision = await self._queue(job)
            rest = queue.without(job)
            if rest == queue or await self._write(job, rest, revision):
                return rest.first

    async def record_behind(self, first: Job) -> None:
        """Store records of the jobs behind the first job, also of those that come later.

        Raises BusError; repeat the call.
        """
        while True:
            queue, revision = await self._queue(first)
            if queue.is_listed or not queue.jobs:
                return
            await self._record(queue.behind_first)
            if await self._write(first, replace(queue, is_listed=True), revision):
                return

    async def _queue(self, job: Job) -> tuple[Queue, int]:
        entry = await self._bucket.get(job.order_key)
        return (Queue.parse(entry.value), entry.revision) if entry is not None else (Queue(), 0)

    async def _write(self, job: Job, queue: Queue, revision: int) -> bool:
        return await self._bucket.update(job.order_key, queue.dump(), revision) is not None
