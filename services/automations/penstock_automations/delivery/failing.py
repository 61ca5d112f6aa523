"""Counts the failed attempts in a row of each rule, by which the service warns the owner."""

from __future__ import annotations

import logging
from collections import OrderedDict
from typing import Any, Final

from penstock import telemetry
from penstock_automations.jobs.job import Job

log = logging.getLogger(__name__)

FAILURES: Final = 5  # failed attempts in a row after which a rule keeps failing
MAX_SHOWN: Final = 100  # the greatest number of rules that the metric names
MAX_KNOWN: Final = 10_000


class FailingRules:
    """Counts the failed attempts in a row of each rule, in this process."""

    def __init__(self) -> None:
        self._failures: OrderedDict[str, int] = OrderedDict()
        self._shown: set[str] = set()

    def count_success(self, rule: str) -> None:
        if self._failures.pop(rule, 0) >= FAILURES:
            log.info("rule %s delivers again", rule)
        self._hide(rule)

    def count_failure(self, rule: str) -> bool:
        """Count a failed attempt. Return True once, when the rule has begun to keep failing."""
        count = self._failures[rule] = self._failures.get(rule, 0) + 1
        self._failures.move_to_end(rule)
        if len(self._failures) > MAX_KNOWN:
            oldest, _ = self._failures.popitem(last=False)
            self._hide(oldest)
        if count >= FAILURES and (rule in self._shown or len(self._shown) < MAX_SHOWN):
            self._shown.add(rule)
            telemetry.RULE_FAILURES.labels(rule).set(count)
        return count == FAILURES

    def forget(self, rule: str) -> None:
        self._failures.pop(rule, None)
        self._hide(rule)

    def _hide(self, rule: str) -> None:
        if rule in self._shown:
            self._shown.remove(rule)
            telemetry.RULE_FAILURES.remove(rule)


def warning_of(job: Job, text: str) -> dict[str, Any]:
    """Return the data of the event `system.warning` that tells a rule's owner of its failures."""
    return {
        "code": "automation_failing",
        "message": f"the last {FAILURES} attempts of the automation {job.rule} have failed; the "
        f"latest: {text}",
        "detail": {"automation": job.rule, "delivery_id": job.delivery_id},
    }
