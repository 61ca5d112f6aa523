"""Serve the accounts of budgets: what is used of each, and what is left."""

from __future__ import annotations

from dataclasses import asdict
from typing import Final

from pydantic import BaseModel, ConfigDict, Field
from starlette.requests import Request
from starlette.responses import Response

from penstock.budgets.account import WITHOUT_COST, rooms, used
from penstock.budgets.admission import CurrentBudgets
from penstock.budgets.model import Budget, Dimension, Per
from penstock.bus.records.budgets import BudgetAccount
from penstock.web.answers import cursor_of, cursor_parts, json_answer
from penstock.web.auth import identity_of
from penstock.web.bodies import read_query
from penstock.web.operation import Operation, in_query, json, serves
from penstock.web.read_scheduler import ReadScheduler
from penstock_approvals.budgets.listing import BEGIN, AccountList, Place

MAX_PAGE: Final = 1000


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

    def __init__(self, accounts: AccountList, budgets: CurrentBudgets) -> None:
        self._accounts = accounts
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
        after = BEGIN if query.after is None else Place(*cursor_parts(query.after, *[str] * 4))
        wanted = {"budget": query.budget, "subject": query.subject}
        required = {name: value for name, value in wanted.items() if value is not None}
        by_id, page = self._budgets.current.by_id, list[AccountShown]()
        following: str | None = None
        async with self._turns.of(who.tenant_user):
            async for place, account in self._accounts.after(who.owners, required, after):
                if (budget := by_id.get(account.budget)) is None:
                    continue
                shown = _shown(account, budget)
                if shown.share < query.share:
                    continue
                if len(page) == query.limit:
                    following = cursor_of(*after)
                    break
                page.append(shown)
                after = place
        return json_answer(AccountPage(accounts=page, next=following).model_dump(mode="json"))


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
