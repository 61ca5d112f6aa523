"""What is used of budgets: the accounts, and the spending of each run."""

from __future__ import annotations

from pydantic import Field

from penstock.bus.records.base import Record


class AccountRun(Record):
    """What one run has set aside and used of an account: amounts by dimension, money in
    millionths, time in seconds."""

    at: str = Field(description="When it was entered, RFC 3339")
    reserved: dict[str, int] = Field({})
    used: dict[str, int] = Field({})


class AccountRaise(Record):
    """By how much people have raised a limit, for one run."""

    run_id: str
    dimension: str
    value: int


class BudgetAccount(Record):
    """KV `budgets`, key `account.<hash>`: what is used of a budget by a run, a user, …, in one
    window."""

    budget: str = Field(description="The budget's id")
    per: str
    subject: str = Field(description="The run, the user, …, by its name")
    user: str | None = Field(
        None, description="Whose the run or the session is, or the user; none of agents and tenants"
    )
    tenant: str | None = Field(None, description="The tenant of this user; absent without one")
    begins_at: str | None = None
    ends_at: str | None = Field(None, description="When the next window begins, RFC 3339")
    used: dict[str, int] = Field({}, description="By runs that have ended")
    runs: dict[str, AccountRun] = Field({}, description="The runs that are open")
    settled: dict[str, str] = Field({}, description="Runs that have just ended, and when")
    raises: dict[str, AccountRaise] = Field({}, description="By the approval's id")


class RunSpending(Record):
    """KV `budgets`, key `run.<run>`: what a run has used, by the account that it counts for."""

    run_id: str
    last: int = Field(0, description="Stream sequence of the last event in it")
    sequence: int = Field(0, description="The number of this event in the run")
    accounts: dict[str, dict[str, int]] = Field({})
    counted_to: str | None = Field(
        None, description="The time up to which the run's time is counted; None while it waits"
    )
    calls: dict[str, int] = Field(
        {}, description="How often each tool was called with the same arguments, by their digest"
    )
    leg: int = 1
    done: list[str] = Field([], description="The steps of budgets that were carried out")
    ended: bool = False
    settled: bool = Field(False, description="All accounts have what the ended run has used")
