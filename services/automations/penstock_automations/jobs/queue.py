"""The queue of an ordered rule and run: the deliveries that wait for the one before. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Self

import orjson

from penstock_automations.jobs.job import EventSource, Job

MAX_WAITING = 1000  # deliveries of a queue; each takes up to 500 bytes of the queue's record


@dataclass(frozen=True, slots=True)
class Queue:
    """`upto`: the stream sequence of the last event whose job the queue has taken.

    `jobs` are the jobs without an outcome, in the order of their events, as JSON objects. Only the
    first one is in DELIVERIES. `upto` stays when the queue is empty: an earlier event that a
    process reports late is then known to be done.
    """

    upto: int = 0
    jobs: tuple[dict[str, Any], ...] = ()

    @classmethod
    def parse(cls, payload: bytes) -> Self:
        """Return the queue that `dump` wrote. Raises ValueError, LookupError for another text."""
        fields = orjson.loads(payload)
        return cls(fields["upto"], tuple(fields["jobs"]))

    def dump(self) -> bytes:
        """Return the queue as JSON."""
        return orjson.dumps({"upto": self.upto, "jobs": self.jobs})

    @property
    def first(self) -> Job | None:
        """The job that is in DELIVERIES; None for an empty queue."""
        return Job.parse(orjson.dumps(self.jobs[0])) if self.jobs else None

    def extended(self, jobs: Sequence[Job]) -> tuple[Queue, list[Job]]:
        """Return the queue with further jobs, and the jobs for which it has no room."""
        room = max(MAX_WAITING - len(self.jobs), 0)
        added = [orjson.loads(job.dump()) for job in jobs[:room]]
        upto = max([self.upto, *map(position, jobs)])
        return Queue(upto, (*self.jobs, *added)), list(jobs[room:])

    def without(self, job: Job) -> Queue:
        """Return the queue without a job that has its outcome."""
        done = orjson.loads(job.dump())["sequence"]
        return Queue(self.upto, tuple(each for each in self.jobs if each["sequence"] != done))


def position(job: Job) -> int:
    """Return the stream sequence of the job's event."""
    assert isinstance(job.source, EventSource), "only events of runs have an order"
    return job.source.event
