"""Admits starts of runs: each run is entered into the accounts of its budgets before its record is
written.

A start that is repeated has the run's id already, and is entered once. A process that is killed
between the two writes leaves an entry of a run without a record: the approvals service removes it
after `ABANDONED_S` seconds.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Sequence
from datetime import UTC, datetime
from functools import partial
from typing import Any, Final

from penstock import telemetry
from penstock.budgets.account import account_key, admit, drop, new_account
from penstock.budgets.accounts import Accounts
from penstock.budgets.document import NONE, Budgets, RunFacts, from_value
from penstock.budgets.model import Budget, shown
from penstock.bus import Bus
from penstock.bus.records.budgets import BudgetAccount
from penstock.documents.store import Documents
from penstock.web.problems import Problem

log = logging.getLogger(__name__)

KEY: Final = "budgets"
REFUSED: Final = "budget"  # the code and the problem type of a start that a budget refuses
PROBLEM_TYPE: Final = "urn:penstock:problem:budget"
# An entry that is older than this many seconds, and whose run has no record, is of a start that
# was interrupted. A start that was not interrupted writes its record in less time.
ABANDONED_S: Final = 60.0


class CurrentBudgets(Documents[Budgets]):
    """Keeps the budgets in force up to date. They are stored over HTTP only, so that all services
    that start runs have the same."""

    def __init__(self, bus: Bus) -> None:
        super().__init__(bus, from_value, NONE, name="budgets", key=KEY)


class Admission:
    """Says which budgets apply to a start, and enters its run into their accounts."""

    def __init__(self, bus: Bus) -> None:
        self.budgets = CurrentBudgets(bus)
        self._bus = bus
        self._accounts = Accounts(bus)

    async def of(self, facts: RunFacts) -> list[Budget]:
        """Return the budgets that apply to a run. Raises as `Documents.in_force`."""
        current = await self.budgets.in_force()
        found: list[Budget] = []
        if current.document.budgets:
            for each in current.applying(facts, self._bus.clock.now()):
                if each.is_error:
                    telemetry.BUDGET_ERRORS.labels(each.budget.id).inc()
                    text = "run %s: budget %s: %s"
                    log.warning(text, facts.run_id, each.budget.id, each.reason)
                if each.applies:
                    found.append(each.budget)
        return found

    async def enter(self, budgets: Sequence[Budget], facts: RunFacts, *, always: bool) -> None:
        """Enter a run into the accounts of its budgets, except those of the run alone. With
        `always`, it is entered also where there is no room.

        Raises:
            Problem: 429 if a budget has no room; the run is then in no account.
            BusError: the bus does not answer; the run may be in some accounts.
        """
        now = self._bus.clock.now()
        entered: list[tuple[str, BudgetAccount]] = []
        for budget in budgets:
            if budget.per == "run":
                continue
            key, new = account_key(budget, facts, now), new_account(budget, facts, now)
            enter = partial(
                admit,
                budget=budget,
                run_id=facts.run_id,
                at=self._bus.clock.stamp(),
                always=always,
            )
            if not await self._accounts.change(key, new, enter):
                for other, made in entered:
                    await self._accounts.change(other, made, partial(drop, run_id=facts.run_id))
                telemetry.BUDGET_REFUSALS.labels(budget.id).inc()
                raise refusal(budget, new, now)
            entered.append((key, new))


def refusal(budget: Budget, account: BudgetAccount, now: datetime) -> Problem:
    """Return the error of a start that a budget refuses."""
    text = f"the budget {budget.id} has nothing left for another run ({_limits(budget)})"
    more: dict[str, Any] = {
        "type": PROBLEM_TYPE,
        "code": REFUSED,
        "budget": budget.id,
        "per": budget.per,
    }
    headers: dict[str, str] = {}
    if account.ends_at is None:
        return Problem(429, f"{text}; ask the operator to raise it", headers, **more)
    left_s = datetime.fromisoformat(account.ends_at).astimezone(UTC) - now
    headers["retry-after"] = str(max(1, math.ceil(left_s.total_seconds())))
    more["window_ends_at"] = account.ends_at
    return Problem(429, f"{text}; it begins anew at {account.ends_at}", headers, **more)


def _limits(budget: Budget) -> str:
    amounts = [shown(name, value, budget.currency) for name, value in budget.limit.amounts.items()]
    window = f", each {budget.window}" if budget.window else ""
    return f"{', '.join(amounts)} per {budget.per}{window}"
