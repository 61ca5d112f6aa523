"""Defines the queue of the deliveries that an ordered rule makes for one run. Pure.

Each delivery waits until the delivery before it has ended.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Self

import orjson

from penstock_automations.jobs.job import EventSource, Job

# the greatest number of jobs in a queue; each takes up to 500 bytes of the queue's record
MAX_WAITING = 1000
_WHOLE = "whole"  # the key that marks an entry with all fields of its job


@dataclass(frozen=True, slots=True)
class Queue:
    """The jobs of one ordered rule and run that have no outcome yet.

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
