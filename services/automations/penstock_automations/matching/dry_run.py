"""Tries a rule on past events: finds the events that match, and the reasons why the other events do
not match."""

from __future__ import annotations

import asyncio
import heapq
import time
from collections import Counter
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from datetime import datetime
from functools import partial
from typing import Any, Final, Literal

import orjson

from penstock.bus import Bus, ObjectGone, Stored, streams, subjects
from penstock.bus.read import direct
from penstock.bus.write import objects
from penstock.expressions import Budget, ExpressionError, MissingField, TooMuch
from penstock.off_loop import OFF_LOOP
from penstock_automations.matching.evaluations import LOOP_STEPS
from penstock_automations.matching.facts import Facts, RunFacts
from penstock_automations.matching.rule_matches import depth_refusal, may_act
from penstock_automations.rules.records import CompiledRule, event_of

MAX_EVENTS: Final = 10_000
SHOWN_OF_EACH = 20
MAX_SECONDS = 20.0
TURN_S = 0.02  # after this many seconds, other tasks of the process may run

Why = Literal["matched", "condition", "missing_field", "failed", "not_allowed", "unreadable"]


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
    """The result of a dry run. `shown` has the first 20 events of each kind. `complete` is False if
    the dry run has not looked at all events."""

    looked_at: int = 0
    counts: Counter[Why] = field(default_factory=Counter)
    shown: list[Shown] = field(default_factory=list)
    complete: bool = True


async def dry_run(bus: Bus, rule: CompiledRule, since: datetime, limit: int = MAX_EVENTS) -> DryRun:
    """Try a rule on up to `limit` events since a time, the oldest first. Sends nothing.

    Events of runs that the rule's owner may not see are neither tried nor counted. A paused or
    disabled rule is tried, too. After 20 seconds the dry run ends incomplete. Raises BusError.
    """
    result = DryRun()
    facts = Facts(bus)
    turn = time.monotonic()
    until = turn + MAX_SECONDS
    for shard in range(bus.shards.made):
        stream = streams.events_of(shard)
        first = await bus.since(stream, since)
        if first is None:
            continue
        async for stored in _events(bus, stream, rule, first.sequence):
            if result.looked_at >= limit or time.monotonic() > until:
                result.complete = False
                return result
            shown = await _tried(bus, facts, rule, stored)
            if shown is None:
                continue
            result.looked_at += 1
            result.counts[shown.why] += 1
            if result.counts[shown.why] <= SHOWN_OF_EACH:
                result.shown.append(shown)
            if time.monotonic() - turn > TURN_S:
                await asyncio.sleep(0)
                turn = time.monotonic()
    return result


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


async def _tried(bus: Bus, facts: Facts, rule: CompiledRule, stored: Stored) -> Shown | None:
    """Return what the rule would do with an event; None if the rule's owner may not see the run."""
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
        return Shown(run_id, sequence, type_, "failed", f"the condition is given up: {error}")
    except (ObjectGone, ValueError, KeyError, TypeError) as error:
        return Shown(run_id, 0, type_, "unreadable", repr(error)[:200])
    return Shown(run_id, sequence, type_, why, reason)


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
