"""The times of a cron expression, also where a time zone changes its clocks."""

from __future__ import annotations

import contextlib
from datetime import UTC, datetime, timedelta
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.documents.cron import Cron

ROME = ZoneInfo("Europe/Rome")


def at(text: str, zone: ZoneInfo = ROME, fold: int = 0) -> float:
    return datetime.fromisoformat(text).replace(tzinfo=zone, fold=fold).timestamp()


def shown(times: list[float], zone: ZoneInfo = ROME) -> list[str]:
    return [datetime.fromtimestamp(each, zone).strftime("%m-%d %H:%M%z") for each in times]


def test_nine_on_working_days_in_rome_is_eight_in_winter_and_seven_in_summer_by_utc() -> None:
    cron = Cron.parse("0 9 * * mon-fri", "Europe/Rome")
    assert shown(cron.upcoming(at("2026-03-27 08:00"), 3)) == [
        "03-27 09:00+0100",  # a Friday; clocks change on Sunday
        "03-30 09:00+0200",
        "03-31 09:00+0200",
    ]
    assert cron.next(at("2026-03-27 09:00")) == at("2026-03-30 09:00")
    assert cron.next(at("2026-03-27 09:00") - 0.001) == at("2026-03-27 09:00")


# On 2026-03-29, 02:00 to 03:00 does not exist in Rome. On 2026-10-25, 02:00 to 03:00 is twice.
@pytest.mark.parametrize(
    ("cron", "begin", "expected"),
    [
        # A fixed time in the gap is fired once, at the end of the gap.
        ("30 2 * * *", "2026-03-28 12:00", ["03-29 03:00+0200", "03-30 02:30+0200"]),
        # Two times that the gap moves to the same moment are fired once.
        ("0 2,3 * * *", "2026-03-29 01:00", ["03-29 03:00+0200", "03-30 02:00+0200"]),
        # A fixed time of the overlap is fired once, the first time.
        ("30 2 * * *", "2026-10-24 12:00", ["10-25 02:30+0200", "10-26 02:30+0100"]),
        ("0 2-3 * * *", "2026-10-25 00:00", ["10-25 02:00+0200", "10-25 03:00+0100"]),
        # A schedule with a star follows real time.
        (
            "30 * * * *",
            "2026-10-25 01:00",
            ["10-25 01:30+0200", "10-25 02:30+0200", "10-25 02:30+0100", "10-25 03:30+0100"],
        ),
        ("*/30 2 * * *", "2026-03-28 12:00", ["03-30 02:00+0200", "03-30 02:30+0200"]),
        ("0 * * * *", "2026-03-29 00:30", ["03-29 01:00+0100", "03-29 03:00+0200"]),
    ],
)
def test_a_change_of_clocks_neither_loses_nor_doubles_a_time(
    cron: str, begin: str, expected: list[str]
) -> None:
    parsed = Cron.parse(cron, "Europe/Rome")
    assert shown(parsed.upcoming(at(begin), len(expected))) == expected


def test_in_the_second_of_two_equal_hours_no_time_of_the_first_comes_again() -> None:
    cron = Cron.parse("30 2 * * *", "Europe/Rome")
    second = at("2026-10-25 02:10", fold=1)
    assert shown([second]) == ["10-25 02:10+0100"]
    assert cron.next(second) == at("2026-10-26 02:30")


@pytest.mark.parametrize(
    ("cron", "end", "expected"),
    [
        ("* * * * *", "2026-11-22 14:00:59", "2026-11-22 14:00:00"),
        ("0 9 * * mon-fri", "2026-11-22 14:00:00", "2026-11-20 09:00:00"),
        ("0 9 * * mon-fri", "2026-11-20 09:00:00", "2026-11-20 09:00:00"),
        ("0 0 29 2 *", "2026-11-22 14:00:00", "2024-02-29 00:00:00"),
    ],
)
def test_the_latest_time_is_the_last_one_before_or_at_a_moment(
    cron: str, end: str, expected: str
) -> None:
    assert Cron.parse(cron, "UTC").latest(0, at(end, ZoneInfo("UTC"))) == at(
        expected, ZoneInfo("UTC")
    )


def test_there_may_be_no_time_between_two_moments() -> None:
    cron = Cron.parse("0 9 * * *", "UTC")
    nine = datetime(2026, 11, 22, 9, tzinfo=UTC).timestamp()
    assert cron.latest(nine, nine + 3600) is None
    assert cron.latest(nine - 1, nine + 3600) == nine


_CRONS = st.sampled_from(
    ["* * * * *", "*/7 * * * *", "30 2 * * *", "15,45 1-3 * * *", "0 2,3 * * sun", "5 */2 * * *"]
)
_ZONES = st.sampled_from(["Europe/Rome", "America/New_York", "Australia/Lord_Howe", "UTC"])
# Days around changes of clocks in these zones, and an ordinary day.
_DAYS = st.sampled_from(["2026-03-08", "2026-03-29", "2026-04-05", "2026-10-25", "2026-06-01"])


@settings(max_examples=60, deadline=None)
@given(_CRONS, _ZONES, _DAYS, st.floats(-90_000, 90_000), st.floats(1, 20_000))
def test_the_times_are_the_same_wherever_one_begins_to_look(
    expression: str, zone: str, day: str, offset_s: float, later_s: float
) -> None:
    """A service that looks at 10:00 and one that looks at 10:07 must agree on the next times."""
    cron = Cron.parse(expression, zone)
    begin = datetime.fromisoformat(day).replace(tzinfo=UTC).timestamp() + offset_s
    times = cron.upcoming(begin, 400)
    assert times == sorted(set(times))
    assert times[0] > begin
    moment = begin + later_s
    assert cron.next(moment) == next(each for each in times if each > moment)
    passed = [each for each in times if each <= moment]
    assert cron.latest(begin, moment) == (passed[-1] if passed else None)


@settings(max_examples=300, deadline=timedelta(seconds=2))
@given(st.text("0123456789*/,-#Llw sun", max_size=40))
def test_any_text_is_a_cron_expression_or_a_clear_error(text: str) -> None:
    with contextlib.suppress(ValueError):  # any other exception fails the test
        Cron.parse(text, "UTC")
