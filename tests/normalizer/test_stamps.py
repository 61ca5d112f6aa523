"""Times of receipt are parsed as `datetime` parses them."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock_normalizer.runs.run_index import unix_s

TIMES = st.datetimes(datetime(1980, 1, 1), datetime(2100, 1, 1), timezones=st.just(UTC))


@given(TIMES, st.sampled_from(["seconds", "milliseconds", "microseconds"]), st.booleans())
def test_a_stamp_is_parsed_as_datetime_parses_it(
    time: datetime, precision: str, is_zulu: bool
) -> None:
    stamp = time.isoformat(timespec=precision)
    stamp = stamp.removesuffix("+00:00") + "Z" if is_zulu else stamp
    assert unix_s(stamp) == pytest.approx(datetime.fromisoformat(stamp).timestamp(), abs=1e-6)


@pytest.mark.parametrize(
    "stamp", ["", "soon", "2026-11-20T10:00:00.abcZ", "2026-13-20T10:00:00.123Z"]
)
def test_what_is_no_time_is_refused(stamp: str) -> None:
    with pytest.raises(ValueError, match=r"."):
        unix_s(stamp)
