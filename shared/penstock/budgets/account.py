"""Defines accounts, and changes them: what the runs of a user, a session, … use of a budget. Pure.

An account's total is what its ended runs have used, and for each run that is open the larger of
what it has set aside and what it has used. Each entry of a run is written whole, so writing it
twice changes nothing. A run that has ended stays in `settled` for a while: whoever still has an
older state of the run cannot enter it again.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Final, cast
from zoneinfo import ZoneInfo

from penstock.budgets.document import RunFacts
from penstock.budgets.model import Budget, Dimension, Per, Window
from penstock.bus.records.budgets import AccountRaise, AccountRun, BudgetAccount
from penstock.bus.subjects import key_of

# The most runs that may be in an account at once: each change writes all of them.
MAX_RUNS: Final = 4000
SAME_CALL: Final = "same_call"
# How many calls of models do not count as cost, in accounts of budgets that limit it.
WITHOUT_COST: Final = "without_cost"


def subject_of(per: Per, facts: RunFacts) -> str:
    """Return what the account of a run is about: the name of its user, its agent, …"""
    return {
        "run": facts.run_id,
        "session": facts.session_id,
        "user": facts.user,
        "agent": facts.agent,
        "tenant": facts.tenant,
    }[per]


def account_key(budget: Budget, facts: RunFacts, at: datetime) -> str:
    """Return the key in KV `budgets` of the account that a run has at a time."""
    # Two users may give their sessions the same id, and two tenants may have users of one name.
    owner = {"session": (facts.tenant, facts.user), "user": (facts.tenant,)}.get(budget.per, ())
    begins_at = window_of(budget, at)[0]
    subject = subject_of(budget.per, facts)
    named = (budget.id, budget.per, *owner, subject, begins_at)
    return f"account.{key_of('budget', *named)}"


def new_account(budget: Budget, facts: RunFacts, at: datetime) -> BudgetAccount:
    begins_at, ends_at = window_of(budget, at)
    is_of_user = budget.per in ("run", "session", "user")
    return BudgetAccount(
        budget=budget.id,
        per=budget.per,
        subject=subject_of(budget.per, facts),
        user=facts.user if is_of_user else None,
        tenant=facts.tenant or None if is_of_user else None,
        begins_at=begins_at,
        ends_at=ends_at,
    )


def window_of(budget: Budget, at: datetime) -> tuple[str | None, str | None]:
    """Return the beginning and the end of the budget's window around a time, RFC 3339, UTC."""
    if budget.window is None:
        return None, None
    zone = ZoneInfo(budget.timezone)
    begin = _beginning(budget.window, at.astimezone(zone))
    return _stamp(begin), _stamp(_next(budget.window, begin))


def _beginning(window: Window, local: datetime) -> datetime:
    if window == "hour":
        return local.replace(minute=0, second=0, microsecond=0)
    midnight = local.replace(hour=0, minute=0, second=0, microsecond=0, fold=0)
    if window == "week":
        return midnight - timedelta(days=midnight.weekday())
    return midnight.replace(day=1) if window == "month" else midnight


def _next(window: Window, begin: datetime) -> datetime:
    if window == "hour":
        # By the UTC clock, since an hour of the local clock may come twice.
        return begin.astimezone(UTC) + timedelta(hours=1)
    if window == "month":
        return (begin + timedelta(days=32)).replace(day=1)
    return begin + timedelta(days=7 if window == "week" else 1)


def _stamp(at: datetime) -> str:
    return at.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def used(account: BudgetAccount) -> dict[str, int]:
    """Return what all runs of the account have used."""
    return _sum(account.used, (run.used for run in account.runs.values()))


def committed(account: BudgetAccount) -> dict[str, int]:
    """Return what runs have used, and what open runs have set aside besides."""
    return _sum(account.used, map(_committed, account.runs.values()))


def _committed(run: AccountRun) -> Mapping[str, int]:
    names = run.reserved.keys() | run.used.keys()
    return {name: max(run.reserved.get(name, 0), run.used.get(name, 0)) for name in names}


def _sum(first: Mapping[str, int], further: Iterable[Mapping[str, int]]) -> dict[str, int]:
    total = dict(first)
    for each in further:
        for name, value in each.items():
            total[name] = total.get(name, 0) + value
    return total


def admit(account: BudgetAccount, budget: Budget, run_id: str, at: str, *, always: bool) -> bool:
    """Enter a run into the account with what it sets aside; return False, and enter nothing, if the
    account has no room. With `always`, the run is entered in any case, and sets nothing aside. A
    run that is in the account stays as it is."""
    if run_id in account.runs:
        return True
    reserved = {} if always or budget.reserve is None else _amounts(budget)
    if not always and not _has_room(account, budget, reserved):
        return False
    account.runs[run_id] = AccountRun(at=at, reserved=reserved)
    return True


def _amounts(budget: Budget) -> dict[str, int]:
    assert budget.reserve is not None
    return {budget.reserve.dimension: budget.reserve.value}


def _has_room(account: BudgetAccount, budget: Budget, reserved: Mapping[str, int]) -> bool:
    if len(account.runs) >= MAX_RUNS:
        return False
    share, total = budget.refuses_at, committed(account)
    if share is None:
        return True
    for name, limit in budget.limit.amounts.items():
        after = total.get(name, 0) + reserved.get(name, 0)
        # What sets nothing aside needs something that is still free.
        if after > limit * share or (not reserved.get(name) and after >= limit * share):
            return False
    return True


def put(account: BudgetAccount, run_id: str, at: str, amounts: Mapping[str, int]) -> None:
    """Write what an open run has used."""
    if run_id not in account.settled:
        account.runs.setdefault(run_id, AccountRun(at=at)).used = dict(amounts)


def settle(account: BudgetAccount, run_id: str, at: str, amounts: Mapping[str, int]) -> None:
    """Add what a run that has ended has used, and remove its entry."""
    if run_id not in account.settled:
        account.runs.pop(run_id, None)
        account.settled[run_id] = at
        account.used = _sum(account.used, [amounts])


def limit_of(account: BudgetAccount, budget: Budget, run_id: str, dimension: str) -> int:
    """Return what may be used in one dimension, with what people have added: for one run, or in the
    account of a run for all runs in it."""
    limit = budget.limit.same_call or 0 if dimension == SAME_CALL else 0
    limit = limit or budget.limit.amounts[cast(Dimension, dimension)]
    return limit + sum(
        each.value
        for each in account.raises.values()
        if each.dimension == dimension and (budget.per == "run" or each.run_id == run_id)
    )


@dataclass(frozen=True, slots=True)
class Room:
    """What an account has in one dimension. `reserved` is what open runs have set aside and not
    used."""

    dimension: Dimension
    limit: int
    used: int
    reserved: int

    @property
    def left(self) -> int:
        return max(0, self.limit - self.used - self.reserved)

    @property
    def share(self) -> float:
        return (self.used + self.reserved) / self.limit


def rooms(account: BudgetAccount, budget: Budget) -> list[Room]:
    """Return what the account has in each dimension of the budget. What people have added for one
    of several runs is not in it."""
    spent, taken = used(account), committed(account)
    return [
        Room(
            name,
            limit_of(account, budget, "", name),
            spent.get(name, 0),
            taken.get(name, 0) - spent.get(name, 0),
        )
        for name in budget.limit.amounts
    ]


def is_current(account: BudgetAccount, now: datetime) -> bool:
    """Return whether runs may still use the account: its window is not over, or its run is open."""
    if account.ends_at is not None:
        return datetime.fromisoformat(account.ends_at) > now
    return account.per != "run" or bool(account.runs)


def raise_limit(
    account: BudgetAccount, approval_id: str, run_id: str, dimension: str, value: int
) -> None:
    """Raise a limit as an approval says; a repeat changes nothing."""
    made = AccountRaise(run_id=run_id, dimension=dimension, value=value)
    account.raises.setdefault(approval_id, made)


def drop(account: BudgetAccount, run_id: str) -> None:
    """Remove a run that was never started."""
    run = account.runs.get(run_id)
    if run is not None and not run.used:
        del account.runs[run_id]


def forget(account: BudgetAccount, run_ids: Iterable[str]) -> None:
    """Forget settled runs that nobody can enter again."""
    for run_id in run_ids:
        account.settled.pop(run_id, None)
