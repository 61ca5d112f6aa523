"""Implements the functions that return a part of a time or of a duration. Pure."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import datetime, timedelta
from typing import Any, Final
from zoneinfo import ZoneInfo

from penstock.expressions.errors import ExpressionError
from penstock.expressions.library.budget import Budget, Function
from penstock.expressions.library.kinds import no_overload


def getter(name: str, part: Callable[[datetime], int]) -> Function:
    """Return the CEL function that returns a part of a time in a time zone, or a part of a
    duration."""

    def get(budget: Budget, value: Any, zone: Any = "UTC") -> int:
        budget.take(50)
        if isinstance(value, timedelta) and name in _OF_DURATION and zone == "UTC":
            return _OF_DURATION[name](value)
        if not isinstance(value, datetime):
            raise no_overload(name, value)
        return part(value.astimezone(_zone(zone)))

    return get


def _zone(name: Any) -> Any:
    try:
        return ZoneInfo(name)
    except (ValueError, LookupError, OSError, TypeError):
        raise ExpressionError(f"there is no time zone {str(name)[:60]!r}") from None


_OF_DURATION: Final[Mapping[str, Callable[[timedelta], int]]] = {
    "getHours": lambda value: int(value.total_seconds() / 3600),
    "getMinutes": lambda value: int(value.total_seconds() / 60),
    "getSeconds": lambda value: int(value.total_seconds()),
    "getMilliseconds": lambda value: int(value.microseconds / 1000),
}
