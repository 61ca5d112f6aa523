"""Brings scheduled jobs forward, so that waiting deliveries are tried now.

A job waits as a scheduled message in SCHEDULES. A job is brought forward by one write, which
replaces its message. The write is refused if the message is due already, or was replaced by another
process. So a job is never scheduled twice, and none is lost if the process ends in between.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Callable
from dataclasses import replace
from typing import Final

from penstock.bus import Bus, BusError, FenceConflict, Stored, subjects
from penstock.bus.read import direct
from penstock.bus.streams import SCHEDULES
from penstock.bus.write.schedules import reschedule
from penstock_automations.jobs.job import DUE_TTL_S, Job
from penstock_automations.jobs.return_times import ReturnTimes
from penstock_automations.rules.records import CompiledRule
from penstock_automations.rules.store import CurrentRules

log = logging.getLogger(__name__)

SETTLE_S: Final = 0.5  # seconds in which several reasons to wake a rule become one


class Waking:
    """Wakes the waiting deliveries of rules that were resumed or deleted, or whose receiver works
    again."""

    def __init__(self, bus: Bus, rules: CurrentRules, forget: Callable[[str, str], None]) -> None:
        self._bus = bus
        self._rules = rules
        self._forget = forget  # called with the id and the `uid` of a rule that was deleted
        # the rules at the last look, by id and `uid`
        self._known: dict[tuple[str, str], CompiledRule] = {}
        self._tasks: dict[tuple[str, str], asyncio.Task[None]] = {}
        self._times = ReturnTimes()

    def wake_changed_rules(self) -> None:
        """Wake the deliveries of rules that were resumed or deleted since the last call."""
        before = self._known
        self._known = {(rule.id, rule.record.uid): rule for rule in self._rules.all()}
        for key, earlier in before.items():
            rule = self._known.get(key)
            if rule is None:
                self._forget(*key)
                self._begin(earlier, is_deleted=True)
            elif rule.record.is_active and not earlier.record.is_active:
                self._begin(rule)

    def wake(self, rule: CompiledRule) -> None:
        """Wake deliveries that were put off, because the rule's receiver works."""
        self._begin(rule)

    async def stop(self) -> None:
        """Stop. Deliveries that were not woken are made at their own time."""
        tasks = list(self._tasks.values())
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)

    def _begin(self, rule: CompiledRule, *, is_deleted: bool = False) -> None:
        key = (rule.id, rule.record.uid)
        if key in self._tasks and not is_deleted:
            return
        task = asyncio.create_task(self._wake(rule, is_deleted))
        self._tasks[key] = task
        task.add_done_callback(lambda done: self._done(key, done))

    def _done(self, key: tuple[str, str], task: asyncio.Task[None]) -> None:
        if self._tasks.get(key) is task:
            del self._tasks[key]

    async def _wake(self, rule: CompiledRule, is_deleted: bool) -> None:
        await asyncio.sleep(SETTLE_S)
        rule_id, uid, owner = rule.id, rule.record.uid, rule.record.owner.user

        def is_wanted(job: Job) -> bool:
            return job.uid == uid and (is_deleted or job.deferrals > 0)

        def reserve_wait_s() -> float:
            return self._times.reserve_wait_s(owner, time.monotonic(), soonest_s=0)

        try:
            count = await bring_forward(self._bus, f"{rule_id}.>", is_wanted, reserve_wait_s)
        except BusError as error:
            log.warning("rule %s: deliveries wait until their own time: %s", rule_id, error)
            return
        if count and is_deleted:
            log.info("rule %s was deleted: %d scheduled attempts end", rule_id, count)
        elif count:
            log.info("rule %s: %d deliveries that were put off are tried now", rule_id, count)


async def bring_forward(
    bus: Bus,
    key: str,
    is_wanted: Callable[[Job], bool],
    reserve_wait_s: Callable[[], float] = lambda: 0.0,
    *,
    is_asked_for: bool = False,
) -> int:
    """Let scheduled jobs become due, each after the seconds that `reserve_wait_s` returns; return
    their number.

    `key` is the key of a delivery or a pattern of keys. If a person asked for the attempts, the
    breaker stops none of them, also if others of them fail meanwhile. Raises BusError; repeat the
    call.
    """
    count = 0
    async for stored, job in _scheduled(bus, key):
        if is_wanted(job):
            now, asked_for = bus.clock.time(), is_asked_for or job.is_asked_for
            woken = replace(job, woken_at=now, is_asked_for=asked_for)
            count += await _reschedule(bus, stored, woken, now + reserve_wait_s())
    return count


async def _scheduled(bus: Bus, key: str) -> AsyncIterator[tuple[Stored, Job]]:
    async for stored in direct.replay(bus, SCHEDULES, subjects.schedule("automations", key)):
        try:
            yield stored, Job.parse(stored.payload)
        except ValueError:
            log.warning("%s cannot be read, it is left as it is", stored.subject)


async def _reschedule(bus: Bus, stored: Stored, job: Job, at: float) -> bool:
    names = job.schedule_subject, job.due_subject
    try:
        await reschedule(bus, *names, at, job.dump(), stored.sequence, DUE_TTL_S)
    except FenceConflict:
        return False  # it is due already, or another process has brought it forward
    return True
