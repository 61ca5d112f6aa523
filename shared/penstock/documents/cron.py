"""Computes the times of a cron expression in a time zone. Pure.

The times are the same as in Debian's cron. An expression with a fixed minute and hour fires once on
each of its days. If daylight saving time skips this local time, the expression fires at the end of
the gap. If this local time occurs twice, the expression fires at the first occurrence only. An
expression with `*` as minute or hour follows real time, so this expression fires in both
occurrences of the repeated hour.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import islice
from typing import Final
from zoneinfo import ZoneInfo

from cronsim import CronSim, CronSimError

FIELDS: Final = 5  # minute, hour, day of the month, month, day of the week
MINUTE_S: Final = 60.0
# `latest` first looks at the last two minutes, then at a period 16 times as long, and so on. So
# `latest` computes only a few dates, both for a schedule of every minute and for a schedule of
# every year.
_FIRST_LOOK_S, _LOOK_GROWS = 2 * MINUTE_S, 16


@dataclass(frozen=True, slots=True)
class Cron:
    """A cron expression and its time zone, which only `parse` checks. Times are Unix seconds."""

    expression: str
    timezone: str = "UTC"

    @classmethod
    def parse(cls, expression: str, timezone: str) -> Cron:
        """Return a checked expression. Raises ValueError, also for one without a next time."""
        fields = len(expression.split())
        if fields != FIELDS:
            raise ValueError(
                f"a cron expression has five fields (minute, hour, day of the month, month, day of "
                f"the week); this has {fields}"
            )
        check_timezone(timezone)
        cron = cls(expression, timezone)
        try:
            first = cron.next(0)
        except CronSimError as error:
            raise ValueError(f"not a cron expression: {error}") from None
        if first is None:
            raise ValueError("no day of the next 50 years matches the cron expression")
        return cron

    def after(self, unix_s: float) -> Iterator[float]:
        """Yield the times after `unix_s`, in ascending order, as long as there are any."""
        begin = datetime.fromtimestamp(int(unix_s), UTC)
        zone = UTC if self.timezone == "UTC" else ZoneInfo(self.timezone)
        last = unix_s
        for time in CronSim(self.expression, begin.astimezone(zone)):
            found = time.timestamp()
            # In the second occurrence of a repeated hour, cronsim returns times of the first
            # occurrence. At the end of a gap, cronsim may return a time twice.
            if found > last:
                last = found
                yield found

    def next(self, unix_s: float) -> float | None:
        """Return the first time after `unix_s`; None if there is none in the next 50 years."""
        return next(self.after(unix_s), None)

    def upcoming(self, unix_s: float, count: int) -> list[float]:
        return list(islice(self.after(unix_s), count))

    def latest(self, begin: float, end: float) -> float | None:
        """Return the last time after `begin` and not after `end`; None if there is none."""
        look_s = _FIRST_LOOK_S
        while True:
            start = max(begin, end - look_s)
            found = None
            for time in self.after(start):
                if time > end:
                    break
                found = time
            if found is not None or start <= begin:
                return found
            look_s *= _LOOK_GROWS


def rfc3339(unix_s: float) -> str:
    """Return the time as RFC 3339, in UTC, with milliseconds."""
    moment = datetime.fromtimestamp(unix_s, UTC)
    return moment.isoformat(timespec="milliseconds").removesuffix("+00:00") + "Z"


def check_timezone(name: str) -> None:
    try:
        ZoneInfo(name)
    except (ValueError, LookupError, OSError):
        # zoneinfo raises an OSError for a directory of its database, such as `Europe`.
        raise ValueError(
            f"there is no time zone {name!r}; use a name of the IANA database such as Europe/Rome"
        ) from None
