"""Tries a rule on past events: finds the events that match, and the reasons why the other events do
not match. A backfill makes the deliveries of those that match."""

from __future__ import annotations

import asyncio
import heapq
import time
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from functools import partial
from typing import Any, Final, Literal

import orjson

from penstock.bus import Bus, ObjectGone, Stored, streams, subjects
from penstock.bus.read import direct
from penstock.bus.write import objects
from penstock.expressions import Budget, ExpressionError, MissingField, TooMuch
from penstock.off_loop import OFF_LOOP
from penstock_automations.jobs.job import Job
from penstock_automations.matching.evaluations import LOOP_STEPS
from penstock_automations.matching.facts import Facts, RunFacts
from penstock_automations.matching.matcher import Event, job_of
from penstock_automations.matching.rule_matches import Match, depth_refusal, may_act
from penstock_automations.rules.records import CompiledRule, event_of

MAX_EVENTS: Final = 10_000
SHOWN_OF_EACH = 20
MAX_SECONDS = 20.0
TURN_S = 0.02  # after this many seconds, other tasks of the process may run
STORED_AT_ONCE: Final = 50  # how many jobs of a backfill are stored at once

Why = Literal["matched", "condition", "missing_field", "failed", "not_allowed", "unreadable"]
# The number of a shard of events, and a sequence in its stream.
Place = tuple[int, int]


@dataclass(frozen=True, slots=True)
class Shown:
    """One event, and what the rule would have done. `reason` explains a failure."""

    run_id: str
    sequence: int
    type: str
    why: Why
    reason: str = ""


@dataclass(slots=True)
class DryRun:
    """The result of a dry run. `shown` has the first 20 events of each kind. `next` is the place of
    the first event that was not looked at; None if all were."""

    looked_at: int = 0
    counts: Counter[Why] = field(default_factory=Counter)
    shown: list[Shown] = field(default_factory=list)
    next: Place | None = None

    @property
    def complete(self) -> bool:
        return self.next is None

    def add(self, shown: Shown) -> None:
        self.looked_at += 1
        self.counts[shown.why] += 1
        if self.counts[shown.why] <= SHOWN_OF_EACH:
            self.shown.append(shown)


@dataclass(frozen=True, slots=True)
class Asked:
    """Which events to look at: up to `limit`, from a time or from a place on, the oldest first."""

    since: datetime
    limit: int = MAX_EVENTS
    begin: Place | None = None


async def dry_run(bus: Bus, rule: CompiledRule, asked: Asked) -> DryRun:
    """Try a rule on past events. Sends nothing.

    Events of runs that the rule's owner may not see are neither tried nor counted. A paused or
    disabled rule is tried, too. After 20 seconds the dry run ends incomplete. Raises BusError.
    """
    result = DryRun()
    async for _ in _tried_events(bus, rule, asked, result):
        pass
    return result


async def backfill(
    bus: Bus,
    rule: CompiledRule,
    asked: Asked,
    store: Callable[[Sequence[Job]], Awaitable[None]],
) -> DryRun:
    """Make the deliveries of past events that match, and return what a dry run returns.

    These are events from before the rule's begin; later ones are matched as they come. `store`
    stores jobs, each unless it is stored already. So a call may be repeated from any place, also
    after a kill: each event has one delivery. The order of a run's events is not kept. Raises
    BusError.
    """
    result = DryRun()
    jobs: list[Job] = []
    async for event in _tried_events(bus, rule, asked, result, before=rule.record.begins):
        jobs.append(replace(job_of(event, Match(rule)), ordered=False))
        if len(jobs) >= STORED_AT_ONCE:
            await store(jobs)
            jobs.clear()
    await store(jobs)
    return result


async def _tried_events(
    bus: Bus,
    rule: CompiledRule,
    asked: Asked,
    result: DryRun,
    before: dict[str, int] | None = None,
) -> AsyncIterator[Event]:
    """Yield the past events that match, and add each event that was tried to the result. `before`
    has the last sequence of each stream to look at."""
    facts = Facts(bus)
    turn = time.monotonic()
    until = turn + MAX_SECONDS
    first_shard, first_sequence = asked.begin or (0, 0)
    for shard in range(first_shard, bus.shards.made):
        stream = streams.events_of(shard)
        first = await bus.since(stream, asked.since)
        if first is None:
            continue
        begin = max(first.sequence, first_sequence if shard == first_shard else 0)
        async for stored in _events(bus, stream, rule, begin):
            if before is not None and stored.sequence > before.get(stream, 0):
                break
            if result.looked_at >= asked.limit or time.monotonic() > until:
                result.next = (shard, stored.sequence)
                return
            found = await _tried(bus, facts, rule, stored)
            if found is None:
                continue
            shown, event = found
            result.add(shown)
            if event is not None and shown.why == "matched":
                yield event
            if time.monotonic() - turn > TURN_S:
                await asyncio.sleep(0)
                turn = time.monotonic()


async def _events(bus: Bus, stream: str, rule: CompiledRule, start: int) -> AsyncIterator[Stored]:
    """Yield the events of the rule's types, in the order of the stream. One batch of each type is
    in memory at a time."""
    sources = [
        direct.replay(bus, stream, subjects.event(type_, "*"), start) for type_ in rule.types
    ]
    heads: list[tuple[int, int, Stored]] = []
    for number, source in enumerate(sources):
        if (first := await anext(source, None)) is not None:
            heapq.heappush(heads, (first.sequence, number, first))
    while heads:
        _, number, stored = heads[0]
        yield stored
        if (following := await anext(sources[number], None)) is not None:
            heapq.heapreplace(heads, (following.sequence, number, following))
        else:
            heapq.heappop(heads)


async def _tried(
    bus: Bus, facts: Facts, rule: CompiledRule, stored: Stored
) -> tuple[Shown, Event | None] | None:
    """Return what the rule would do with an event, and the event if it can be read; None if the
    rule's owner may not see the run."""
    type_, _, run_id = stored.subject.rpartition(".")
    of_run = await facts.of(run_id)
    if of_run is None or not (rule.record.all_users or of_run.owner == rule.record.owner.user_id):
        return None
    try:
        payload = await objects.unwrap(bus, stored.payload)
        body = orjson.loads(payload)
        sequence = int(body["sequence"])
        try:
            why, reason = _why(rule, of_run, body, Budget(LOOP_STEPS))
        except TooMuch:
            slowly = partial(_why, rule, of_run, body, Budget())
            why, reason = await OFF_LOOP.run(rule.record.owner.user, slowly)
    except TooMuch as error:
        reason = f"the condition is given up: {error}"
        return Shown(run_id, sequence, type_, "failed", reason), None
    except (ObjectGone, ValueError, KeyError, TypeError) as error:
        return Shown(run_id, 0, type_, "unreadable", repr(error)[:200]), None
    event = Event(stored, type_, run_id, of_run, body, event_of(body))
    return Shown(run_id, sequence, type_, why, reason), event


def _why(
    rule: CompiledRule, facts: RunFacts, body: dict[str, Any], budget: Budget
) -> tuple[Why, str]:
    if not may_act(rule, facts, body):
        return "not_allowed", "the rule would set itself off, or too many rules led to the event"
    if (reason := depth_refusal(facts, body)) is not None:
        return "not_allowed", reason
    if rule.trouble is not None:
        return "failed", rule.trouble
    try:
        holds = rule.condition is None or rule.condition.holds({"event": event_of(body)}, budget)
    except MissingField as error:
        return "missing_field", error.reason
    except ExpressionError as error:
        return "failed", str(error)
    return ("matched", "") if holds else ("condition", "")
