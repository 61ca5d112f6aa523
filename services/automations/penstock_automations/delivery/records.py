"""The record of a delivery in KV `deliveries`: its attempts and its outcome.

After each attempt, the record is written before any other step. So if a process ends after an
attempt, another process continues with the next step and does not repeat the attempt.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any, Final, Literal

import orjson
from pydantic import Field, PrivateAttr, ValidationError

from penstock.bus import Bus
from penstock.bus.records.base import Record
from penstock_automations.actions.executor import Attempted, RequestHead, WaitsFor
from penstock_automations.jobs.job import CallSource, EventSource, Job, SourceKind

BUCKET = "deliveries"
KEPT_ATTEMPTS = 30
WRITES_AT_ONCE: Final = 100


class Attempt(Record):
    """One attempt of a delivery."""

    number: int
    replay: int = 0
    at: str
    seconds: float
    status: int | None = Field(None, description="The HTTP status; none without an answer")
    code: str = Field("", description="The error's short name; empty after success")
    text: str = Field("", description="For people")
    final: bool = Field(False, description="Whether no further attempt can succeed")
    answer: str = Field("", description="The first KiB of the answer")
    headers: dict[str, str] = Field({}, description="The first KiB of the answer's headers")


class DeliveryRecord(Record):
    """KV `deliveries`, key `<rule>.<run>-<sequence>`, or `<rule>.<id>` for a trigger."""

    id: str = Field(description="The delivery's id, the same for all attempts and replays")
    rule: str
    name: str = Field(description="The rule's name")
    source: SourceKind = "event"
    run_id: str | None = Field(None, description="The run of the event; none for a trigger")
    sequence: int | None = Field(None, description="The sequence of the event in its run")
    type: str
    status: Literal["waiting", "delivered", "failed"]
    replay: int = 0
    made: int = Field(0, description="The number of attempts of this replay")
    attempts: list[Attempt] = Field([], description="The attempts, also of earlier replays")
    request: RequestHead | None = None
    started_run_id: str | None = Field(None, description="The run that the delivery has started")
    began_at: float = Field(description="When the first attempt of this replay began, Unix seconds")
    ended_at: float | None = None
    next_at: float | None = Field(None, description="When the next attempt is due, Unix seconds")
    waits_for: WaitsFor | None = Field(None, description="What a waiting delivery waits for")
    job: dict[str, Any] = Field({}, description="The job of this replay's first attempt")
    answer: str | None = Field(
        None, description="Of a workflow's call: the first 64 KiB of the last answer"
    )

    # The revision of the stored record; 0 if there is none. With the revision, a process that has
    # lost its job cannot overwrite the record of the next process.
    _revision: int = PrivateAttr(0)

    def replace(self, earlier: DeliveryRecord | None) -> None:
        self._revision = earlier._revision if earlier is not None else 0

    @property
    def is_stored(self) -> bool:
        """Whether KV has a record of the delivery, perhaps of an earlier replay."""
        return self._revision > 0

    @property
    def is_dropped(self) -> bool:
        return self.last is not None and self.last.code == "rule_deleted"

    def add(self, job: Job, attempted: Attempted) -> None:
        meant = attempted.verdict
        self.attempts.append(
            Attempt(
                number=job.attempt,
                replay=job.replay,
                at=attempted.at,
                seconds=round(attempted.seconds, 3),
                status=meant.status,
                code=meant.code,
                text=meant.text,
                final=meant.outcome in ("final", "gone"),
                answer=attempted.answer,
                headers=dict(attempted.headers),
            )
        )
        self.made = job.attempt
        self.request, self.answer = attempted.request, attempted.whole_answer
        self.started_run_id = attempted.run_id or self.started_run_id

    def end(self, status: Literal["delivered", "failed"], at: float) -> None:
        self.status, self.ended_at, self.waits_for = status, at, None

    def wait(self, what: WaitsFor, next_at: float | None) -> None:
        """Record that the delivery waits, until `next_at` if this time is known."""
        self.status, self.waits_for, self.next_at = "waiting", what, next_at

    def has_done(self, job: Job) -> bool:
        """Return whether the job's attempt was made, or the delivery has its outcome."""
        if self.replay != job.replay:
            return self.replay > job.replay
        return self.made >= job.attempt or self.ended_at is not None

    @property
    def last(self) -> Attempt | None:
        return self.attempts[-1] if self.attempts else None


def new_record(job: Job, earlier: DeliveryRecord | None, now: float) -> DeliveryRecord:
    """Return the record of a delivery for a job that was not done. It replaces `earlier`."""
    if earlier is not None and earlier.replay == job.replay:
        return earlier
    record = DeliveryRecord(
        id=job.delivery_id,
        rule=job.rule,
        name=earlier.name if earlier is not None else job.rule,
        source=job.source.kind,
        run_id=job.run_id,
        sequence=job.source.sequence if isinstance(job.source, EventSource) else None,
        type=job.type,
        status="waiting",
        replay=job.replay,
        attempts=earlier.attempts if earlier is not None else [],
        started_run_id=earlier.started_run_id if earlier is not None else None,
        began_at=now,
        # A call is not replayed, and its body may be large.
        job={} if isinstance(job.source, CallSource) else orjson.loads(job.dump()),
    )
    record.replace(earlier)
    return record


class Records:
    """Reads and writes the records of deliveries."""

    def __init__(self, bus: Bus) -> None:
        self._bus = bus
        self._bucket = bus.bucket(BUCKET)

    async def get(self, job: Job) -> DeliveryRecord | None:
        """Return the delivery's record; None if it is missing or unreadable. Raises BusError."""
        entry = await self._bucket.get(job.key)
        if entry is None:
            return None
        try:
            record = DeliveryRecord.model_validate_json(entry.value)
        except ValidationError:
            return None
        record._revision = entry.revision
        return record

    async def put(self, job: Job, record: DeliveryRecord) -> bool:
        """Write the delivery's record; return False if another process has written it meanwhile. A
        record that cannot be read is replaced. Raises BusError."""
        record.attempts = record.attempts[-KEPT_ATTEMPTS:]
        revision = await self._bucket.update(job.key, record.dump(), record._revision)
        if revision is None:
            if await self.get(job) is not None:
                return False
            revision = await self._bucket.put(job.key, record.dump())
        record._revision = revision
        return True

    async def put_queued(self, jobs: Sequence[Job]) -> None:
        """Write records of jobs that wait for an earlier delivery of their run. A record that
        exists stays as it is. Raises BusError; repeat the call."""
        for at in range(0, len(jobs), WRITES_AT_ONCE):
            await asyncio.gather(*map(self._put_queued, jobs[at : at + WRITES_AT_ONCE]))

    async def _put_queued(self, job: Job) -> None:
        record = new_record(job, None, self._bus.clock.time())
        record.wait("order", None)
        await self._bucket.update(job.key, record.dump(), 0)

    async def is_done(self, job: Job) -> bool:
        """Return whether the job's attempt was made, or the delivery has its outcome. Raises
        BusError."""
        record = await self.get(job)
        return record is not None and record.has_done(job)
