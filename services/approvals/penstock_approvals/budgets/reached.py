"""Finds the steps of a budget that are reached, and says what the run and people are told. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

from penstock.budgets.account import SAME_CALL, limit_of, used
from penstock.budgets.model import Budget, Do, Step, shown
from penstock.bus.records.budgets import BudgetAccount, RunSpending

# The steps of which only the first that is reached is carried out.
_ORDER: Final[tuple[Do, ...]] = ("stop", "ask", "warn")
Facts = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Reached:
    """A step of a budget whose share is used, in the dimension of which most is used."""

    budget: Budget
    step: Step
    key: str  # of the account
    account: BudgetAccount
    dimension: str
    used: int
    limit: int

    @property
    def facts(self) -> Facts:
        """What `lifecycle.cancelled` has of it."""
        facts: Facts = {
            "budget": self.budget.id,
            "per": self.budget.per,
            "dimension": self.dimension,
            "used": self.used,
            "limit": self.limit,
            "share": self.step.share,
            "currency": self._currency,
            "window_ends_at": self.account.ends_at,
        }
        return {name: value for name, value in facts.items() if value is not None}

    @property
    def told(self) -> str:
        used, limit = (shown(self.dimension, n, self._currency) for n in (self.used, self.limit))
        return f"{used} of {limit}"

    def mark(self, leg: int) -> str:
        """Return the name of the step in the run's record. A run whose limit was raised reaches the
        step again, and each leg may ask once."""
        asked = f":{leg}" if self.step.do == "ask" else ""
        return f"{self.key}:{self.step.do}:{self.step.share}:{self.limit}{asked}"

    @property
    def warning(self) -> Facts:
        """The data of `system.warning`. It has nothing that changes: the same warning is written
        once."""
        limit = shown(self.dimension, self.limit, self._currency)
        text = f"{self.step.share:.0%} of the budget {self.budget.id} is used: {limit}"
        fixed = {name: value for name, value in self.facts.items() if name != "used"}
        return {"message": f"{text} per {self.budget.per}", "code": "budget", "detail": fixed}

    @property
    def ask(self) -> Facts:
        """What people are asked, and by how much each answer raises the limit."""
        text = (
            f"The run has reached the budget {self.budget.id}: {self.told} are used. "
            "May it use more? Without an answer it does not go on; a rejection ends it."
        )
        return {
            "description": text,
            "args": self.facts,
            "offers": self._offers(),
            "account": self.key,
            "dimension": self.dimension,
        }

    def _offers(self) -> dict[str, int]:
        offered = [each for each in self.budget.ask.raises if each.dimension == self.dimension]
        if offered:
            return {str(each): each.value for each in offered}
        again = limit_of(
            BudgetAccount(budget="", per="", subject=""), self.budget, "", self.dimension
        )
        return {shown(self.dimension, again, self._currency): again}

    @property
    def _currency(self) -> str | None:
        return self.budget.currency if self.dimension == "cost" else None


def reached(
    budget: Budget, key: str, account: BudgetAccount, spending: RunSpending, *, is_own: bool
) -> list[Reached]:
    """Return the steps to carry out for a run that has just spent: the most severe one, and the
    warnings. `is_own` says that the account is of this run alone."""
    amounts = used(account)
    if is_own and budget.limit.same_call is not None:
        amounts[SAME_CALL] = max(spending.calls.values(), default=0)
    found = [
        Reached(budget, step, key, account, dimension, amounts.get(dimension, 0), limit)
        for step in budget.at
        if step.do != "refuse"
        for dimension, limit in [_most_used(budget, account, spending.run_id, amounts)]
        if amounts.get(dimension, 0) >= limit * step.share
    ]
    for do in _ORDER[:2]:
        if severe := [each for each in found if each.step.do == do]:
            return [severe[0], *(each for each in found if each.step.do == "warn")]
    return found


def _most_used(
    budget: Budget, account: BudgetAccount, run_id: str, amounts: Mapping[str, int]
) -> tuple[str, int]:
    """Return the dimension of whose limit the greatest share is used, and this limit."""
    limits = {name: limit_of(account, budget, run_id, name) for name in _dimensions(budget)}
    dimension = max(limits, key=lambda name: amounts.get(name, 0) / limits[name])
    return dimension, limits[dimension]


def _dimensions(budget: Budget) -> Iterator[str]:
    yield from budget.limit.amounts
    if budget.limit.same_call is not None:
        yield SAME_CALL


def seconds_to_next_step(budget: Budget, account: BudgetAccount, run_id: str) -> int | None:
    """Return after how many seconds of one run the budget's next step by time is reached; None if
    it has none."""
    if budget.limit.time is None:
        return None
    limit, spent_s = limit_of(account, budget, run_id, "time"), used(account).get("time", 0)
    left = [step.share * limit - spent_s for step in budget.at if step.do != "refuse"]
    return min((int(each) + 1 for each in left if each > 0), default=None)
