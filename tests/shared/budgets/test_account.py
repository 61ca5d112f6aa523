"""An account adds up what its runs use, once, in windows of the operator's time zone."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime

import pytest

from penstock.budgets.account import (
    MAX_RUNS,
    account_key,
    admit,
    committed,
    drop,
    forget,
    new_account,
    put,
    settle,
    used,
    window_of,
)
from penstock.budgets.document import RunFacts, from_value
from penstock.budgets.model import Budget
from penstock.bus.records.budgets import AccountRun, BudgetAccount

FACTS = RunFacts("run-1", agent="research", user="ada", session_id="s")
AT = "2026-11-27T10:00:00Z"


def budget(**fields: object) -> Budget:
    common = {
        "id": "b",
        "per": "user",
        "limit": {"cost": "1.00 EUR"},
        "reserve": "0.40 EUR",
        "at": [{"share": 1.0, "do": "refuse"}],
    }
    document = {"version": 1, "budgets": [{**common, **fields}]}
    return from_value(document, "kv").document.budgets[0]


def account_of(limited: Budget) -> BudgetAccount:
    return new_account(limited, FACTS, datetime(2026, 11, 27, tzinfo=UTC))


@pytest.mark.parametrize(
    ("window", "zone", "at", "begins", "ends"),
    [
        ("hour", "UTC", "2026-11-27T10:59:59", "2026-11-27T10:00:00Z", "2026-11-27T11:00:00Z"),
        ("day", "UTC", "2026-11-27T00:00:00", "2026-11-27T00:00:00Z", "2026-11-28T00:00:00Z"),
        # Rome goes back to winter time at 01:00 UTC, so that day has 25 hours.
        (
            "day",
            "Europe/Rome",
            "2026-10-25T12:00:00",
            "2026-10-24T22:00:00Z",
            "2026-10-25T23:00:00Z",
        ),
        (
            "hour",
            "Europe/Rome",
            "2026-10-25T00:30:00",
            "2026-10-25T00:00:00Z",
            "2026-10-25T01:00:00Z",
        ),
        (
            "hour",
            "Europe/Rome",
            "2026-10-25T01:30:00",
            "2026-10-25T01:00:00Z",
            "2026-10-25T02:00:00Z",
        ),
        (
            "hour",
            "Asia/Kolkata",
            "2026-11-27T10:00:00",
            "2026-11-27T09:30:00Z",
            "2026-11-27T10:30:00Z",
        ),
        ("week", "UTC", "2026-11-29T23:00:00", "2026-11-23T00:00:00Z", "2026-11-30T00:00:00Z"),
        ("month", "UTC", "2026-12-31T23:59:59", "2026-12-01T00:00:00Z", "2027-01-01T00:00:00Z"),
        (
            "month",
            "Asia/Tokyo",
            "2026-12-31T15:00:00",
            "2026-12-31T15:00:00Z",
            "2027-01-31T15:00:00Z",
        ),
    ],
)
def test_a_window_begins_and_ends_by_the_clock_of_its_zone(
    window: str, zone: str, at: str, begins: str, ends: str
) -> None:
    limited = budget(window=window, timezone=zone)
    moment = datetime.fromisoformat(at).replace(tzinfo=UTC)
    assert window_of(limited, moment) == (begins, ends)
    key = account_key(limited, FACTS, moment)
    assert key == account_key(limited, FACTS, datetime.fromisoformat(begins))
    assert key != account_key(limited, FACTS, datetime.fromisoformat(ends))


def test_runs_of_two_users_in_sessions_of_one_name_have_two_accounts() -> None:
    at, limited = datetime(2026, 11, 27, tzinfo=UTC), budget(per="session")
    other = RunFacts("run-2", agent="research", user="bob", session_id="s")
    same = RunFacts("run-3", agent="other", user="ada", session_id="s")
    assert account_key(limited, FACTS, at) == account_key(limited, same, at)
    assert account_key(limited, FACTS, at) != account_key(limited, other, at)


def test_users_of_one_name_in_two_tenants_have_two_accounts() -> None:
    at = datetime(2026, 11, 27, tzinfo=UTC)
    for per, is_same in (("user", False), ("session", False), ("tenant", False), ("agent", True)):
        keys = {account_key(budget(per=per), replace(FACTS, tenant=each), at) for each in "xy"}
        assert (len(keys) == 1) is is_same, per


def test_what_is_set_aside_counts_until_the_run_has_ended() -> None:
    limited = budget()
    account = account_of(limited)
    assert [admit(account, limited, f"r{n}", AT, always=False) for n in range(3)] == [
        True,
        True,
        False,
    ]
    assert admit(account, limited, "r0", AT, always=False), "a repeat is admitted"
    put(account, "r0", AT, {"cost": 500_000})
    assert (committed(account), used(account)) == ({"cost": 900_000}, {"cost": 500_000})
    put(account, "r1", AT, {"cost": 90_000})
    settle(account, "r1", AT, {"cost": 100_000})
    assert list(account.runs) == ["r0"]
    assert (committed(account), used(account)) == ({"cost": 600_000}, {"cost": 600_000})
    assert admit(account, limited, "r3", AT, always=False)


def test_without_a_reserve_a_run_starts_while_anything_is_left() -> None:
    limited = budget(reserve=None, limit={"tokens": 10, "cost": "1.00 EUR"})
    account = account_of(limited)
    assert admit(account, limited, "a", AT, always=False)
    put(account, "a", AT, {"tokens": 9})
    assert admit(account, limited, "b", AT, always=False)
    put(account, "b", AT, {"tokens": 1})
    assert not admit(account, limited, "c", AT, always=False)
    assert admit(account, limited, "step", AT, always=True), "a workflow's steps are never refused"


def test_each_change_may_be_repeated() -> None:
    limited = budget()
    account = account_of(limited)
    for _ in range(2):
        admit(account, limited, "a", AT, always=False)
    for _ in range(2):
        put(account, "a", AT, {"cost": 5})
    for _ in range(2):
        settle(account, "a", AT, {"cost": 7})
    put(account, "a", AT, {"cost": 5})  # of a process that was slow
    assert (account.used, account.runs) == ({"cost": 7}, {})
    admit(account, limited, "never", AT, always=False)
    for _ in range(2):
        drop(account, "never")
    for _ in range(2):
        forget(account, ["a"])
    assert (account.used, account.runs) == ({"cost": 7}, {})


def test_an_account_has_a_greatest_number_of_runs() -> None:
    limited = budget(reserve=None)
    account = account_of(limited)
    account.runs |= {str(number): AccountRun(at=AT) for number in range(MAX_RUNS - 1)}
    assert admit(account, limited, "the last", AT, always=False)
    assert not admit(account, limited, "one more", AT, always=False)
