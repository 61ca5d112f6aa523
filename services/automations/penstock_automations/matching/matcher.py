"""Takes events, and publishes a job for each rule that matches an event."""

from __future__ import annotations

import asyncio
import logging
import math
import time
from collections import Counter, defaultdict
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import orjson

from penstock import log_fields, telemetry
from penstock.bus import Bus, ObjectGone, Stored, messages, subjects
from penstock.bus.read import direct
from penstock.bus.read.work_queue import GiveUp
from penstock.bus.streams import events_for
from penstock.bus.write import objects
from penstock.expressions import Budget, TooMuch
from penstock.turns import TenantUser, Turns
from penstock_automations.actions.shares import Shares
from penstock_automations.jobs.job import EventSource, Job
from penstock_automations.jobs.order import Between, Order
from penstock_automations.jobs.publish import postpone, publish, publish_first
from penstock_automations.jobs.return_times import ReturnTimes
from penstock_automations.matching.backlog import Backlog
from penstock_automations.matching.evaluations import LOOP_STEPS, Evaluations
from penstock_automations.matching.facts import Facts, RunFacts
from penstock_automations.matching.lanes import Lanes
from penstock_automations.matching.rule_matches import (
    Match,
    depth_of,
    depth_refusal,
    matched,
    may_act,
)
from penstock_automations.rules.records import CompiledRule, event_of
from penstock_automations.rules.store import CurrentRules

log = logging.getLogger(__name__)

# How many events a user has matched in one turn. Neighbours are often of one run, and an ordered
# rule's jobs of one run are stored by one write.
IN_TURN: Final = 10
# The seconds that one user's events in a batch may take before the user's later events go to the
# user's lane, and the seconds after which other tasks of the process may run.
TURN_S: Final = 0.02
LOOP_S: Final = 0.005
ROOM_CHECK_S: Final = 0.05  # seconds between two looks whether jobs of a lane may be published
# An ordered rule also matches the run's earlier events that no process has matched yet. Beside
# other users' events, this is done for so many events of the stream; in a lane, for all.
MAX_BETWEEN: Final = 10_000
# The steps that reading and parsing an event count, beside those of its conditions.
READ_STEPS: Final = 50

# The errors that are raised when an event cannot be read, because the normalizer did not write the
# event, or because the event's object has expired.
_UNREADABLE = (ObjectGone, ValueError, KeyError, TypeError, AttributeError)


@dataclass(frozen=True, slots=True)
class Event:
    """An event for which rules wait. `variable` is the variable `event` of conditions."""

    stored: Stored
    type: str
    run_id: str
    facts: RunFacts
    body: dict[str, Any]
    variable: dict[str, Any]

    def may_fire(self, rule: CompiledRule) -> bool:
        stream = events_for(self.run_id)
        waits = rule.waits_for_event(self.type, stream, self.stored.sequence)
        # A rule that may not act on this run is dropped before its condition is evaluated. If all
        # conditions were evaluated, one user's rules would take time for other users' events.
        return waits and may_act(rule, self.facts, self.body)


@dataclass(frozen=True, slots=True)
class _Arrival:
    """An event that has arrived, and the result of its handler: None when its jobs are stored."""

    stored: Stored
    result: asyncio.Future[None]

    @property
    def stream(self) -> str:
        return events_for(subjects.run_id_of(self.stored.subject))

    def end(self, error: Exception | None = None) -> None:
        if self.result.done():  # the handler was cancelled
            return
        if error is None:
            self.result.set_result(None)
        else:
            self.result.set_exception(error)


@dataclass(frozen=True, slots=True)
class _Work:
    """An event that has arrived, with its jobs, or an event in a lane, which has none yet."""

    arrival: _Arrival
    event: Event
    jobs: Sequence[Job] = ()


@dataclass(slots=True)
class _Batch:
    """What has become of the events of a batch. Those in a lane are not here.

    `full` has, by owner and stream, the events for which the owner's lane is full. `used_s` has the
    seconds that an owner's events have taken, and `jobs` how many jobs of his rules they have.
    """

    quick: list[_Work] = field(default_factory=list)
    done: list[_Arrival] = field(default_factory=list)
    full: defaultdict[tuple[TenantUser, str], list[_Arrival]] = field(
        default_factory=lambda: defaultdict(list)
    )
    used_s: defaultdict[TenantUser, float] = field(default_factory=lambda: defaultdict(float))
    jobs: Counter[TenantUser] = field(default_factory=Counter)


class Matcher:
    """Matches the events that have arrived, up to `batch` after each look at the rules.

    Users take turns in a batch. The events of a batch are matched one after another. If an event
    takes long, this event and later events of the same user go to the user's lane. If the lane is
    full, they wait in NATS.
    """

    def __init__(
        self,
        bus: Bus,
        rules: CurrentRules,
        evaluations: Evaluations,
        order: Order,
        places: Shares,
        times: ReturnTimes,
        *,
        give_up: GiveUp,
        batch: int,
    ) -> None:
        self._bus = bus
        self._rules = rules
        self._evaluations = evaluations
        self._order = order
        self._places = places
        self._times = times
        self._give_up = give_up
        self._batch = batch
        self._facts = Facts(bus)
        self._lanes = Lanes(self._match_slowly)
        self.backlog = Backlog(bus, self.handle, self._lanes.is_half_free, give_up)
        self._arrived: Turns[_Arrival] = Turns(IN_TURN)
        self._matching: asyncio.Task[None] | None = None

    async def handle(self, stored: Stored) -> None:
        """Match an event, and store its jobs. An event for which the user's lane has no room is
        stored in the backlog instead. Raises BusError; match the event again."""
        arrival = _Arrival(stored, asyncio.get_running_loop().create_future())
        run_id = subjects.run_id_of(stored.subject)
        # The first events of a run have a queue of their own, until the run's owner is known.
        facts = self._facts.known(run_id)
        user = facts.user if facts is not None else TenantUser("", run_id)
        self._arrived.add(user, arrival)
        if self._matching is None:
            self._matching = asyncio.create_task(self._match_arrived())
        await arrival.result

    async def stop(self) -> None:
        """Stop matching. The events that were not matched come again, perhaps elsewhere."""
        await self._lanes.stop()
        if self._matching is not None:
            self._matching.cancel()

    async def _match_arrived(self) -> None:
        try:
            while self._arrived:
                # Within a batch, events keep the order of their stream.
                batch = sorted(
                    self._arrived.take(self._batch), key=lambda each: each.stored.sequence
                )
                try:
                    await self._match(batch)
                except Exception as error:
                    for arrival in batch:
                        arrival.end(error)
        finally:
            self._matching = None

    async def _match(self, batch: Sequence[_Arrival]) -> None:
        # The server delivers an event to any process. Without this refresh, a process that has not
        # yet read a new rule would acknowledge the rule's first events without a job.
        await self._rules.refresh()
        matched = _Batch()
        begun = time.perf_counter()
        for arrival in batch:
            await self._take(arrival, matched)
            if time.perf_counter() - begun > LOOP_S:
                await asyncio.sleep(0)
                begun = time.perf_counter()
        await self._finish(matched)

    async def _take(self, arrival: _Arrival, batch: _Batch) -> None:
        stored = arrival.stored
        type_, _, run_id = stored.subject.rpartition(".")
        if not self._rules.index.has_type(type_):
            batch.done.append(arrival)
            return
        facts = self._facts.known(run_id) or await self._facts.of(run_id)
        if facts is None:
            log.warning("run %s: no rule acts on its %s, since it has no record", run_id, type_)
            batch.done.append(arrival)
            return
        owner = facts.user
        if self._lanes.is_full(owner):
            batch.full[owner, events_for(run_id)].append(arrival)
            return
        try:
            event = await self._parsed(stored, type_, run_id, facts)
        except _UNREADABLE as error:
            # No later try can read this event. If this event were not given up, all later events
            # would wait for this event.
            await self._give_up(stored, error)
            batch.done.append(arrival)
            return
        jobs = None
        if batch.used_s[owner] < TURN_S and not self._lanes.is_busy(owner):
            begun = time.perf_counter()
            jobs = self._match_quickly(event)
            batch.used_s[owner] += time.perf_counter() - begun
        if jobs is None or (jobs and not self._is_publishable(owner, jobs, batch)):
            self._lanes.add(owner, _Work(arrival, event))
        elif jobs:
            batch.quick.append(_Work(arrival, event, jobs))
        else:
            batch.done.append(arrival)

    def _is_publishable(self, owner: TenantUser, jobs: Sequence[Job], batch: _Batch) -> bool:
        """Return False if so many jobs of the owner stand before the jobs of others already."""
        count = self._count_of(owner, jobs)
        if count and batch.jobs[owner] >= self._places.publishable(owner):
            return False
        batch.jobs[owner] += count
        return True

    async def _finish(self, batch: _Batch) -> None:
        jobs = [job for each in batch.quick for job in each.jobs]
        unfinished = await self._store_jobs(jobs, self._between_quickly)
        for each in batch.quick:
            owner = each.event.facts.user
            if not any(job.ordered and job.order_key in unfinished for job in each.jobs):
                batch.done.append(each.arrival)
            elif self._lanes.is_full(owner):
                batch.full[owner, each.arrival.stream].append(each.arrival)
            else:
                self._lanes.add(owner, _Work(each.arrival, each.event))
        for (owner, stream), arrivals in batch.full.items():
            await self.backlog.put(owner, stream, [each.stored.sequence for each in arrivals])
            batch.done += arrivals
        for arrival in batch.done:
            arrival.end()

    async def _parsed(self, stored: Stored, type_: str, run_id: str, facts: RunFacts) -> Event:
        body = orjson.loads(await objects.unwrap(self._bus, stored.payload))
        # These fields are read here, because an event without them cannot be read.
        _ = body["event"]["category"], body["data"].get, int(body["sequence"])
        return Event(stored, type_, run_id, facts, body, event_of(body))

    def _match_quickly(self, event: Event) -> list[Job] | None:
        """Return the jobs of an event; None if matching takes long."""
        budget = Budget(LOOP_STEPS)
        found = []
        try:
            for rule in self._candidates(event):
                if event.may_fire(rule):
                    budget.take()
                    found.append(matched(rule, event.variable, budget))
        except TooMuch:
            return None
        return [job_of(event, match) for match in found if match is not None]

    async def _match_slowly(self, slow: _Work) -> None:
        """Match an event of a lane, and let other tasks run between the conditions."""
        event = slow.event
        log_fields.bind(event.run_id)
        try:
            rules = [rule for rule in self._candidates(event) if event.may_fire(rule)]
            found = await self._matched_in_turns(rules, event)
            jobs = [job_of(event, match) for match in found]
            owner = event.facts.user
            while self._count_of(owner, jobs) and not self._places.publishable(owner):
                await asyncio.sleep(ROOM_CHECK_S)
            await self._store_jobs(jobs, self._between_in_turns)
        except Exception as error:
            slow.arrival.end(error)
        else:
            slow.arrival.end()

    async def _matched_in_turns(self, rules: Iterable[CompiledRule], event: Event) -> list[Match]:
        found = []
        for rule in rules:
            try:
                async with self._lanes.turn(event.facts.tenant):
                    match = matched(rule, event.variable, Budget(LOOP_STEPS))
            except TooMuch:
                match = await self._evaluations.matched_off_loop(rule, event.variable)
            if match is not None:
                found.append(match)
        return found

    def _candidates(self, event: Event) -> Iterable[CompiledRule]:
        return self._rules.index.candidates(event.type, event.facts.owner, event.variable)

    async def _store_jobs(self, jobs: Sequence[Job], between: Between) -> set[str]:
        """Store jobs; return the `order_key` of each queue for which `between` raised TooMuch."""
        queues: dict[str, list[Job]] = {}
        for job in jobs:
            if job.ordered:
                queues.setdefault(job.order_key, []).append(job)
        unfinished: set[str] = set()

        async def extended(key: str) -> Job | None:
            try:
                return await self._order.extend(queues[key], between)
            except TooMuch:
                unfinished.add(key)
                return None

        first = [job for job in await asyncio.gather(*map(extended, queues)) if job is not None]
        unordered = [job for job in jobs if not job.ordered]
        await asyncio.gather(*self._entries((*unordered, *first)))
        for job in jobs:
            if not (job.ordered and job.order_key in unfinished):
                telemetry.RULE_MATCHES.labels("failed" if job.failure else "matched").inc()
        return unfinished

    def _owner_of(self, job: Job) -> TenantUser:
        rule = self._rules.get(job.rule)
        return rule.record.owner.user if rule is not None else TenantUser("", "")

    def _count_of(self, owner: TenantUser, jobs: Sequence[Job]) -> int:
        """Count the jobs of the owner's rules. Of ordered jobs, few are published at once."""
        return sum(not job.ordered and self._owner_of(job) == owner for job in jobs)

    async def store_past(self, jobs: Iterable[Job]) -> None:
        """Store jobs of events that a rule did not wait for, each unless it is stored already.

        A delivery with a record is left alone: its job would repeat what followed from its outcome,
        such as the rule's pause after a 410. Raises BusError; repeat the call."""
        jobs, bucket = list(jobs), self._bus.bucket("deliveries")
        records = await asyncio.gather(*(bucket.get(job.key) for job in jobs))
        new = [job for job, record in zip(jobs, records, strict=True) if record is None]
        await asyncio.gather(*self._entries(new, publish_first))

    def _entries(
        self, jobs: Iterable[Job], store: Callable[[Bus, Job], Awaitable[object]] = publish
    ) -> Iterator[Awaitable[object]]:
        """Yield a write for each job. A job whose owner has no room now is scheduled. In
        DELIVERIES, it would only stand before the jobs of other owners."""
        room: dict[TenantUser, int] = {}
        for job in jobs:
            owner = self._owner_of(job)
            room[owner] = room.get(owner, self._places.room(owner)) - 1
            if room[owner] >= 0:
                self._places.expect(owner)
                yield store(self._bus, job)
            else:
                wait_s = self._times.reserve_wait_s(owner, time.monotonic())
                yield postpone(self._bus, job, self._bus.clock.time() + wait_s)

    async def _between_in_turns(self, job: Job, after: int, upto: int) -> list[Job]:
        """Return the jobs of the job's rule and run for the events between two stream sequences."""
        jobs: list[Job] = []
        async for rule, event in self._missed(job, after, upto):
            found = await self._matched_in_turns([rule], event)
            jobs += [job_of(event, match) for match in found]
        return jobs

    async def _between_quickly(self, job: Job, after: int, upto: int) -> list[Job]:
        """Do what `_between_in_turns` does. Raises TooMuch: it takes long, so a lane has to do it.

        Without this limit, an ordered rule that matches rarely, for reasons that take long to
        evaluate, would have the events of other users wait.
        """
        budget = Budget(LOOP_STEPS)
        jobs: list[Job] = []
        async for rule, event in self._missed(job, after, upto, MAX_BETWEEN):
            budget.take(READ_STEPS)
            match = matched(rule, event.variable, budget)
            jobs += [job_of(event, match)] if match is not None else []
        return jobs

    async def _missed(
        self, job: Job, after: int, upto: int, at_most: float = math.inf
    ) -> AsyncIterator[tuple[CompiledRule, Event]]:
        """Yield the events of the job's run for which its rule waits.

        Raises:
            TooMuch: the stream may have more than `at_most` events between the two sequences.
        """
        rule, run_id = self._rules.get(job.rule), job.run_id
        if rule is None or rule.record.uid != job.uid or run_id is None:
            return
        stream = events_for(run_id)
        after = max(after, rule.record.begins.get(stream, 0))
        if upto - after > at_most:
            raise TooMuch
        if (facts := await self._facts.of(run_id)) is None:
            return
        names = [subjects.event(type_, run_id) for type_ in sorted({*rule.types, job.type})]
        for stored in await direct.between(self._bus, stream, names, after, upto):
            try:
                type_ = stored.subject.rpartition(".")[0]
                event = await self._parsed(stored, type_, run_id, facts)
            except _UNREADABLE:
                # The process that gets this event from the server makes the event a dead letter.
                continue
            if event.may_fire(rule):
                yield rule, event


def job_of(event: Event, match: Match) -> Job:
    rule = match.rule
    deep = depth_refusal(event.facts, event.body) if match.failure is None else None
    failure = match.failure or deep
    if failure is not None:
        log.warning("run %s: rule %s: %s", event.run_id, rule.id, failure)
    return Job(
        rule=rule.id,
        version=rule.record.version,
        uid=rule.record.uid,
        type=event.type,
        source=EventSource(
            event.run_id,
            event.body["sequence"],
            event=event.stored.sequence,
            raw=int(event.stored.headers.get(messages.RAW_POSITION, 0)),
            leg=event.body.get("leg", 1),
        ),
        ordered=rule.is_ordered,
        depth=depth_of(event.facts, event.body),
        failure=failure,
        failure_code="condition" if deep is None else "depth",
        dotted=False,
    )
