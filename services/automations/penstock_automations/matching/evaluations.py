"""Evaluates conditions of rules within limits, so that one user's conditions do not delay others.

A short evaluation runs on the event loop. A longer one is repeated in the process's thread for long
work, where users take turns. Each user has a share of this thread.
"""

from __future__ import annotations

import logging
import time
from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from penstock.bus import BusError
from penstock.expressions import MAX_STEPS, Budget, TooMuch
from penstock.off_loop import OFF_LOOP
from penstock_automations.matching.rule_matches import Match, matched
from penstock_automations.rules.records import CompiledRule
from penstock_automations.rules.store import RuleStore

log = logging.getLogger(__name__)

# A step takes about a microsecond.
LOOP_STEPS: Final = 5_000  # the most steps of an evaluation on the event loop
SLOW_STEPS: Final = 50_000  # an evaluation with more steps counts as slow
MAX_SLOW: Final = 5  # after this many slow evaluations, a rule is paused
# The steps that the rules of one user may take in the thread: at once, and per second.
SHARE_STEPS: Final = 1_000_000
SHARE_STEPS_PER_S: Final = 100_000
_MAX_KNOWN: Final = 10_000


@dataclass(slots=True)
class _Share:
    steps: float
    at_s: float


class Evaluations:
    """Evaluates the conditions of all rules of a process, and pauses rules with slow conditions."""

    def __init__(self, store: RuleStore) -> None:
        self._store = store
        self._shares: OrderedDict[str, _Share] = OrderedDict()
        # The numbers of slow evaluations, by the rule's owner and id. A change of the rule does not
        # set the number back.
        self._slow: OrderedDict[tuple[str, str], int] = OrderedDict()

    async def matched(self, rule: CompiledRule, event: Mapping[str, Any]) -> Match | None:
        """Return the match if the rule's condition holds, or if it cannot be evaluated; else None.
        `event` is from `event_of`."""
        try:
            return matched(rule, event, Budget(LOOP_STEPS))
        except TooMuch:
            return await self.matched_off_loop(rule, event)

    async def matched_off_loop(self, rule: CompiledRule, event: Mapping[str, Any]) -> Match | None:
        """Return what `matched` returns, for an evaluation that takes over `LOOP_STEPS` steps."""
        share = self._share_of(rule.record.owner.user_id)
        if share.steps <= LOOP_STEPS:
            await self._count_slow(rule)
            return Match(
                rule,
                "the condition failed: long conditions of the rule's owner have used up their "
                f"share of {SHARE_STEPS_PER_S} steps per second; make them shorter",
            )
        budget = Budget(int(min(share.steps, MAX_STEPS)))
        before = budget.steps
        share.steps -= before  # other evaluations of this user may run meanwhile
        try:
            return await OFF_LOOP.run(rule.record.owner.user, lambda: matched(rule, event, budget))
        except TooMuch:
            reason = f"the condition failed: it takes more than {before} steps; make it shorter"
            return Match(rule, reason)
        finally:
            rest = max(budget.steps, 0)
            share.steps += rest
            if before - rest > SLOW_STEPS or not rest:
                await self._count_slow(rule)

    def _share_of(self, owner: str) -> _Share:
        now_s = time.monotonic()
        share = self._shares.setdefault(owner, _Share(SHARE_STEPS, now_s))
        self._shares.move_to_end(owner)
        if len(self._shares) > _MAX_KNOWN:
            self._shares.popitem(last=False)
        refilled = share.steps + (now_s - share.at_s) * SHARE_STEPS_PER_S
        share.steps, share.at_s = min(refilled, SHARE_STEPS), now_s
        return share

    async def _count_slow(self, rule: CompiledRule) -> None:
        key = (rule.record.owner.user_id, rule.id)
        count = self._slow.pop(key, 0) + 1
        log.warning("rule %s: slow evaluation %d of %d of its condition", rule.id, count, MAX_SLOW)
        if count < MAX_SLOW:
            self._slow[key] = count
            if len(self._slow) > _MAX_KNOWN:
                self._slow.popitem(last=False)
            return
        reason = f"its condition took more than {SLOW_STEPS} steps for {count} events"
        try:
            await self._store.pause(rule.id, reason, "penstock")
        except BusError as error:
            self._slow[key] = count - 1
            log.warning("rule %s could not be paused: %s", rule.id, error)
