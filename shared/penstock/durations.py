"""Reads and writes durations as texts: a number and a unit, such as `30m`. Pure."""

from __future__ import annotations

import re
from typing import Final

_DURATION: Final = re.compile(r"(\d{1,6})([smhd])")
_UNITS_S: Final = {"d": 86400, "h": 3600, "m": 60, "s": 1}


def seconds_of(text: str) -> int:
    """Return the seconds of a duration. Raises ValueError."""
    match = _DURATION.fullmatch(text.strip())
    if match is None:
        raise ValueError("a duration is a number and s, m, h or d, such as 30m")
    return int(match[1]) * _UNITS_S[match[2]]


def text_of(seconds: float) -> str:
    """Return the duration in the largest unit of which it is a whole number."""
    whole = int(seconds)
    unit = next(name for name, unit_s in _UNITS_S.items() if whole % unit_s == 0)
    return f"{whole // _UNITS_S[unit]}{unit}"
