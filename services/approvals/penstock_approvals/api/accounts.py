"""Serve the accounts of budgets: what is used of each, and what is left."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import asdict
from typing import Final

from pydantic import BaseModel, ConfigDict, Field
from starlette.requests import Request
from starlette.responses import Response

from penstock.budgets.account import WITHOUT_COST, is_current, rooms, used
from penstock.budgets.accounts import BUCKET
from penstock.budgets.admission import CurrentBudgets
from penstock.budgets.model import Budget, Dimension, Per
from penstock.bus import Bus, Entry
from penstock.bus.records import BudgetAccount
from penstock.web.answers import cursor_of, cursor_parts, json_answer, page_after
from penstock.web.auth import Identity, identity_of
from penstock.web.bodies import read_query
from penstock.web.operation import Operation, in_query, json, serves
from penstock.web.read_scheduler import ReadScheduler

MAX_PAGE: Final = 1000
READ_AT_ONCE: Final = 500  # How many accounts are read before other requests are handled.


class Query(BaseModel):
    """Which accounts to list."""

    model_config = ConfigDict(extra="forbid")

    budget: str | None = Field(None, max_length=256, description="Only accounts of this budget")
    subject: str | None = Field(
        None, max_length=1024, description="Only of this run, session, user, agent or tenant"
    )
    share: float = Field(
        0.0, ge=0, le=1, description="Only accounts of which at least this share is taken"
    )
    limit: int = Field(100, ge=1, le=MAX_PAGE, description="How many accounts a page has at most")
    after: str | None = Field(None, max_length=4096, description="`next` of the page before")


class RoomShown(BaseModel):
    """What an account has in one dimension: millionths of the currency, seconds, or a number."""

    dimension: Dimension
    limit: int
    used: int
    reserved: int = Field(description="What open runs have set aside and not used")
    left: int


class AccountShown(BaseModel):
    """An account of a budget."""

    budget: str = Field(description="The budget's id")
    per: Per
    subject: str = Field(description="The run, session, user, agent or tenant")
    user: str | None = Field(None, description="Whose the run or the session is, or the user")
    tenant: str | None = Field(None, description="The tenant of this user")
    window_ends_at: str | None = Field(None, description="When it begins anew, RFC 3339, UTC")
    currency: str | None = Field(None, description="The currency of `cost`")
    share: float = Field(description="The greatest share that is used or set aside")
    open_runs: int
    calls_without_cost: int = Field(
        description="Calls of models that do not count as cost: their price is not known, or in "
        "another currency"
    )
    rooms: list[RoomShown]


class AccountPage(BaseModel):
    """A page of accounts."""

    accounts: list[AccountShown]
    next: str | None


class AccountsApi:
    """The handler of the accounts' route."""

    def __init__(self, bus: Bus, budgets: CurrentBudgets) -> None:
        self._bus = bus
        self._budgets = budgets
        self._turns = ReadScheduler()

    @serves(
        Operation(
            method="GET",
            path="/v1/budgets/accounts",
            summary="What is used of budgets, and what is left",
            description="The accounts of current windows, and of open runs, by budget and subject. "
            "A caller sees the accounts of its own runs, sessions and of itself; with the scope "
            "`administer` or `act-as`, all accounts.",
            tag="approvals",
            answers={200: json("A page", AccountPage)},
            scopes=("read",),
            parameters=in_query(Query),
        )
    )
    async def accounts(self, request: Request) -> Response:
        query, who = read_query(request, Query), identity_of(request)
        async with self._turns.of(who.tenant_user):
            entries = await self._bus.bucket(BUCKET).entries("account.*")
            found = await self.found(entries, who, query)
        after = cursor_parts(query.after, str, str, str) if query.after is not None else None
        page, more = page_after(found, after, query.limit, _place)
        following = cursor_of(*_place(page[-1])) if more else None
        return json_answer(AccountPage(accounts=page, next=following).model_dump(mode="json"))

    async def found(
        self, entries: Sequence[Entry], who: Identity, query: Query
    ) -> list[AccountShown]:
        """Return the accounts that the caller may see and wants, in their order."""
        now, by_id = self._bus.clock.now(), self._budgets.current.by_id
        found = []
        for number, entry in enumerate(entries):
            if number % READ_AT_ONCE == 0:
                await asyncio.sleep(0)
            account = BudgetAccount.model_validate_json(entry.value)
            budget = by_id.get(account.budget)
            is_seen = who.may_see_runs_of(account.user or "")
            if not is_seen or budget is None or not is_current(account, now):
                continue
            is_wanted = query.budget in (None, budget.id)
            if is_wanted and query.subject in (None, account.subject):
                shown = _shown(account, budget)
                found += [shown] if shown.share >= query.share else []
        return sorted(found, key=_place)


def _shown(account: BudgetAccount, budget: Budget) -> AccountShown:
    found = rooms(account, budget)
    return AccountShown(
        budget=budget.id,
        per=budget.per,
        subject=account.subject,
        user=account.user,
        tenant=account.tenant,
        window_ends_at=account.ends_at,
        currency=budget.currency,
        share=max((room.share for room in found), default=0.0),
        open_runs=len(account.runs),
        calls_without_cost=used(account).get(WITHOUT_COST, 0),
        rooms=[RoomShown(**asdict(room), left=room.left) for room in found],
    )


def _place(shown: AccountShown) -> tuple[str, str, str]:
    """Return by what accounts are listed. Two tenants may have users of one name."""
    return shown.budget, shown.subject, shown.tenant or ""
