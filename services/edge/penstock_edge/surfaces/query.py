"""Values in the URLs of streams and lists."""

from __future__ import annotations

from typing import Final

from starlette.requests import HTTPConnection

from penstock.dialects.encoders import CLIENT_DIALECTS
from penstock.web.problems import Problem
from penstock_edge.views.cursor import Cursor

MAX_LISTED: Final = 100
IDLE: Final = "idle"
MAX_DIGITS: Final = 9  # int() raises for a text of thousands of digits


def cursor_of(request: HTTPConnection) -> Cursor | None:
    """The cursor of the request; None without one.

    Raises:
        Problem: 400 for a text that is not a cursor.
    """
    # An EventSource that reconnects uses its first URL again, so the header is the newer cursor.
    text = request.headers.get("last-event-id") or request.query_params.get("after")
    if not text:
        return None
    try:
        return Cursor.parse(text)
    except ValueError as error:
        raise Problem(400, str(error)) from error


def wants_page(request: HTTPConnection) -> bool:
    """Whether the request accepts JSON and no event stream."""
    accept = request.headers.get("accept", "")
    return "application/json" in accept and "text/event-stream" not in accept


def number(text: str | None, name: str, default: int, most: int) -> int:
    """A number from 1 to `most`. Raises Problem 422 for anything else."""
    if text is None:
        return default
    digits = text.isascii() and text.isdigit() and len(text) <= MAX_DIGITS
    if not digits or not 1 <= int(text) <= most:
        raise Problem(422, f"{name}: must be a number from 1 to {most}")
    return int(text)


def switch(request: HTTPConnection, name: str, *, default: bool) -> bool:
    """Whether a parameter is `on`. Raises Problem 422 for anything but `on` and `off`."""
    text = request.query_params.get(name)
    if text not in (None, "on", "off"):
        raise Problem(422, f"{name}: must be on or off")
    return default if text is None else text == "on"


def until_idle(request: HTTPConnection) -> bool:
    """Whether the stream ends when no run is active. Raises Problem 422 for an unknown value."""
    until = request.query_params.get("until")
    if until not in (None, IDLE):
        raise Problem(422, f"until: must be {IDLE}")
    return until == IDLE


def types_of(request: HTTPConnection, dialect: str) -> frozenset[str] | None:
    """The types that `category` and `type` select; None for all.

    Raises:
        Problem: 422 for an unknown one, or a dialect whose frames have no types.
    """
    categories, types = listed(request, "category"), listed(request, "type")
    if not categories and not types:
        return None
    known = CLIENT_DIALECTS.get(dialect)
    if known is None or known.select_types is None:
        raise Problem(
            422, f"category, type: frames of the dialect {dialect} have no types; leave both out"
        )
    try:
        return known.select_types(categories, types)
    except ValueError as error:
        raise Problem(422, f"category, type: {error}") from error


def listed(request: HTTPConnection, name: str) -> list[str]:
    """The values of a parameter without repetitions, separated by commas or in several parameters.

    Raises:
        Problem: 422 for more than `MAX_LISTED`.
    """
    given = request.query_params.getlist(name)
    values = (value.strip() for text in given for value in text.split(","))
    listed = list(dict.fromkeys(value for value in values if value))
    if len(listed) > MAX_LISTED:
        raise Problem(422, f"{name}: must have {MAX_LISTED} values at most")
    return listed
