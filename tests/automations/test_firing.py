"""The choice of the time of a schedule that is fired or scheduled, without I/O."""

from __future__ import annotations

from typing import Any

import pytest

from penstock_automations.rules.check import read_rule
from penstock_automations.rules.model import Rule
from penstock_automations.rules.records import CompiledRule, Owner, RuleRecord, compile_rule
from penstock_automations.triggers.firing import DueFiring, Firing, due, next_firing

HOUR = 3600.0
NINE = 1_795_338_000.0  # 2026-11-22T09:00:00Z
DAILY = {"cron": "0 9 * * *"}


def rule(since: float = NINE - 48 * HOUR, **schedule: Any) -> CompiledRule:
    action = {"webhook": {"url": "https://x.example"}}
    fields = {"id": "r", "schedule": {**DAILY, **schedule}, "action": action}
    stamp = "2026-11-20T00:00:00.000Z"
    record = RuleRecord(
        rule=read_rule(fields, Rule),
        uid="u1",
        owner=Owner(user_id="alice"),
        since=since,
        created_at=stamp,
        updated_at=stamp,
    )
    return compile_rule(record, 1)


def firing(at: float = NINE, **fields: Any) -> Firing:
    return Firing(
        **{"rule": "r", "uid": "u1", "cron": "0 9 * * *", "timezone": "UTC", "at": at, **fields}
    )


@pytest.mark.parametrize(
    ("given", "made", "now", "expected"),
    [
        (firing(), rule(), NINE, DueFiring("fired", NINE)),
        # this process's estimate of NATS's time is behind
        (firing(), rule(), NINE - 1, DueFiring("fired", NINE)),
        (firing(), rule(), NINE + 59, DueFiring("fired", NINE)),
        (firing(), rule(), NINE + 61, DueFiring("caught_up", NINE)),
        (firing(), rule(), NINE + HOUR - 1, DueFiring("caught_up", NINE)),
        (firing(), rule(), NINE + HOUR + 1, DueFiring("missed", NINE)),
        (firing(), rule(catch_up_s=60), NINE + 61, DueFiring("missed", NINE)),
        (firing(), rule(catch_up_s=7200), NINE + HOUR + 1, DueFiring("caught_up", NINE)),
        (firing(), rule(), NINE - 6, DueFiring("early", NINE)),
        (firing(NINE - 24 * HOUR), rule(), NINE + 5, DueFiring("caught_up", NINE)),  # the latest
        (firing(NINE - 24 * HOUR), rule(), NINE + 90, DueFiring("caught_up", NINE)),
        (firing(), rule(since=NINE), NINE, DueFiring("stale", NINE)),
        (firing(), rule(cron="1 9 * * *"), NINE, DueFiring("stale", NINE)),
        (firing(), rule(timezone="Europe/Rome"), NINE, DueFiring("stale", NINE)),
        (firing(uid="u2"), rule(), NINE, DueFiring("stale", NINE)),
    ],
)
def test_what_is_done_about_a_time_that_has_come(
    given: Firing, made: CompiledRule, now: float, expected: DueFiring
) -> None:
    assert due(given, made, now) == expected


@pytest.mark.parametrize(
    ("made", "pending", "now", "handled", "expected"),
    [
        (rule(), None, NINE - 10 * HOUR, None, NINE),
        (rule(), firing(), NINE - 10 * HOUR, None, NINE),
        # The server is about to publish this message.
        (rule(), firing(), NINE, None, NINE),
        (rule(), firing(), NINE + 20, None, NINE),
        # It was published.
        (rule(), None, NINE, NINE, NINE + 24 * HOUR),
        (rule(), None, NINE - 1, NINE, NINE + 24 * HOUR),
        # No message is scheduled, so a time may have been missed.
        (rule(), None, NINE + HOUR - 1, None, NINE),
        (rule(), None, NINE + HOUR + 1, None, NINE + 24 * HOUR),
        (rule(since=NINE + 1), None, NINE + 2, None, NINE + 24 * HOUR),
        # The message is of an earlier schedule, or of a time before the schedule came into force.
        (rule(cron="0 10 * * *"), firing(), NINE, None, NINE + HOUR),
        (rule(since=NINE), firing(), NINE + 1, None, NINE + 24 * HOUR),
        # A clock was ahead when the message was scheduled.
        (rule(), firing(NINE + 480 * HOUR), NINE - HOUR, None, NINE),
    ],
)
def test_which_time_is_scheduled(
    made: CompiledRule,
    pending: Firing | None,
    now: float,
    handled: float | None,
    expected: float,
) -> None:
    found = next_firing(made, pending, now, handled)
    assert found is not None
    assert found.at == expected


@pytest.mark.parametrize(
    "payload", [b"", b"{", b"[]", b"7", b"{}", b'{"rule": "r", "at": "x"}', b"\xff"]
)
def test_what_is_no_firing_is_refused(payload: bytes) -> None:
    with pytest.raises(ValueError, match="not a firing"):
        Firing.parse(payload)


def test_a_firing_of_a_later_version_is_read() -> None:
    payload = firing().dump().replace(b"{", b'{"more": [1], ', 1)
    assert Firing.parse(payload) == firing()
