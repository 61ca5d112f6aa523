"""Takes events, and publishes a job for each rule that matches an event."""

from __future__ import annotations

import asyncio
import logging
import time
from collections import defaultdict
from collections.abc import Awaitable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final

import orjson

from penstock import log_fields, telemetry
from penstock.bus import Bus, GiveBack, ObjectGone, Stored, messages, subjects
from penstock.bus.read import direct
from penstock.bus.read.work_queue import GiveUp
from penstock.bus.streams import events_for
from penstock.bus.write import objects
from penstock.expressions import Budget, TooMuch
from penstock_automations.actions.shares import Shares
from penstock_automations.jobs.job import EventSource, Job
from penstock_automations.jobs.order import Order
from penstock_automations.jobs.publish import postpone, publish
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

LANE_FULL_S: Final = 2.0  # seconds until an event comes again that found its user's lane full
# The seconds that one user's events in a batch may take before the user's later events go to the
# user's lane, and the seconds after which other tasks of the process may run.
TURN_S: Final = 0.02
LOOP_S: Final = 0.005

# The errors that are raised when an event cannot be read, because the normalizer did not write the
# event, or because the event's object has expired.
_UNREADABLE = (ObjectGone, ValueError, KeyError, TypeError, AttributeError)


@dataclass(frozen=True, slots=True)
class _Event:
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

    def end(self, error: Exception | None = None) -> None:
        if self.result.done():  # the handler was cancelled
            return
        if error is None:
            self.result.set_result(None)
        else:
            self.result.set_exception(error)


@dataclass(frozen=True, slots=True)
class _Slow:
    """An event in a lane."""

    arrival: _Arrival
    event: _Event


class Matcher:
    """Matches the events that have arrived, up to `batch` after each look at the rules.

    The events of a batch are matched one after another. If an event takes long, this event and
    later events of the same user go to the user's lane.
    """

    def __init__(
        self,
        bus: Bus,
        rules: CurrentRules,
        evaluations: Evaluations,
        order: Order,
        places: Shares,
        *,
        give_up: GiveUp,
        batch: int,
    ) -> None:
        self._bus = bus
        self._rules = rules
        self._evaluations = evaluations
        self._order = order
        self._places = places
        self._give_up = give_up
        self._batch = batch
        self._facts = Facts(bus)
        self._lanes = Lanes(self._match_slowly)
        self._arrived: list[_Arrival] = []
        self._matching: asyncio.Task[None] | None = None

    async def handle(self, stored: Stored) -> None:
        """Match an event, and store its jobs.

        Raises:
            BusError: not all jobs are stored; match the event again.
            GiveBack: too many events of the same user wait.
        """
        arrival = _Arrival(stored, asyncio.get_running_loop().create_future())
        self._arrived.append(arrival)
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
                batch, self._arrived = self._arrived[: self._batch], self._arrived[self._batch :]
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
        jobs: list[Job] = []
        done: list[_Arrival] = []
        used_s: defaultdict[str, float] = defaultdict(float)
        begun = time.perf_counter()
        for arrival in batch:
            event = await self._read(arrival.stored)
            if event is None:
                done.append(arrival)
                continue
            owner, before = event.facts.owner, time.perf_counter()
            found = None
            if used_s[owner] < TURN_S and not self._lanes.is_busy(owner):
                found = self._match_quickly(event)
                used_s[owner] += time.perf_counter() - before
            if found is not None:
                jobs += found
                done.append(arrival)
            elif not self._lanes.add(owner, _Slow(arrival, event)):
                arrival.end(GiveBack(LANE_FULL_S))
            if time.perf_counter() - begun > LOOP_S:
                await asyncio.sleep(0)
                begun = time.perf_counter()
        await self._store_jobs(jobs)
        for arrival in done:
            arrival.end()

    async def _read(self, stored: Stored) -> _Event | None:
        """Return the event; None if no rule waits for it, or if it cannot be read."""
        type_, _, run_id = stored.subject.rpartition(".")
        if not self._rules.index.has_type(type_):
            return None
        try:
            return await self._parsed(stored, type_, run_id)
        except _UNREADABLE as error:
            # No later try can read this event. If this event were not given up, all later events
            # would wait for this event.
            await self._give_up(stored, error)
            return None

    async def _parsed(self, stored: Stored, type_: str, run_id: str) -> _Event | None:
        body = orjson.loads(await objects.unwrap(self._bus, stored.payload))
        # These fields are read here, because an event without them cannot be read.
        _ = body["event"]["category"], body["data"].get, int(body["sequence"])
        facts = await self._facts.of(run_id)
        if facts is None:
            log.warning("run %s: no rule acts on its %s, since it has no record", run_id, type_)
            return None
        return _Event(stored, type_, run_id, facts, body, event_of(body))

    def _match_quickly(self, event: _Event) -> list[Job] | None:
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

    async def _match_slowly(self, slow: _Slow) -> None:
        """Match an event of a lane, and let other tasks run between the conditions."""
        event = slow.event
        log_fields.bind(event.run_id)
        try:
            rules = [rule for rule in self._candidates(event) if event.may_fire(rule)]
            found = await self._matched(rules, event)
            await self._store_jobs([job_of(event, match) for match in found])
        except Exception as error:
            slow.arrival.end(error)
        else:
            slow.arrival.end()

    async def _matched(self, rules: Iterable[CompiledRule], event: _Event) -> list[Match]:
        begun = time.perf_counter()
        found = []
        for rule in rules:
            match = await self._evaluations.matched(rule, event.variable)
            if match is not None:
                found.append(match)
            if time.perf_counter() - begun > LOOP_S:
                await asyncio.sleep(0)
                begun = time.perf_counter()
        return found

    def _candidates(self, event: _Event) -> Iterable[CompiledRule]:
        return self._rules.index.candidates(event.type, event.facts.owner, event.variable)

    async def _store_jobs(self, jobs: Sequence[Job]) -> None:
        queues: dict[str, list[Job]] = {}
        for job in jobs:
            if job.ordered:
                queues.setdefault(job.order_key, []).append(job)
        extended = (self._order.extend(queue, self._between) for queue in queues.values())
        first = [job for job in await asyncio.gather(*extended) if job is not None]
        unordered = [job for job in jobs if not job.ordered]
        await asyncio.gather(*self._entries((*unordered, *first)))
        for job in jobs:
            telemetry.RULE_MATCHES.labels("failed" if job.failure else "matched").inc()

    def _entries(self, jobs: Iterable[Job]) -> Iterator[Awaitable[None]]:
        """Yield a write for each job. A job whose owner has no room now is scheduled.

        In DELIVERIES, it would only stand before the jobs of other owners.
        """
        room: dict[str, int] = {}
        for job in jobs:
            rule = self._rules.get(job.rule)
            owner = rule.record.owner.user_id if rule is not None else ""
            room[owner] = room.get(owner, self._places.room(owner)) - 1
            if room[owner] >= 0:
                yield publish(self._bus, job)
            else:
                wait_s = self._places.reserve_wait_s(owner, time.monotonic())
                yield postpone(self._bus, job, self._bus.clock.time() + wait_s)

    async def _between(self, job: Job, after: int, upto: int) -> list[Job]:
        """Return the jobs of the job's rule and run for the events between two stream sequences."""
        rule, run_id = self._rules.get(job.rule), job.run_id
        if rule is None or rule.record.uid != job.uid or run_id is None:
            return []
        stream = events_for(run_id)
        types = {*rule.types, job.type}
        names = [subjects.event(type_, run_id) for type_ in sorted(types)]
        after = max(after, rule.record.begins.get(stream, 0))
        jobs: list[Job] = []
        for stored in await direct.between(self._bus, stream, names, after, upto):
            type_ = stored.subject.rpartition(".")[0]
            try:
                event = await self._parsed(stored, type_, run_id)
            except _UNREADABLE:
                # The process that gets this event from the server makes the event a dead letter.
                continue
            if event is not None and event.may_fire(rule):
                found = await self._matched([rule], event)
                jobs += [job_of(event, match) for match in found]
        return jobs


def job_of(event: _Event, match: Match) -> Job:
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
    )
