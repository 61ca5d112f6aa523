"""Reads the parameters in the URLs of streams and lists."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection
from datetime import datetime
from typing import Final, TypeVar, cast, get_args

from starlette.requests import HTTPConnection

from penstock.bus.records.runs import RunRecord, WhenBusy
from penstock.dialects.encoders import CLIENT_DIALECTS
from penstock.web.problems import Problem
from penstock_edge.runs.records import is_workflow
from penstock_edge.views.cursor import Cursor
from penstock_edge.views.dialects import RAW_DIALECT
from penstock_edge.views.trees import BY_DEFAULT

T = TypeVar("T")

_RFC_3339: Final = re.compile(
    r"\d{4}-\d\d-\d\d[Tt]\d\d:\d\d:\d\d(\.\d{1,9})?([Zz]|[+-]\d\d:\d\d)", re.ASCII
)
MAX_VALUES: Final = 100
IDLE: Final = "idle"
CHILDREN: Final = "children"
INCLUDES: Final = (CHILDREN, "none")
# The greatest number of digits that are parsed: int() raises ValueError for thousands of digits.
MAX_DIGITS: Final = 9


def cursor_text(request: HTTPConnection) -> str | None:
    # An EventSource that reconnects uses its first URL again. So the cursor in the header is newer
    # than the cursor in the URL.
    return request.headers.get("last-event-id") or request.query_params.get("after")


def cursor_of(request: HTTPConnection) -> Cursor | None:
    return parsed_cursor(request, Cursor.parse)


def parsed_cursor(request: HTTPConnection, parse: Callable[[str], T]) -> T | None:
    """`parse` raises ValueError for a text that is not a cursor (400)."""
    text = cursor_text(request)
    if not text:
        return None
    try:
        return parse(text)
    except ValueError as error:
        raise Problem(400, str(error)) from error


def when_busy_of(request: HTTPConnection) -> WhenBusy:
    """Return what a start does in a busy session, on a surface whose bodies have no field for
    it."""
    value, known = request.query_params.get("when_busy", "queue"), get_args(WhenBusy)
    if value not in known:
        raise Problem(422, f"when_busy: must be one of {', '.join(known)}")
    return cast(WhenBusy, value)


def first_of(request: HTTPConnection) -> int | None:
    """Return with which event of its run the answer begins (see `locate`)."""
    text = request.query_params.get("from")
    if not text:
        return None
    if re.fullmatch(rf"-?[0-9]{{1,{MAX_DIGITS}}}", text, re.ASCII) is None:
        raise Problem(422, "from: must be the sequence of an event, or 0 or less")
    return int(text)


def wants_page(request: HTTPConnection) -> bool:
    accept = request.headers.get("accept", "")
    return "application/json" in accept and "text/event-stream" not in accept


def number(text: str | None, name: str, default: int, most: int) -> int:
    if text is None:
        return default
    digits = text.isascii() and text.isdigit() and len(text) <= MAX_DIGITS
    if not digits or not 1 <= int(text) <= most:
        raise Problem(422, f"{name}: must be a number from 1 to {most}")
    return int(text)


def switch(request: HTTPConnection, name: str, *, default: bool) -> bool:
    text = request.query_params.get(name)
    if text not in (None, "on", "off"):
        raise Problem(422, f"{name}: must be on or off")
    return default if text is None else text == "on"


def dialect_of(request: HTTPConnection, known: Collection[str]) -> str:
    # In a query, `+` stands for a space. So `agui+runs` arrives as `agui runs`, unless the client
    # has encoded the `+`.
    dialect = request.query_params.get("dialect", "canonical").replace(" ", "+")
    if dialect not in known:
        raise Problem(422, f"dialect: must be one of {', '.join(known)}")
    return dialect


def include_of(request: HTTPConnection, dialect: str, *, of_workflow: bool) -> str | None:
    given = request.query_params.get("include")
    if given not in (None, *INCLUDES):
        raise Problem(422, f"include: must be {' or '.join(INCLUDES)}")
    if dialect == RAW_DIALECT and (of_workflow or given == CHILDREN):
        raise Problem(
            422,
            "dialect, include: the bytes of several agent servers make no common stream; ask for "
            "the bytes of each step's run by itself, or for another dialect",
        )
    return given


def with_children(include: str | None, dialect: str, record: RunRecord) -> bool:
    if not is_workflow(record):
        return False
    return include == CHILDREN or (include is None and dialect in BY_DEFAULT)


def until_idle(request: HTTPConnection) -> bool:
    until = request.query_params.get("until")
    if until not in (None, IDLE):
        raise Problem(422, f"until: must be {IDLE}")
    return until == IDLE


def types_of(request: HTTPConnection, dialect: str) -> frozenset[str] | None:
    """Return None for all types."""
    categories, types = listed(request, "category"), listed(request, "type")
    if not categories and not types:
        return None
    known = CLIENT_DIALECTS.get(dialect)
    if known is None or known.select_types is None:
        typed = ", ".join(name for name, each in CLIENT_DIALECTS.items() if each.select_types)
        raise Problem(
            422,
            f"category, type: frames of the dialect {dialect} have no types; leave both out, or "
            f"ask for dialect={typed}",
        )
    try:
        return known.select_types(categories, types)
    except ValueError as error:
        raise Problem(422, f"category, type: {error}") from error


def time_of(request: HTTPConnection, name: str) -> datetime | None:
    text = request.query_params.get(name)
    if not text:
        return None
    # In a URL, a plus sign that is not escaped is read as a space. Accepted times contain no space,
    # so each space is turned back into a plus sign.
    text = text.strip().replace(" ", "+")
    if _RFC_3339.fullmatch(text):
        try:
            return datetime.fromisoformat(text.upper())
        except ValueError:
            pass
    raise Problem(422, f"{name}: must be a time as RFC 3339 has it: 2026-01-31T12:00:00Z")


def listed(request: HTTPConnection, name: str) -> list[str]:
    # A parameter may be repeated, and each repetition may have several values, separated by commas.
    given = request.query_params.getlist(name)
    values = (value.strip() for text in given for value in text.split(","))
    listed = list(dict.fromkeys(value for value in values if value))
    if len(listed) > MAX_VALUES:
        raise Problem(422, f"{name}: must have {MAX_VALUES} values at most")
    return listed
