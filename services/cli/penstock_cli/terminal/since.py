"""Parses the times that options such as `--since` take."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta

_UNITS_S = {"s": 1, "m": 60, "h": 3600, "d": 86400}


def parse_since(text: str) -> datetime:
    """Parse an age (`90s`, `15m`, `2h`, `3d`) or an ISO 8601 time. Raises ValueError."""
    if short := re.fullmatch(r"(\d{1,5})([smhd])", text):
        return datetime.now(UTC) - timedelta(seconds=int(short[1]) * _UNITS_S[short[2]])
    try:
        time = datetime.fromisoformat(text)
    except ValueError:
        raise ValueError(f"{text!r} is neither like 15m, 2h or 3d nor a time (ISO 8601)") from None
    return time if time.tzinfo else time.astimezone()
