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

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final, Self

import orjson

from penstock.bus import Bus
from penstock_automations.jobs.job import EventSource, Job
from penstock_automations.jobs.publish import publish

# the greatest number of jobs in a queue; each takes up to 500 bytes of the queue's record
MAX_WAITING: Final = 1000
_WHOLE: Final = "whole"  # the key that marks an entry with all fields of its job


@dataclass(frozen=True, slots=True)
class Queue:
    """The jobs of one ordered rule and run that have no outcome yet. Pure.

    `jobs` has an entry for each of these jobs, in the order of their events. Only the first job is
    in DELIVERIES. `same` has the fields that are equal in all jobs. The entries leave these fields
    out. This keeps the queue small, which matters because the queue is written again for each
    outcome.

    `upto` is the stream sequence of the last event whose job the queue has taken. An empty queue
    keeps `upto`. If a process reports an earlier event late, `upto` shows that this event is done.

    `is_listed` says that the jobs behind the first have records, because the first waits.
    """

    upto: int = 0
    jobs: tuple[dict[str, Any], ...] = ()
    same: dict[str, Any] = field(default_factory=dict)
    is_listed: bool = False

    @classmethod
    def parse(cls, payload: bytes) -> Self:
        """Return the queue that `dump` wrote. Raises ValueError or LookupError for other bytes."""
        fields = orjson.loads(payload)
        jobs, same = tuple(fields["jobs"]), fields.get("same", {})
        return cls(fields["upto"], jobs, same, fields.get("is_listed", False))

    def dump(self) -> bytes:
        fields = {"upto": self.upto, "jobs": self.jobs, "same": self.same}
        return orjson.dumps(fields | ({"is_listed": True} if self.is_listed else {}))

    @property
    def first(self) -> Job | None:
        """The job that is in DELIVERIES; None for an empty queue."""
        return self._job(self.jobs[0]) if self.jobs else None

    @property
    def behind_first(self) -> list[Job]:
        return [self._job(entry) for entry in self.jobs[1:]]

    def _job(self, entry: dict[str, Any]) -> Job:
        return Job.parse(orjson.dumps(entry if _WHOLE in entry else {**self.same, **entry}))

    def extended(self, jobs: Sequence[Job]) -> tuple[Queue, list[Job]]:
        """Return the queue with further jobs, and the jobs for which it has no room."""
        room = max(MAX_WAITING - len(self.jobs), 0)
        added = [orjson.loads(job.dump()) for job in jobs[:room]]
        same = self.same
        if not self.jobs and added:
            last = added[-1]
            same = {name: value for name, value in added[0].items() if last.get(name) == value}
            same.pop("sequence", None)
        entries = [_entry(each, same) for each in added]
        upto = max([self.upto, *map(position, jobs)])
        return Queue(upto, (*self.jobs, *entries), same, self.is_listed), list(jobs[room:])

    def without(self, job: Job) -> Queue:
        assert isinstance(job.source, EventSource), "only events of runs have an order"
        done = job.source.sequence
        rest = tuple(each for each in self.jobs if each["sequence"] != done)
        return Queue(self.upto, rest, self.same, self.is_listed) if rest else Queue(self.upto)


def _entry(job: dict[str, Any], same: Mapping[str, Any]) -> dict[str, Any]:
    if any(job.get(name) != value for name, value in same.items()):
        return {**job, _WHOLE: True}
    return {name: value for name, value in job.items() if name not in same}


def position(job: Job) -> int:
    assert isinstance(job.source, EventSource), "only events of runs have an order"
    return job.source.event


# A function `(job, after, upto)`. It returns the jobs of the job's rule and run for the events
# whose stream sequence is greater than `after` and at most `upto`.
Between = Callable[[Job, int, int], Awaitable[Sequence[Job]]]
# A function that stores a record of each job, unless the job has one.
Record = Callable[[Sequence[Job]], Awaitable[None]]

FULL: Final = f"{MAX_WAITING} deliveries of this run wait for an earlier one"


class Order:
    """The queues of ordered deliveries."""

    def __init__(self, bus: Bus, record: Record) -> None:
        self._bus = bus
        self._record = record
        self._bucket = bus.bucket("deliveries")

    async def extend(self, jobs: Sequence[Job], between: Between) -> Job | None:
        """Append jobs of one rule and run to their queue, after all earlier jobs that it lacks.

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
        """Store records of the jobs behind the first job, also of those that come later. Raises
        BusError; repeat the call."""
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
