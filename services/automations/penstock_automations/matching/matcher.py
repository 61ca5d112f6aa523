"""Takes events, and publishes a job for each rule that matches an event."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import Any

import orjson

from penstock import telemetry
from penstock.bus import Bus, BusError, ObjectGone, Stored, messages, subjects
from penstock.bus.read import direct
from penstock.bus.streams import events_for
from penstock.bus.write import objects
from penstock_automations.broker import Taken
from penstock_automations.jobs.job import EventSource, Job
from penstock_automations.jobs.order import Order
from penstock_automations.jobs.publish import publish
from penstock_automations.matching.facts import Facts
from penstock_automations.matching.rule_matches import (
    Match,
    bound_event,
    depth_of,
    depth_refusal,
    matches,
    may_act,
)
from penstock_automations.rules.records import CompiledRule
from penstock_automations.rules.store import CurrentRules, RuleStore

log = logging.getLogger(__name__)

RETRY_S = 1.0
SLOW_S = 0.1  # seconds; an evaluation that takes longer counts as slow
AT_ONCE = 5  # the number of conditions that are evaluated on one event before other tasks may run
MAX_SLOW = 5  # after this many slow evaluations a rule is paused, because it delays all other rules

# The errors that are raised when an event cannot be read, because the normalizer did not write the
# event, or because the event's object has expired.
_UNREADABLE = (ObjectGone, ValueError, KeyError, TypeError, AttributeError)

GiveUp = Callable[[Stored, Exception], Awaitable[None]]


class Matcher:
    """Matches batches of events. A batch is acknowledged when all its jobs are stored."""

    def __init__(
        self, bus: Bus, rules: CurrentRules, store: RuleStore, order: Order, give_up: GiveUp
    ) -> None:
        self._bus = bus
        self._rules = rules
        self._store = store
        self._order = order
        self._give_up = give_up
        self._facts = Facts(bus)
        # the number of slow evaluations, by rule and revision
        self._slow: dict[tuple[str, int], int] = {}

    async def batch(self, batch: Sequence[Taken]) -> None:
        """Match a batch of events."""
        # The server delivers an event to any process. Without this refresh, a process that has not
        # yet read a new rule would acknowledge the rule's first events without a job.
        await self._persist(batch, self._rules.refresh)
        jobs: list[Job] = []
        for taken in batch:
            jobs += await self._persist(batch, partial(self._jobs, taken.stored))
        await self._persist(batch, partial(self._store_jobs, jobs))
        for taken in batch:
            await taken.ack()
        for job in jobs:
            telemetry.RULE_MATCHES.labels("failed" if job.failure else "matched").inc()
        await self._pause_slow()

    async def _persist(self, batch: Sequence[Taken], step: Callable[[], Awaitable[Any]]) -> Any:
        """Repeat a step until the bus answers. Meanwhile, report to NATS that the batch is still
        being handled."""
        while True:
            try:
                return await step()
            except BusError as error:
                log.warning("events are matched again in %g s: %s", RETRY_S, error)
                await asyncio.sleep(RETRY_S)
                for taken in batch:
                    await taken.working()

    async def _jobs(self, stored: Stored) -> list[Job]:
        type_, _, run_id = stored.subject.rpartition(".")
        stream = events_for(run_id)
        rules = [
            rule
            for rule in self._rules.of_type(type_)
            if rule.waits_for_event(type_, stream, stored.sequence)
        ]
        try:
            return await self._matched(rules, stored, type_, run_id) if rules else []
        except _UNREADABLE as error:
            # No later try can read this event. If this event were not given up, all later events
            # would wait for this event.
            await self._give_up(stored, error)
            return []

    async def _matched(
        self, rules: list[CompiledRule], stored: Stored, type_: str, run_id: str
    ) -> list[Job]:
        payload = await objects.unwrap(self._bus, stored.payload)
        body = orjson.loads(payload)
        facts = await self._facts.of(run_id)
        if facts is None:
            log.warning("run %s: no rule acts on its %s, since it has no record", run_id, type_)
            return []
        # A rule that may not act on this run is dropped before its condition is evaluated. If all
        # conditions were evaluated, one user's rules would take time for other users' events.
        allowed = [rule for rule in rules if may_act(rule, facts, body)]
        found = await self._found(allowed, body, len(payload), run_id)
        jobs = []
        for match in found:
            rule = match.rule
            deep = depth_refusal(facts, body) if match.failure is None else None
            failure = match.failure or deep
            if failure is not None:
                log.warning("run %s: rule %s: %s", run_id, rule.id, failure)
            jobs.append(
                Job(
                    rule=rule.id,
                    version=rule.record.version,
                    uid=rule.record.uid,
                    type=type_,
                    source=EventSource(
                        run_id,
                        body["sequence"],
                        event=stored.sequence,
                        raw=int(stored.headers.get(messages.RAW_POSITION, 0)),
                        leg=body.get("leg", 1),
                    ),
                    ordered=rule.is_ordered,
                    depth=depth_of(facts, body),
                    failure=failure,
                    failure_code="condition" if deep is None else "depth",
                )
            )
        return jobs

    async def _found(
        self, rules: Sequence[CompiledRule], body: dict[str, Any], size_bytes: int, run_id: str
    ) -> list[Match]:
        """Return the rules that match, and let other tasks run between slow conditions.

        Without these pauses, many slow rules of one user would block all deliveries and requests of
        the process.
        """
        found: list[Match] = []
        took = partial(self._took, run_id)
        bound = bound_event(body, size_bytes)
        for at in range(0, len(rules), AT_ONCE):
            begun, part = time.perf_counter(), rules[at : at + AT_ONCE]
            found += matches(part, bound, time.perf_counter, took)
            if time.perf_counter() - begun > SLOW_S:
                await asyncio.sleep(0)
        return found

    async def _store_jobs(self, jobs: Sequence[Job]) -> None:
        """Store jobs in DELIVERIES, or in the queues of their runs."""
        queues: dict[str, list[Job]] = {}
        for job in jobs:
            if job.ordered:
                queues.setdefault(job.order_key, []).append(job)
        extended = (self._order.extend(queue, self._between) for queue in queues.values())
        first = [job for job in await asyncio.gather(*extended) if job is not None]
        unordered = [job for job in jobs if not job.ordered]
        await asyncio.gather(*(publish(self._bus, job) for job in (*unordered, *first)))

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
            if not rule.waits_for_event(type_, stream, stored.sequence):
                continue
            try:
                jobs += await self._matched([rule], stored, type_, run_id)
            except _UNREADABLE:
                # The process that gets this event from the server makes the event a dead letter.
                continue
        return jobs

    def _took(self, run_id: str, rule: CompiledRule, seconds: float) -> None:
        if seconds > SLOW_S:
            key = (rule.id, rule.revision)
            self._slow[key] = self._slow.get(key, 0) + 1
            text = "run %s: rule %s: its condition took %.2f s"
            log.warning(text, run_id, rule.id, seconds)

    async def _pause_slow(self) -> None:
        for (rule_id, revision), count in list(self._slow.items()):
            if count >= MAX_SLOW:
                del self._slow[rule_id, revision]
                reason = f"its condition took more than {SLOW_S:g} s for {count} events"
                try:
                    await self._store.pause(rule_id, reason, "penstock")
                except BusError as error:
                    log.warning("rule %s could not be paused: %s", rule_id, error)
