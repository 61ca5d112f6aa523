"""Carries out one job: makes an attempt, records its result, and does what follows from it."""

from __future__ import annotations

import asyncio
import itertools
import logging
import math
import random
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from functools import partial
from typing import TypeVar

import orjson

from penstock import log_fields, telemetry
from penstock.bus import Bus, BusError, ObjectGone, Stored
from penstock.bus.read.work_queue import GiveUp
from penstock.bus.state import deadletters
from penstock.bus.streams import events_for
from penstock.bus.subjects import event
from penstock.bus.write import objects
from penstock.runs.calls import CallJob
from penstock.tracing import spans
from penstock_automations.actions.executor import (
    ActionExecutor,
    AttemptDeferred,
    Attempted,
    Occurrence,
)
from penstock_automations.actions.shares import Shares
from penstock_automations.actions.webhook.exchange import GONE
from penstock_automations.delivery.announcements import Announcements, Timeline
from penstock_automations.delivery.failing import FailingRules, warning_of
from penstock_automations.delivery.outcomes import (
    context_of,
    dead_letter,
    outcome_event,
    publish_call_outcome,
    span_of,
    triggered_data,
    waiting_user,
)
from penstock_automations.delivery.records import Attempt, DeliveryRecord, Records, new_record
from penstock_automations.jobs.job import CallSource, EventSource, Job, TriggerSource
from penstock_automations.jobs.order import Order
from penstock_automations.jobs.publish import postpone, publish
from penstock_automations.jobs.return_times import ReturnTimes
from penstock_automations.rules.actions import ActionKind
from penstock_automations.rules.calls import CallRefused, CallSecret, rule_of_call
from penstock_automations.rules.pushes import prefix
from penstock_automations.rules.records import CompiledRule
from penstock_automations.rules.store import CurrentRules, RuleStore

log = logging.getLogger(__name__)

T = TypeVar("T")

RETRY_S = 1.0
MAX_RETRY_AFTER_S = 24 * 3600.0
_SPREAD = 0.1  # delays are varied by up to this part
# The first and the longest wait in seconds of a delivery whose rule is paused.
PAUSED_S = (10.0, 3600.0)
# Seconds after which a delivery that waits for its receiver gets a record, so that lists have it.
# A delivery to a receiver that works waits no longer (`AHEAD_S`), and needs one write less
# (decision 0276).
LISTED_AFTER_S = 10.0
# Only runs that have ended are erased. So an event that is younger than these seconds is delivered
# without a look for the erasure of its run, which takes a request to NATS.
ERASED_AFTER_S = 1.0


@dataclass(frozen=True, slots=True)
class Failed:
    """A delivery fails without an attempt. An attempt may be `unrecorded`: a killed process may
    have made it without recording it."""

    code: str
    text: str
    unrecorded: bool = False


Result = Attempted | AttemptDeferred | Failed


@dataclass(frozen=True, slots=True)
class Parts:
    """What all deliveries of a process use.

    `places` are the deliveries that may be in memory, shared by owners, and `times` those at which
    a delivery without a place is tried again. `delays_s` has the seconds between the attempts of a
    delivery, and `max_age_s` the seconds after which there is no further attempt.
    """

    bus: Bus
    pod: str
    rules: CurrentRules
    store: RuleStore
    order: Order
    executors: Mapping[ActionKind, ActionExecutor]
    call_secrets: Mapping[str, CallSecret]
    announcements: Announcements
    records: Records
    failing: FailingRules
    places: Shares
    times: ReturnTimes
    delays_s: Sequence[float]
    max_age_s: float


class Deliverer:
    """Carries out the jobs of DELIVERIES."""

    def __init__(self, parts: Parts, give_up: GiveUp) -> None:
        self._parts = parts
        self._give_up = give_up

    async def handle(self, stored: Stored) -> None:
        """Carry out a job. A repeated call does the steps that are missing. Raises BusError."""
        try:
            job = Job.parse(stored.payload)
        except ValueError as error:
            await self._give_up(stored, error)
        else:
            await Delivery(self._parts, job, stored).carry_out()

    async def give_up(self, stored: Stored, error: Exception) -> None:
        """Give up a job whose handling fails. The failure is recorded as the delivery's outcome,
        because other jobs may wait for it."""
        log.error("%s: given up", stored.subject, exc_info=error)
        try:
            await Delivery(self._parts, Job.parse(stored.payload), stored).give_up(error)
        except Exception as failure:
            await self._give_up(stored, failure)


class Delivery:
    """One delivery, while this process carries out one job of it."""

    def __init__(self, parts: Parts, job: Job, stored: Stored) -> None:
        self._parts = parts
        self._bus = parts.bus
        self._job = job
        self._stored = stored
        self._since = job.since or parts.bus.clock.time()
        self._delays_s: Sequence[float] = parts.delays_s
        self._record: DeliveryRecord
        self._traceparent: str | None = None  # of the event or trigger, once this was read

    async def carry_out(self) -> None:
        """Make the attempt that the job asks for, unless it was made before."""
        job = self._job
        earlier = await self._parts.records.get(job)
        if earlier is not None and earlier.has_done(job):
            # An earlier process has made this attempt, and ended before it finished the other
            # steps.
            if earlier.replay == job.replay:
                self._record = earlier
                await self._follow()
            return
        self._record = new_record(job, earlier, self._bus.clock.time())
        async with self._listed_if_slow():
            result = await self._result()
        if isinstance(result, Failed) and result.unrecorded:
            result = await self._unrecorded_attempt() or result
        match result:
            case Attempted():
                await self._settle(result)
            case AttemptDeferred():
                await self._put_off(result)
            case Failed():
                await self._fail(result)

    async def give_up(self, error: Exception) -> None:
        """Record an unexpected error as the outcome, because other jobs may wait for it."""
        record = await self._parts.records.get(self._job)
        if record is None or not record.has_done(self._job):
            record = new_record(self._job, record, self._bus.clock.time())
        self._record = record
        await self._fail(Failed("internal", repr(error)[:200]))

    async def _result(self) -> Result:
        job = self._job
        if job.failure is not None:
            return Failed(job.failure_code, job.failure)
        rule: CompiledRule | AttemptDeferred | Failed
        if isinstance(job.source, CallSource):
            rule = await self._rule_of_call(job.source.call)
        else:
            rule = await self._rule()
        if not isinstance(rule, CompiledRule):
            return rule
        if (own := rule.record.rule.retry_delays_s) is not None:
            self._delays_s = own
        return await self._attempt_with_place(rule)

    async def _rule(self) -> CompiledRule | AttemptDeferred | Failed:
        job = self._job
        rule = self._parts.rules.get(job.rule)
        if rule is None:
            await self._parts.rules.refresh_all()
            rule = self._parts.rules.get(job.rule)
        if rule is None or rule.record.uid != job.uid:
            # A rule with another `uid` may belong to another user, who must not get this event.
            text = "the rule was deleted"
            if self._stored.delivered > 1:
                text += ", perhaps after an attempt whose result was not recorded"
            return Failed("rule_deleted", text, unrecorded=True)
        self._record.name = rule.record.rule.name
        if not rule.matches_now:
            return AttemptDeferred(paused_delay_s(job.deferrals), "pause")
        return rule

    async def _rule_of_call(self, call: CallJob) -> CompiledRule | Failed:
        self._record.name = call.workflow
        user = await waiting_user(self._bus, call)
        if user is None:
            text = "the workflow's run has ended before the call was delivered"
            return Failed("run_ended", text)
        if call.give_up_at is not None and self._bus.clock.time() >= call.give_up_at:
            text = "the time of the step was over before the call was delivered"
            if self._record.last is not None:
                text += f"; the last attempt failed: {self._record.last.text}"
            return Failed("gave_up", text)
        try:
            return rule_of_call(call, self._parts.call_secrets, user)
        except CallRefused as refused:
            return Failed(refused.code, str(refused))

    async def _attempt_with_place(self, rule: CompiledRule) -> Result:
        owner, places = rule.record.owner.user, self._parts.places
        places.note_arrival(owner)
        if not places.take(owner):
            return AttemptDeferred(self._parts.times.reserve_wait_s(owner, time.monotonic()))
        try:
            executor = self._parts.executors[rule.record.rule.action.kind]
            async with executor.reserve_capacity(rule, self._job) as put_off:
                return put_off or await self._attempt(executor, rule)
        finally:
            places.give_back(owner)

    async def _attempt(self, executor: ActionExecutor, rule: CompiledRule) -> Result:
        job = self._job
        occurrence = await self._occurrence()
        if occurrence is None:
            text = "the event has expired or was deleted before it was delivered"
            return Failed("event_expired", text, unrecorded=True)
        if job.attempt == 1:
            await self._announce_trigger()
        if spans.is_on():
            self._traceparent = occurrence.traceparent
            occurrence = replace(occurrence, traceparent=context_of(job, occurrence.traceparent))
        return await executor.attempt(rule, job, occurrence, self._record.started_run_id)

    @asynccontextmanager
    async def _listed_if_slow(self) -> AsyncIterator[None]:
        """Store the record of a delivery that waits for longer than `LISTED_AFTER_S` seconds."""
        if isinstance(self._job.source, CallSource):  # calls are in no list
            yield
            return
        writes: list[asyncio.Task[bool]] = []
        timer = asyncio.get_running_loop().call_later(
            LISTED_AFTER_S, lambda: writes.append(asyncio.create_task(self._list()))
        )
        try:
            yield
        finally:
            timer.cancel()
            # The next write needs the revision of this one.
            await asyncio.gather(*writes)

    async def _list(self) -> bool:
        self._record.wait("receiver", None)
        # The result of the attempt that is under way must not be lost by an error of this write.
        return await self._persist(self._put_waiting)

    async def _put_waiting(self) -> bool:
        """Store the record, and records of what waits for this delivery. Raises BusError. Return
        False if another process has written the record meanwhile; its record is kept."""
        is_written = await self._parts.records.put(self._job, self._record)
        await self._record_behind()
        return is_written

    async def _record_behind(self) -> None:
        if self._job.ordered:
            await self._parts.order.record_behind(self._job)

    async def _unrecorded_attempt(self) -> Attempted | None:
        """Return the attempt that a killed process has made without recording it, if any."""
        for executor in self._parts.executors.values():
            if (attempted := await executor.complete_unrecorded_attempt(self._job)) is not None:
                return attempted
        return None

    async def _settle(self, attempted: Attempted) -> None:
        job, record = self._job, self._record
        meant, now = attempted.verdict, self._bus.clock.time()
        telemetry.DELIVERY_ATTEMPTS.labels(meant.code or "delivered").inc()
        record.add(job, attempted)
        wait_s = self._wait_s(meant.retry_after_s, now)
        if meant.outcome == "delivered":
            record.end("delivered", now)
        elif meant.outcome != "failed" or wait_s is None:
            record.end("failed", now)
        else:
            record.wait("retry", now + wait_s)
        if meant.outcome != "delivered":
            following = f"; the next in {wait_s:.0f} s" if record.status == "waiting" else ""
            text, number = f"{meant.text}{following}", job.attempt
            log.warning("%s: %s: attempt %d failed: %s", job.about, job.on_behalf, number, text)
        elif job.attempt > 1:
            log.info("%s: %s: attempt %d was delivered", job.about, job.on_behalf, job.attempt)
        await self._store()
        await self._tell_owner(meant.outcome == "delivered", meant.text)
        self._trace()
        await self._follow()

    def _wait_s(self, retry_after_s: float | None, now: float) -> float | None:
        """Return the seconds until the next attempt; None if no further attempt may be made."""
        last = self._since + self._parts.max_age_s
        if isinstance(self._job.source, CallSource):
            give_up_at = self._job.source.call.give_up_at
            last = math.inf if give_up_at is None else give_up_at
        wait_s = delay_s(self._job.attempt, self._delays_s, retry_after_s, random.random())
        # The server delivers scheduled messages at whole seconds, so the time is rounded up.
        return None if wait_s is None or math.ceil(now + wait_s) >= last else wait_s

    async def _put_off(self, put_off: AttemptDeferred) -> None:
        job, record, now = self._job, self._record, self._bus.clock.time()
        if put_off.waits_for == "pause":
            self._since = now  # a delivery does not grow too old during a pause
        elif now - self._since > self._parts.max_age_s:
            text = f"it could not be delivered for {self._parts.max_age_s:.0f} s"
            if record.last is not None:
                text += f"; the last attempt failed: {record.last.text}"
            return await self._fail(Failed("too_old", text))
        telemetry.DELIVERIES_DEFERRED.inc()
        at = now + put_off.wait_s
        if isinstance(job.source, CallSource) and job.source.call.give_up_at is not None:
            at = min(at, job.source.call.give_up_at)  # the workflow waits no longer for the answer
        # Of a delivery that waits for a short time, only the reason is recorded. Else each try
        # would write the record, and there are many tries while a process is busy.
        is_short = put_off.waits_for in ("capacity", "rate")
        is_new = not record.is_stored or record.waits_for != put_off.waits_for
        if (is_new or not is_short) and not isinstance(job.source, CallSource):
            record.wait(put_off.waits_for, None if is_short else at)
            await self._put_waiting()
        await postpone(self._bus, job.deferred(self._since), at)

    async def _fail(self, failed: Failed) -> None:
        record = self._record
        record.attempts.append(
            Attempt(
                number=self._job.attempt,
                replay=self._job.replay,
                at=self._bus.clock.stamp(),
                seconds=0,
                code=failed.code,
                text=failed.text,
                final=failed.code != "internal",
            )
        )
        record.made = max(record.made, self._job.attempt - 1)
        record.end("failed", self._bus.clock.time())
        await self._store()
        if spans.is_on() and self._traceparent is None:
            occurrence = await self._occurrence()
            self._traceparent = occurrence.traceparent if occurrence is not None else None
        self._trace()
        await self._follow()

    async def _store(self) -> None:
        put = partial(self._parts.records.put, self._job, self._record)
        while not await self._persist(put):
            # This process did not answer in time, so the server has delivered the job to another
            # process. The record that the other process has written is kept.
            found = await self._persist(partial(self._parts.records.get, self._job))
            if found is not None and found.has_done(self._job):
                self._record = found
                return
            self._record.replace(found)

    async def _follow(self) -> None:
        """Do the steps that follow from the record. Every step may be repeated."""
        job, record = self._job, self._record
        if record.status == "waiting":
            await self._record_behind()
            # If the next attempt was put off already, its job is scheduled.
            if record.waits_for in (None, "retry"):
                at = record.next_at or self._bus.clock.time()
                await postpone(self._bus, job.attempt_after(record.made, self._since), at)
            return
        if isinstance(job.source, CallSource):
            call = job.source.call
            await publish_call_outcome(self._bus, call, record)
            telemetry.DELIVERIES.labels(record.status).inc()
            log.info("%s: %s: %s", job.about, job.on_behalf, record.status)
            return
        is_gone = record.last is not None and record.last.code == GONE
        if job.run_id and job.rule.startswith(prefix(job.run_id)) and (is_gone or job.is_last):
            await self._parts.store.delete(job.rule, uid=job.uid)
        elif record.last is not None and is_gone:
            await self._parts.store.pause(job.rule, record.last.text, "penstock", job.uid)
        if record.is_dropped:
            await self._drop()
        else:
            await self._tell_outcome()
        if job.ordered:
            first = await self._parts.order.remove(job)
            if first is not None:
                await publish(self._bus, first)

    async def _drop(self) -> None:
        """End a delivery of a deleted rule with its outcome, but without a dead letter."""
        telemetry.DELIVERIES.labels("dropped").inc()
        await self._announce_outcome()

    async def _tell_outcome(self) -> None:
        job, record = self._job, self._record
        is_dead = record.status == "failed" and job.can_be_repeated
        if is_dead:
            letter = dead_letter(self._parts.pod, job, self._stored, record)
            await deadletters.store_dead_letter(self._bus, letter)
        if not await self._announce_outcome():
            return
        telemetry.DELIVERIES.labels(record.status).inc()
        result = outcome_event(job, record)[1]["result"]
        if is_dead:
            telemetry.DEADLETTERS.labels("automations").inc()
            text = "%s: %s: delivery %s has failed: %s"
            log.error(text, job.about, job.on_behalf, job.delivery_id, result)
        elif self._timeline is None:  # such an outcome is in no event
            log.info("%s: %s: %s: %s", job.about, job.on_behalf, record.status, result)

    @property
    def _timeline(self) -> Timeline | None:
        """The timeline of the delivery; None for a trigger that has started no run."""
        source, started = self._job.source, self._record.started_run_id
        if isinstance(source, EventSource):
            return Timeline(source.run_id, source.raw, source.leg)
        return Timeline(started) if started is not None else None

    async def _announce_trigger(self) -> None:
        timeline, data = self._timeline, triggered_data(self._job, self._record.name)
        if timeline is not None:
            write_once = self._parts.announcements.write_once
            await write_once(
                timeline, self._job, what="triggered", type_="automation.triggered", data=data
            )

    async def _announce_outcome(self) -> bool:
        """Write the outcome to the timeline; return False if an earlier call has written it.

        A delivery without a timeline has its outcome only in the delivery's record, the log and the
        metrics. For such a delivery, the result is always True.
        """
        timeline = self._timeline
        if timeline is None:
            return True
        if self._job.run_id is None:
            # This attempt has started the run, so `automation.triggered` can be written only now.
            await self._announce_trigger()
        type_, data = outcome_event(self._job, self._record)
        return await self._parts.announcements.write_once(
            timeline, self._job, what="outcome", type_=type_, data=data
        )

    async def _tell_owner(self, is_delivered: bool, text: str) -> None:
        job, failing = self._job, self._parts.failing
        if isinstance(job.source, CallSource):
            return
        if is_delivered:
            failing.count_success(job.rule)
        elif failing.count_failure(job.rule) and (timeline := self._timeline) is not None:
            data, write_once = warning_of(job, text), self._parts.announcements.write_once
            await self._persist(
                lambda: write_once(timeline, job, what="failing", type_="system.warning", data=data)
            )

    def _trace(self) -> None:
        if spans.is_on():
            spans.record(span_of(self._job, self._record, self._traceparent))

    async def _occurrence(self) -> Occurrence | None:
        source = self._job.source
        if isinstance(source, TriggerSource):
            return Occurrence(orjson.dumps(source.body))
        if isinstance(source, CallSource):
            log_fields.traced(source.call.run_id, source.call.traceparent)
            return Occurrence(b"{}", source.call.traceparent)
        stored = await self._bus.at(events_for(source.run_id), source.event)
        if stored is None or not stored.subject.endswith(source.run_id):
            return None
        if self._bus.clock.age_s(stored.stored_at) > ERASED_AFTER_S:
            subject = event("system.erased", source.run_id)
            erased = await self._bus.tail(events_for(source.run_id), subject)
            if erased is not None and erased.sequence > stored.sequence:
                return None  # the content of the run is being erased
        try:
            payload = await objects.unwrap(self._bus, stored.payload)
        except ObjectGone:
            return None
        traceparent = stored.headers.get("traceparent")
        log_fields.traced(source.run_id, traceparent)
        return Occurrence(payload, traceparent)

    async def _persist(self, step: Callable[[], Awaitable[T]]) -> T:
        """Repeat a step until the bus answers, so that the result of an attempt is not lost. All
        other steps are repeated with the whole job by the queue that calls `Deliverer.handle`."""
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


def delay_s(
    attempt: int, delays_s: Sequence[float], retry_after_s: float | None, random: float
) -> float | None:
    """Return the seconds to wait after this attempt has failed; None after the last attempt.

    `attempt` counts from 1. `random` is between 0 and 1 and varies the delay by up to a tenth, so
    that deliveries that failed together are not repeated together. The receiver's `Retry-After`
    replaces the delay.
    """
    if attempt > len(delays_s):
        return None
    if retry_after_s is not None:
        return min(max(retry_after_s, 0.0), MAX_RETRY_AFTER_S)
    return delays_s[attempt - 1] * (1 + _SPREAD * (2 * random - 1))


def paused_delay_s(deferrals: int) -> float:
    """Return the seconds to wait, which double with each deferral up to the longest wait."""
    first_s, longest_s = PAUSED_S
    return min(first_s * 2.0 ** min(deferrals, 20), longest_s)
