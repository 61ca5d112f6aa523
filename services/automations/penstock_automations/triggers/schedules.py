"""Keeps one scheduled message for each rule with a schedule, and fires the rules at their times.

Every process schedules and fires. NATS publishes a scheduled message at its time, whether or not a
process runs, and one process takes the message. That process stores the job of the time, then
schedules the next time, then deletes the message. So after a kill at any step, another process
repeats the unfinished steps, and no step is lost. A repeated step has no effect. The job's id
contains the time, so the job is stored once. A process replaces a scheduled message only if it has
read the current message, whose sequence is the fence.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from typing import Final

from penstock import telemetry
from penstock.bus import RETRY_S, Bus, BusError, FenceConflict, Stored, streams
from penstock.bus.read.work_queue import GiveUp
from penstock.bus.write.schedules import reschedule
from penstock.documents.cron import rfc3339
from penstock_automations.jobs.publish import publish_first
from penstock_automations.matching.evaluations import Evaluations
from penstock_automations.rules.model import MAX_CATCH_UP_S
from penstock_automations.rules.records import CompiledRule, event_of
from penstock_automations.rules.store import CurrentRules
from penstock_automations.triggers.firing import (
    DueFiring,
    Firing,
    body_of_firing,
    due,
    id_of_time,
    job_of,
    next_firing,
    schedule_subject,
)

log = logging.getLogger(__name__)

BATCH: Final = 100  # how many rules are looked at at once
# Seconds between two checks of all rules. A check schedules the next time of a rule if no process
# has done so `CHECK_S` seconds after the rule's last time. Usually the process that handled the
# firing has scheduled the next time long before.
CHECK_S: Final = 30.0

# The TTL in seconds of a message that is due. The message waits this long for a process. A longer
# TTL has no use, because a time that is older than `catch_up_s` (at most 7 days) is not fired.
DUE_TTL_S: Final = MAX_CATCH_UP_S + 86_400


class Schedules:
    """Schedules the next times of rules, and fires the rules at these times."""

    def __init__(
        self, bus: Bus, rules: CurrentRules, evaluations: Evaluations, give_up: GiveUp
    ) -> None:
        self._bus = bus
        self._evaluations = evaluations
        self._rules = rules
        self._give_up = give_up
        # By rule: the revision of the rule, and the firing that this process knows to be scheduled.
        self._known: dict[str, tuple[int, Firing | None]] = {}
        self._changed = asyncio.Event()
        bus.on_reconnect(self._on_reconnect)

    async def keep(self) -> None:
        """Schedule the next times of all rules, now and after each change, until cancelled."""
        while True:
            self._changed.clear()
            try:
                await self.arrange()
            except BusError as error:
                log.warning("the next times of rules are scheduled in %g s: %s", RETRY_S, error)
                await asyncio.sleep(RETRY_S)
                continue
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(CHECK_S):
                    await self._changed.wait()

    def wake(self) -> None:
        self._changed.set()

    async def arrange(self) -> None:
        """Schedule the next time of each rule whose next time is not scheduled. Raises BusError."""
        now = self._bus.clock.time()
        rules = [rule for rule in self._rules.all() if self._is_open(rule, now)]
        for begin in range(0, len(rules), BATCH):
            part = rules[begin : begin + BATCH]
            await asyncio.gather(*(self._arrange(rule.id) for rule in part))
        for rule_id in self._known.keys() - {rule.id for rule in self._rules.all()}:
            del self._known[rule_id]

    async def handle(self, stored: Stored) -> None:
        """Handle a firing that is due. A repeated call fires nothing again. Raises BusError."""
        try:
            firing = Firing.parse(stored.payload)
        except ValueError as error:
            await self._give_up(stored, error)
            return
        await self._rules.refresh_all()
        rule = self._rules.get(firing.rule)
        now = self._bus.clock.time()
        found = due(firing, rule, now)
        if rule is not None and found.outcome != "stale":
            await self._fire(rule, found)
        # If the rule is stale, the process that changed the rule schedules its next time.
        telemetry.SCHEDULE_FIRINGS.labels(found.outcome).inc()
        _log(firing, found, now)

    async def _fire(self, rule: CompiledRule, found: DueFiring) -> None:
        times = rule.record.times
        if times is not None and found.is_fired:
            body = body_of_firing(times, found.at)
            match = await self._evaluations.matched(rule, event_of(body))
            if match is not None:
                await publish_first(
                    self._bus, job_of(match, "schedule", id_of_time(found.at), body=body)
                )
        await self._arrange(rule.id, found.at if found.outcome != "early" else None)

    async def _arrange(self, rule_id: str, handled: float | None = None) -> None:
        """Schedule the next time of a rule. `handled` is the time that was just fired.

        The server removes a scheduled message when it publishes the message. So after a firing, the
        first try expects no scheduled message. If another process has scheduled one already, the
        fence refuses the first try, and the next try reads the message.
        """
        pending = await self._read_scheduled(rule_id) if handled is None else None
        while True:
            rule = self._rules.get(rule_id)
            if rule is None:
                return
            scheduled = _parsed(pending)
            wanted = next_firing(rule, scheduled, self._bus.clock.time(), handled)
            if wanted is not None and wanted != scheduled:
                try:
                    await reschedule(
                        self._bus,
                        wanted.subject,
                        wanted.due_subject,
                        wanted.at,
                        wanted.dump(),
                        last=pending.sequence if pending is not None else 0,
                        due_ttl_s=DUE_TTL_S,
                    )
                except FenceConflict:
                    pending = await self._read_scheduled(rule_id)
                    continue
            self._known[rule_id] = (rule.revision, wanted)
            return

    async def _read_scheduled(self, rule_id: str) -> Stored | None:
        """Read the rule's scheduled message, then refresh the rules, and return the message.

        If the rules were read first, a process with an earlier version of the rule could replace
        the message that belongs to the current version.
        """
        pending = await self._bus.tail(streams.SCHEDULES, schedule_subject(rule_id))
        await self._rules.refresh_all()
        return pending

    def _on_reconnect(self) -> None:
        # The server may have been restored to an older state, without the scheduled messages.
        self._known.clear()
        self.wake()

    def _is_open(self, rule: CompiledRule, now: float) -> bool:
        if rule.record.times is None:
            return False
        revision, firing = self._known.get(rule.id, (0, None))
        if revision != rule.revision:
            return True
        return firing is not None and now > firing.at + CHECK_S


def _parsed(stored: Stored | None) -> Firing | None:
    try:
        return Firing.parse(stored.payload) if stored is not None else None
    except ValueError as error:
        log.warning("a scheduled message is replaced: %s", error)
        return None


_TEXTS: Final = {
    "caught_up": "was missed; the rule is fired for its latest time",
    "missed": "was missed, and is not fired, since `catch_up_s` is over; latest time",
    "early": "came too early, since NATS's clock was set back; it waits again; time",
}


def _log(firing: Firing, found: DueFiring, now: float) -> None:
    if found.outcome in _TEXTS:
        log.warning(
            "rule %s: its time %s %s %s, %.0f s ago",
            firing.rule,
            rfc3339(firing.at),
            _TEXTS[found.outcome],
            rfc3339(found.at),
            now - found.at,
        )
