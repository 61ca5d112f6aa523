"""Finds accounts of budgets in an index in memory, so that nobody reads those of other users, of
runs that have ended, and of windows that are over."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Collection, Iterator, Mapping, Sequence
from datetime import datetime
from typing import Any, Final, NamedTuple, get_args

from pydantic import ValidationError

from penstock import telemetry
from penstock.budgets.account import committed
from penstock.budgets.accounts import BUCKET
from penstock.budgets.model import Budget, Dimension
from penstock.bus import Bus, Entry
from penstock.bus.records.budgets import BudgetAccount
from penstock.bus.state.bucket_index import SLICE, BucketIndex, Change, IndexRows, number_of

log = logging.getLogger(__name__)

READ_AT_ONCE: Final = 100  # how many accounts are read before other requests are handled
NEVER: Final = float(2**62)  # stands for the end of an account that has no window
# The greatest amount of a row, in 64 bits. An agent server that reports nonsense may add up to
# more, and its account must not keep those of others out of the index.
MOST: Final = 2**63 - 1
_AMOUNTS: Final[tuple[Dimension, ...]] = get_args(Dimension)
_COLUMNS: Final = ("key", "owner", "budget", "subject", "tenant", "ends", "busy", "seq", *_AMOUNTS)
_PUT: Final = (
    f"INSERT INTO accounts ({', '.join(_COLUMNS)}) VALUES ({', '.join('?' * len(_COLUMNS))})"
    " ON CONFLICT (key) DO UPDATE SET "
    + ", ".join(f"{each} = excluded.{each}" for each in _COLUMNS)
)


class Place(NamedTuple):
    """The place of an account in the list. Two tenants may have users of one name, and two users
    sessions of one id, so the key counts, too."""

    budget: str
    subject: str
    tenant: str
    key: str


BEGIN: Final = Place("", "", "", "")


class AccountRows(IndexRows):
    """The rows of accounts that runs may still use, and of those that the ledger's sweep may have
    to change: these are `busy`. `ends` is in Unix seconds, and 0 for an account that is not listed.
    The amounts are what is used or set aside."""

    def __init__(self, bus: Bus) -> None:
        amounts = "".join(f", {name} INT" for name in _AMOUNTS)
        super().__init__(
            "accounts",
            "CREATE TABLE accounts(key TEXT PRIMARY KEY, owner INT, budget TEXT, subject TEXT,"
            f" tenant TEXT, ends REAL, busy INT, seq INT{amounts})",
            "CREATE INDEX accounts_by_place ON accounts(budget, subject, tenant, key)",
            "CREATE INDEX accounts_by_owner ON accounts(owner, budget, subject, tenant, key)",
            "CREATE INDEX accounts_busy ON accounts(key) WHERE busy",
        )
        self._clock = bus.clock

    def put(self, changes: Sequence[Change]) -> None:
        self.upsert(changes, self._rows_of, _PUT)

    def forget_before(self, sequence: int, limit: int) -> bool:
        """Drop the rows of windows that are over, and then as `IndexRows.forget_before`."""
        sql = "DELETE FROM accounts WHERE ends < ? AND NOT busy"
        self.write(sql, [(self._clock.time(),)])
        return super().forget_before(sequence, limit)

    def busy(self) -> list[str]:
        return [str(key) for (key,) in self.rows("SELECT key FROM accounts WHERE busy")]

    def after(
        self, owners: Collection[str] | None, wanted: Mapping[str, str], place: Place, limit: int
    ) -> list[Place]:
        """Return the next accounts that runs may use. `wanted` has required values of columns."""
        numbers = [number_of(owner) for owner in owners or ()]
        conditions = ["(budget, subject, tenant, key) > (?, ?, ?, ?)", "ends > ?"]
        conditions += [f"{name} = ?" for name in wanted]
        if owners is not None:
            conditions.append(f"owner IN ({', '.join('?' * len(numbers))})")
        found = self.rows(
            f"SELECT budget, subject, tenant, key FROM accounts WHERE {' AND '.join(conditions)}"
            " ORDER BY budget, subject, tenant, key LIMIT ?",
            (*place, self._clock.time(), *wanted.values(), *numbers, limit),
        )
        return [Place(*each) for each in found]

    def greatest(self) -> Iterator[tuple[str, dict[Dimension, int]]]:
        """Return by budget what the fullest of some accounts have in each dimension; the amounts of
        one budget may come several times, since the caller does other work between them."""
        amounts = ", ".join(f"max({name})" for name in _AMOUNTS)
        begin, end = self.rows("SELECT min(rowid), max(rowid) FROM accounts")[0]
        for first in range(begin or 0, (end or -1) + 1, SLICE):
            for budget, *most in self.rows(
                f"SELECT budget, {amounts} FROM accounts WHERE rowid BETWEEN ? AND ? AND ends > ?"
                " GROUP BY budget",
                (first, first + SLICE - 1, self._clock.time()),
            ):
                yield str(budget), dict(zip(_AMOUNTS, most, strict=True))

    def _rows_of(self, change: Change) -> list[tuple[Any, ...]]:
        try:
            account = BudgetAccount.model_validate_json(change.value or b"")
        except ValidationError as error:
            telemetry.UNREADABLE_RECORDS.labels(BUCKET).inc()
            text = "the account %s in KV %s cannot be read, and its runs are not settled: %s"
            log.warning(text, change.key, BUCKET, error)
            return []
        is_open, is_busy = bool(account.runs), bool(account.runs or account.settled)
        ends = _ends(account) if account.per != "run" or is_open else 0.0
        if not is_busy and ends < self._clock.time():
            return []
        owner = None if account.user is None else number_of(account.user)
        names = (account.budget, account.subject, account.tenant or "")
        taken = committed(account)
        amounts = (min(taken.get(name, 0), MOST) for name in _AMOUNTS)
        return [(change.key, owner, *names, ends, is_busy, change.sequence, *amounts)]


class AccountList:
    """Lists the accounts of budgets from the index of this process. Every method raises
    BusError."""

    def __init__(self, bus: Bus) -> None:
        self.rows = AccountRows(bus)
        self.index = BucketIndex(bus, BUCKET, self.rows, lambda key: key.startswith("account."))

    async def busy(self) -> AsyncIterator[Entry]:
        """Yield the accounts with open runs, or with runs that have just ended."""
        await self.index.caught_up()
        keys = self.rows.busy()
        for begin in range(0, len(keys), READ_AT_ONCE):
            values = await self.index.values(keys[begin : begin + READ_AT_ONCE])
            for entry in values.values():
                yield entry

    async def after(
        self, owners: Collection[str] | None, wanted: Mapping[str, str], place: Place
    ) -> AsyncIterator[tuple[Place, BudgetAccount]]:
        """Yield the accounts of these owners that follow a place and that runs may use; with None,
        of all owners."""
        await self.index.caught_up()
        while places := self.rows.after(owners, wanted, place, READ_AT_ONCE):
            values = await self.index.values([each.key for each in places])
            for each in places:
                if (entry := values.get(each.key)) is None:
                    continue
                account = BudgetAccount.model_validate_json(entry.value)
                # The row's owner is a number, which two users may share.
                if owners is None or account.user in owners:
                    yield each, account
            place = places[-1]

    async def shares(self, budgets: Mapping[str, Budget]) -> dict[str, float]:
        """Return by budget of several runs the greatest share of its limit that is taken."""
        shares: dict[str, float] = {}
        for budget_id, amounts in self.rows.greatest():
            budget = budgets.get(budget_id)
            if budget is not None and budget.per != "run":
                limits = budget.limit.amounts
                taken = (amounts[name] / limit for name, limit in limits.items())
                shares[budget_id] = max(shares.get(budget_id, 0.0), *taken, 0.0)
            await asyncio.sleep(0)
        return shares


def _ends(account: BudgetAccount) -> float:
    return NEVER if account.ends_at is None else datetime.fromisoformat(account.ends_at).timestamp()
