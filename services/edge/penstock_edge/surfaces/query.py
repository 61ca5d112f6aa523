"""What the addresses of streams and lists have in common."""

from __future__ import annotations

from typing import Final

from starlette.requests import HTTPConnection

from penstock.dialects.encoders import CLIENT_DIALECTS
from penstock.web.problems import Problem
from penstock_edge.views.cursor import Cursor

MAX_LISTED: Final = 100
IDLE: Final = "idle"
MAX_DIGITS: Final = 9  # of what is read as a number at all: int() refuses thousands of them


def cursor_of(request: HTTPConnection) -> Cursor | None:
    """Where the client stands. Raises Problem 400 for what is not of our making."""
    # an EventSource that comes back sends the header with the address it began with
    text = request.headers.get("last-event-id") or request.query_params.get("after")
    if not text:
        return None
    try:
        return Cursor.parse(text)
    except ValueError as error:
        raise Problem(400, str(error)) from error


def wants_page(request: HTTPConnection) -> bool:
    """Whether JSON is accepted, and a stream is not."""
    accept = request.headers.get("accept", "")
    return "application/json" in accept and "text/event-stream" not in accept


def number(text: str | None, name: str, default: int, most: int) -> int:
    """A number from 1 on. Raises Problem 422."""
    if text is None:
        return default
    digits = text.isascii() and text.isdigit() and len(text) <= MAX_DIGITS
    if not digits or not 1 <= int(text) <= most:
        raise Problem(422, f"{name}: must be a number from 1 to {most}")
    return int(text)


def switch(request: HTTPConnection, name: str, *, default: bool) -> bool:
    """`on` or `off`. Raises Problem 422."""
    text = request.query_params.get(name)
    if text not in (None, "on", "off"):
        raise Problem(422, f"{name}: must be on or off")
    return default if text is None else text == "on"


def until_idle(request: HTTPConnection) -> bool:
    """Whether the stream is to end when no run is under way. Raises Problem 422."""
    until = request.query_params.get("until")
    if until not in (None, IDLE):
        raise Problem(422, f"until: must be {IDLE}")
    return until == IDLE


def types_of(request: HTTPConnection, dialect: str) -> frozenset[str] | None:
    """The types chosen by `category` and `type`; None for all. Raises Problem 422."""
    categories, types = listed(request, "category"), listed(request, "type")
    if not categories and not types:
        return None
    known = CLIENT_DIALECTS.get(dialect)
    if known is None or known.select_types is None:
        raise Problem(422, f"category, type: the dialect {dialect} has none to choose by")
    try:
        return known.select_types(categories, types)
    except ValueError as error:
        raise Problem(422, f"category, type: {error}") from error


def listed(request: HTTPConnection, name: str) -> list[str]:
    """The values of a parameter, each once, given by commas or by repeating it.

    Raises Problem 422 for too many.
    """
    given = request.query_params.getlist(name)
    values = (value.strip() for text in given for value in text.split(","))
    listed = list(dict.fromkeys(value for value in values if value))
    if len(listed) > MAX_LISTED:
        raise Problem(422, f"{name}: must have {MAX_LISTED} values at most")
    return listed
