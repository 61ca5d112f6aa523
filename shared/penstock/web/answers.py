"""Write JSON answers, and times as texts."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any, Final

import orjson
from starlette.responses import Response

DAY_S: Final = 24 * 3600.0
MAX_LIFETIME_S: Final = 366 * DAY_S
LAST_S: Final = datetime(9999, 12, 31, tzinfo=UTC).timestamp()


def time_text(at_s: float | None) -> str | None:
    """Return a time in Unix seconds as ISO 8601 in UTC. A time after the year 9999 becomes
    `LAST_S`."""
    if at_s is None:
        return None
    at = datetime.fromtimestamp(min(at_s, LAST_S), UTC)
    return at.isoformat(timespec="milliseconds").replace("+00:00", "Z")


def json_answer(body: Any, status: int = 200, **headers: str) -> Response:
    return Response(orjson.dumps(body), status, headers, "application/json")
