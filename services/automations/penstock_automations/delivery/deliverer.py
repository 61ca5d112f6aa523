"""Carries out jobs: makes an attempt, records its result, and does what follows from the result.

A job asks for one attempt of a delivery (`jobs/job.py`).
"""

from __future__ import annotations

import asyncio
import itertools
import logging
import math
import random
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import TypeVar

import orjson

from penstock import log_fields, telemetry
from penstock.bus import Bus, BusError, NeverFinished, ObjectGone, Stored
from penstock.bus.state import deadletters
from penstock.bus.streams import events_for
from penstock.bus.subjects import run_id_of
from penstock.bus.write import objects
from penstock.bus.write.schedules import schedule
from penstock.runs.calls import CallJob
from penstock.tracing import spans
from penstock_automations.actions.executor import (
    ActionExecutor,
    AttemptDeferred,
    Attempted,
    Occurrence,
)
from penstock_automations.broker import Taken
from penstock_automations.delivery.announcements import Announcements, Timeline
from penstock_automations.delivery.backoff import delay_s
from penstock_automations.delivery.call_outcomes import publish_call_outcome, wants_answer
from penstock_automations.delivery.delivery_span import context_of, span_of
from penstock_automations.delivery.outcomes import dead_letter, outcome_event, triggered_data
from penstock_automations.delivery.records import Attempt, DeliveryRecord, Records
from penstock_automations.jobs.deferrals import deferral_delay_s
from penstock_automations.jobs.job import CallSource, EventSource, Job, TriggerSource
from penstock_automations.jobs.order import Order
from penstock_automations.jobs.publish import publish
from penstock_automations.rules.call_secrets import CallSecret
from penstock_automations.rules.calls import CallRefused, rule_of_call
from penstock_automations.rules.model import ActionKind
from penstock_automations.rules.records import CompiledRule
from penstock_automations.rules.store import CurrentRules, RuleStore

log = logging.getLogger(__name__)

T = TypeVar("T")

RETRY_S = 1.0
AGAIN_S = 5.0  # seconds until a job is handled again after an unexpected error
MAX_FAILURES = 5  # after so many deliveries by NATS, a job with unexpected errors is given up
MAX_UNFINISHED = 20  # after so many deliveries by NATS, a job that no process finishes is given up
MAX_DEFERRALS = 10_000
# The first and the longest wait in seconds of a delivery whose rule is paused.
PAUSED_S = (10.0, 3600.0)

# The TTL in seconds of a job that is due and waits in SCHEDULES for a process. By default, records
# of deliveries are kept for the same time. If a process ends before it deletes the job's message,
# the server deletes the message after this time.
DUE_TTL_S = 30 * 86_400.0

GiveUp = Callable[[Stored, Exception], Awaitable[None]]


@dataclass(frozen=True, slots=True)
class Limits:
    """The limits of a deliverer.

    `at_once` is the greatest number of jobs in memory. If no process reports for `ack_wait_s`
    seconds that it works on a job, the server gives the job to another process. `delays_s` has the
    seconds between the attempts of a delivery.
    """

    at_once: int
    ack_wait_s: float
    delays_s: tuple[float, ...]


class Deliverer:
    """Carries out the jobs of DELIVERIES."""

    def __init__(
        self,
        bus: Bus,
        pod: str,
        rules: CurrentRules,
        store: RuleStore,
        order: Order,
        executors: Mapping[ActionKind, ActionExecutor],
        limits: Limits,
        give_up: GiveUp,
        call_secrets: Mapping[str, CallSecret],
    ) -> None:
        self._bus = bus
        self._pod = pod
        self._rules = rules
        self._store = store
        self._order = order
        self._executors = executors
        self._limits = limits
        self._give_up = give_up
        self._call_secrets = call_secrets
        self._announcements = Announcements(bus, pod)
        self._records = Records(bus)
        self._working: set[asyncio.Task[None]] = set()
        self.on_room: Callable[[], None] = lambda: None  # called when `room` has grown

    def room(self) -> int:
        """Return how many more jobs may be taken."""
        return self._limits.at_once - len(self._working)

    async def take(self, batch: Sequence[Taken]) -> None:
        """Begin to carry out jobs.

        Each job has a task of its own, so that a slow receiver does not delay other jobs of the
        batch.
        """
        for taken in batch:
            task = asyncio.create_task(self._work(taken))
            self._working.add(task)
            task.add_done_callback(self._done)

    async def finish(self, grace_s: float) -> None:
        """Wait up to `grace_s` seconds for the jobs in work; then give the unfinished jobs back."""
        if not self._working:
            return
        _, left = await asyncio.wait(set(self._working), timeout=grace_s)
        for task in left:
            task.cancel()
        if left:
            await asyncio.wait(left)

    def _done(self, task: asyncio.Task[None]) -> None:
        self._working.discard(task)
        self.on_room()

    async def _work(self, taken: Taken) -> None:
        log_fields.bind(run_id_of(taken.subject))
        heartbeat = asyncio.create_task(self._heartbeat(taken))
        try:
            await self._carry_out(taken)
        except asyncio.CancelledError:
            await taken.give_back(0)
            raise
        except Exception as error:
            stored = taken.stored
            if stored.delivered < MAX_FAILURES:
                log.exception("%s: not carried out, it is tried again", stored.subject)
                await taken.give_back(AGAIN_S)
                return
            await self._end(stored, error)
            await taken.ack()
        finally:
            heartbeat.cancel()

    async def _heartbeat(self, taken: Taken) -> None:
        while True:
            await asyncio.sleep(self._limits.ack_wait_s / 3)
            await taken.working()

    async def _carry_out(self, taken: Taken) -> None:
        stored = taken.stored
        try:
            job = Job.parse(stored.payload)
        except ValueError as error:
            await self._give_up(stored, error)
        else:
            if stored.delivered > MAX_UNFINISHED:
                await self._end(stored, NeverFinished(stored.delivered - 1))
            else:
                await self._deliver(job, stored)
        await taken.ack()

    async def _end(self, stored: Stored, error: Exception) -> None:
        """Give up a job whose handling fails.

        The failure is recorded as the delivery's outcome, because other jobs may wait for the
        outcome.
        """
        log.error("%s: given up", stored.subject, exc_info=error)
        try:
            job = Job.parse(stored.payload)
            record = await self._persist(lambda: self._records.get(job))
            if record is None or not record.has_done(job):
                record = self._new_record(job, record)
            await self._fail(job, stored, record, "internal", repr(error)[:200])
        except Exception as failure:
            await self._give_up(stored, failure)

    async def _deliver(self, job: Job, stored: Stored) -> None:
        record = await self._persist(lambda: self._records.get(job))
        if record is not None and record.has_done(job):
            # An earlier process has made this attempt, and ended before it finished the other
            # steps.
            if record.replay == job.replay:
                await self._complete(job, stored, record)
            return
        if record is None or record.replay != job.replay:
            record = self._new_record(job, record)
        if job.failure is not None:
            return await self._fail(job, stored, record, job.failure_code, job.failure)
        if isinstance(job.source, CallSource):
            return await self._deliver_call(job, job.source.call, stored, record)
        rule = self._rules.get(job.rule)
        if rule is None:
            await self._persist(self._rules.refresh)
            rule = self._rules.get(job.rule)
        if rule is None or rule.record.uid != job.uid:
            # A rule with another `uid` may belong to another user, who must not get this event.
            text = "the rule was deleted"
            if stored.delivered > 1:
                text += ", perhaps after an attempt whose result was not recorded"
            return await self._fail_unless_done(job, stored, record, "rule_deleted", text)
        record.name = rule.record.rule.name
        if job.deferrals > MAX_DEFERRALS:
            text = f"put off {job.deferrals} times: the rule is paused, or the receiver away"
            return await self._fail(job, stored, record, "put_off_too_often", text)
        if rule.record.paused is not None or not rule.record.rule.enabled:
            return await self._defer(job, deferral_delay_s(PAUSED_S, job.deferrals))
        await self._attempt_or_postpone(rule, job, stored, record)

    async def _deliver_call(
        self, job: Job, call: CallJob, stored: Stored, record: DeliveryRecord
    ) -> None:
        record.name = call.workflow
        if not await self._persist(lambda: wants_answer(self._bus, call)):
            text = "the workflow's run has ended before the call was delivered"
            return await self._fail(job, stored, record, "run_ended", text)
        if call.give_up_at is not None and self._bus.clock.time() >= call.give_up_at:
            text = "the time of the step was over before the call was delivered"
            if record.last is not None:
                text += f"; the last attempt failed: {record.last.text}"
            return await self._fail(job, stored, record, "gave_up", text)
        try:
            rule = rule_of_call(call, self._call_secrets)
        except CallRefused as refused:
            return await self._fail(job, stored, record, refused.code, str(refused))
        await self._attempt_or_postpone(rule, job, stored, record)

    async def _attempt_or_postpone(
        self, rule: CompiledRule, job: Job, stored: Stored, record: DeliveryRecord
    ) -> None:
        """Make an attempt if the executor has capacity for the attempt now; else postpone the
        job."""
        executor = self._executors[rule.record.rule.action.kind]
        async with executor.reserve_capacity(rule, job) as wait_s:
            if wait_s:
                return await self._defer(job, wait_s)
            await self._attempt(executor, rule, job, stored, record)

    async def _attempt(
        self,
        executor: ActionExecutor,
        rule: CompiledRule,
        job: Job,
        stored: Stored,
        record: DeliveryRecord,
    ) -> None:
        occurrence = await self._persist(lambda: self._occurrence(job))
        if occurrence is None:
            text = "the event has expired or was deleted before it was delivered"
            return await self._fail_unless_done(job, stored, record, "event_expired", text)
        if job.attempt == 1:
            await self._announce_trigger(job, record)
        if spans.is_on():
            own = replace(occurrence, traceparent=context_of(job, occurrence.traceparent))
        else:
            own = occurrence
        attempted = await self._persist(
            lambda: executor.attempt(rule, job, own, record.started_run_id)
        )
        if isinstance(attempted, AttemptDeferred):
            return await self._defer(job, attempted.wait_s)
        await self._handle_attempt(job, stored, record, attempted)
        if spans.is_on():
            spans.record(span_of(job, record, occurrence.traceparent))

    async def _handle_attempt(
        self, job: Job, stored: Stored, record: DeliveryRecord, attempted: Attempted
    ) -> None:
        meant, now = attempted.verdict, self._bus.clock.time()
        telemetry.DELIVERY_ATTEMPTS.labels(meant.code or "delivered").inc()
        record.request = attempted.request
        record.started_run_id = attempted.run_id or record.started_run_id
        record.attempts.append(
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
            )
        )
        record.made = job.attempt
        record.answer = attempted.whole_answer
        wait_s = self._wait_s(job, meant.retry_after_s, now)
        if meant.outcome == "delivered":
            record.status, record.ended_at = "delivered", now
        elif meant.outcome != "failed" or wait_s is None:
            record.status, record.ended_at = "failed", now
        else:
            record.status, record.next_at = "waiting", now + wait_s
        if meant.outcome != "delivered":
            following = f"; the next in {wait_s:.0f} s" if record.status == "waiting" else ""
            log.warning(
                "%s: %s: attempt %d failed: %s%s",
                *(job.about, job.on_behalf, job.attempt, meant.text, following),
            )
        elif job.attempt > 1:
            log.info("%s: %s: attempt %d was delivered", job.about, job.on_behalf, job.attempt)
        await self._complete_new(job, stored, record)
        if meant.outcome == "gone" and not isinstance(job.source, CallSource):
            await self._persist(lambda: self._store.pause(job.rule, meant.text, "penstock"))

    def _wait_s(self, job: Job, retry_after_s: float | None, now: float) -> float | None:
        """Return the seconds until the next attempt; None if no further attempt may be made."""
        delays_s: Sequence[float] = self._limits.delays_s
        last = math.inf
        if isinstance(job.source, CallSource):
            call = job.source.call
            delays_s = delays_s if call.retry_delays_s is None else call.retry_delays_s
            last = math.inf if call.give_up_at is None else call.give_up_at
        wait_s = delay_s(job.attempt, delays_s, retry_after_s, random.random())
        # The server delivers scheduled messages at whole seconds, so the time is rounded up.
        return None if wait_s is None or math.ceil(now + wait_s) >= last else wait_s

    async def _fail(
        self, job: Job, stored: Stored, record: DeliveryRecord, code: str, text: str
    ) -> None:
        """End a delivery that no attempt can complete."""
        at = self._bus.clock.stamp()
        record.attempts.append(
            Attempt(
                number=job.attempt,
                replay=job.replay,
                at=at,
                seconds=0,
                code=code,
                text=text,
                final=code != "internal",
            )
        )
        record.status, record.ended_at = "failed", self._bus.clock.time()
        record.made = max(record.made, job.attempt - 1)
        await self._complete_new(job, stored, record)
        if spans.is_on():
            occurrence = await self._persist(lambda: self._occurrence(job))
            if occurrence is not None:
                spans.record(span_of(job, record, occurrence.traceparent))

    async def _fail_unless_done(
        self, job: Job, stored: Stored, record: DeliveryRecord, code: str, text: str
    ) -> None:
        """End a delivery, unless a killed process has made the attempt without recording it."""
        for executor in self._executors.values():
            attempted = await self._persist(partial(executor.complete_unrecorded_attempt, job))
            if attempted is not None:
                return await self._handle_attempt(job, stored, record, attempted)
        await self._fail(job, stored, record, code, text)

    async def _complete_new(self, job: Job, stored: Stored, record: DeliveryRecord) -> None:
        while not await self._persist(partial(self._records.put, job, record)):
            # This process did not answer in time, so the server has delivered the job to another
            # process. The record that the other process has written is kept.
            found = await self._persist(lambda: self._records.get(job))
            if found is not None and found.has_done(job):
                record = found
                break
            record.replace(found)
        await self._complete(job, stored, record)

    async def _complete(self, job: Job, stored: Stored, record: DeliveryRecord) -> None:
        """Do the steps that follow from the record. Every step may be repeated."""
        if record.status == "waiting":
            following = replace(job, attempt=record.made).next_attempt()
            at = record.next_at or self._bus.clock.time()
            await self._persist(lambda: self._schedule(following, at))
            return
        if isinstance(job.source, CallSource):
            call = job.source.call
            await self._persist(lambda: publish_call_outcome(self._bus, call, record))
            telemetry.DELIVERIES.labels(record.status).inc()
            log.info("%s: %s: %s", job.about, job.on_behalf, record.status)
            return
        if record.status == "failed" and job.can_be_repeated:
            letter = dead_letter(self._pod, job, stored, record)
            await self._persist(lambda: deadletters.store_dead_letter(self._bus, letter))
        if await self._announce_outcome(job, record):
            telemetry.DELIVERIES.labels(record.status).inc()
            if record.status == "failed" and job.can_be_repeated:
                telemetry.DEADLETTERS.labels("automations").inc()
                log.error(
                    "%s: %s: delivery %s has failed: %s",
                    *(
                        job.about,
                        job.on_behalf,
                        job.webhook_id,
                        outcome_event(job, record)[1]["result"],
                    ),
                )
        if job.ordered:
            following_job = await self._persist(lambda: self._order.done(job))
            if following_job is not None:
                first = following_job
                await self._persist(lambda: publish(self._bus, first))

    async def _announce_trigger(self, job: Job, record: DeliveryRecord) -> None:
        timeline = _timeline(job, record)
        if timeline is not None:
            data = triggered_data(job, record.name)
            await self._persist(
                lambda: self._announcements.once(
                    timeline, job, "triggered", "automation.triggered", data
                )
            )

    async def _announce_outcome(self, job: Job, record: DeliveryRecord) -> bool:
        """Write the outcome to the timeline; return False if an earlier call has written it.

        A delivery without a timeline has its outcome only in the delivery's record, the log and the
        metrics. For such a delivery, the result is always True.
        """
        timeline = _timeline(job, record)
        type_, data = outcome_event(job, record)
        if timeline is None:
            # a failure that becomes a dead letter is logged by `_complete`
            if record.status != "failed" or not job.can_be_repeated:
                log.info("%s: %s: %s: %s", job.about, job.on_behalf, type_, data["result"])
            return True
        if job.run_id is None:
            # This attempt has started the run, so `automation.triggered` can be written only now.
            await self._announce_trigger(job, record)
        return await self._persist(
            lambda: self._announcements.once(timeline, job, "outcome", type_, data)
        )

    async def _defer(self, job: Job, wait_s: float) -> None:
        """Put a job off without using an attempt."""
        telemetry.DELIVERIES_DEFERRED.inc()
        at = self._bus.clock.time() + wait_s
        if isinstance(job.source, CallSource) and job.source.call.give_up_at is not None:
            at = min(at, job.source.call.give_up_at)  # the workflow waits no longer for the answer
        await self._persist(lambda: self._schedule(job.deferred(), at))

    async def _schedule(self, job: Job, at: float) -> None:
        await schedule(self._bus, job.schedule_subject, job.due_subject, at, job.dump(), DUE_TTL_S)

    async def _occurrence(self, job: Job) -> Occurrence | None:
        """Return the event or trigger of the job; None if the event has expired."""
        source = job.source
        if isinstance(source, TriggerSource):
            return Occurrence(orjson.dumps(source.body))
        if isinstance(source, CallSource):
            log_fields.traced(source.call.run_id, source.call.traceparent)
            return Occurrence(b"{}", source.call.traceparent)
        stored = await self._bus.at(events_for(source.run_id), source.event)
        if stored is None or not stored.subject.endswith(source.run_id):
            return None
        try:
            payload = await objects.unwrap(self._bus, stored.payload)
        except ObjectGone:
            return None
        traceparent = stored.headers.get("traceparent")
        log_fields.traced(source.run_id, traceparent)
        return Occurrence(payload, traceparent)

    def _new_record(self, job: Job, earlier: DeliveryRecord | None) -> DeliveryRecord:
        record = DeliveryRecord(
            id=job.webhook_id,
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
            began_at=self._bus.clock.time(),
            # A call is not replayed, and its body may be large.
            job={} if isinstance(job.source, CallSource) else orjson.loads(job.dump()),
        )
        record.replace(earlier)
        return record

    async def _persist(self, step: Callable[[], Awaitable[T]]) -> T:
        """Repeat a step until the bus answers, so that the result of an attempt is not lost."""
        for tries in itertools.count(1):
            try:
                return await step()
            except BusError as error:
                # Many deliveries may wait at once. So each delivery logs only its failed tries 1,
                # 2, 4, 8 and so on.
                if tries.bit_count() == 1:
                    log.warning("a delivery waits until NATS answers (try %d): %s", tries, error)
                await asyncio.sleep(RETRY_S)
        raise AssertionError("unreachable")


def _timeline(job: Job, record: DeliveryRecord) -> Timeline | None:
    """Return the timeline of the delivery; None for a trigger that has started no run."""
    if isinstance(job.source, EventSource):
        return Timeline(job.source.run_id, job.source.raw, job.source.leg)
    return Timeline(record.started_run_id) if record.started_run_id is not None else None
