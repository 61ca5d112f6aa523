"""The functions that convert a value into another type or into JSON. Pure."""

from __future__ import annotations

import math
import re
from datetime import UTC, datetime, timedelta
from typing import Any, Final

import orjson

from penstock.expressions.errors import ExpressionError
from penstock.expressions.library.values import MOST, Budget, in_range, is_number, kind_of

_INTEGER = re.compile(r"[+-]?[0-9]{1,19}")
_NUMBER = re.compile(r"[+-]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]+)?")
_TIME = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d{1,9})?(Z|[+-]\d\d:\d\d)")
_DURATION_PART = re.compile(r"([0-9]+(?:\.[0-9]*)?|\.[0-9]+)(ns|us|ms|h|m|s)")
_DURATION = re.compile(rf"[+-]?(?:0|(?:{_DURATION_PART.pattern})+)")
_MOST_SECONDS = 315_576_000_000  # of a duration's text: 10,000 years
_SECONDS = {"h": 3600.0, "m": 60.0, "s": 1.0, "ms": 1e-3, "us": 1e-6, "ns": 1e-9}


def to_text(budget: Budget, value: Any) -> str:
    match value:
        case str():
            return value
        case bool():
            return "true" if value else "false"
        case int():
            return str(value)
        case float():
            return _double_text(value)
        case datetime():
            return time_text(value)
        case timedelta():
            return f"{_double_text(value.total_seconds())}s"
    raise ExpressionError(f"string() does not take {kind_of(value)}; use json()")


def inserted_text(budget: Budget, value: Any) -> str:
    """Return a value as a template has it: lists, objects and null as JSON."""
    if value is None or isinstance(value, list | dict):
        return json_text(budget, value)
    return to_text(budget, value)


def _double_text(value: float) -> str:
    if math.isfinite(value):
        return repr(value).removesuffix(".0")
    return "nan" if math.isnan(value) else "inf" if value > 0 else "-inf"


def time_text(value: datetime) -> str:
    text = value.astimezone(UTC).replace(tzinfo=None).isoformat()
    return (text.rstrip("0").removesuffix(".") if "." in text else text) + "Z"


def to_integer(budget: Budget, value: Any) -> int:
    """Convert a number, a text or a time into an integer. A time gives seconds since 1970."""
    match value:
        case int():  # true and false are integers, too
            return int(value)
        case float() if math.isfinite(value) and abs(value) < MOST:
            return int(value)
        case str() if _INTEGER.fullmatch(value):
            return int(in_range(int(value)))
        case datetime():
            return math.floor(value.timestamp())
    raise ExpressionError(f"int() cannot convert {_named(value)}")


def to_double(budget: Budget, value: Any) -> float:
    match value:
        case int() | float() if is_number(value):
            return float(value)
        case str() if len(value) <= 64 and _NUMBER.fullmatch(value):
            return float(value)
    raise ExpressionError(f"double() cannot convert {_named(value)}")


def to_boolean(budget: Budget, value: Any) -> bool:
    match value:
        case bool():
            return value
        case "true" | "True" | "TRUE" | "t" | "1":
            return True
        case "false" | "False" | "FALSE" | "f" | "0":
            return False
    raise ExpressionError(f"bool() cannot convert {_named(value)}")


def to_time(budget: Budget, value: Any) -> datetime:
    """Convert a text in RFC 3339, or a number of seconds since 1970, into a time."""
    try:
        match value:
            case datetime():
                return value
            case int() if is_number(value):
                return datetime.fromtimestamp(value, UTC)
            case str() if len(value) <= 40 and _TIME.fullmatch(value):
                return datetime.fromisoformat(value).astimezone(UTC)
    except (ValueError, OverflowError, OSError):
        pass
    raise ExpressionError(f"timestamp() cannot convert {_named(value)}")


def to_duration(budget: Budget, value: Any) -> timedelta:
    try:
        match value:
            case timedelta():
                return value
            case str() if len(value) <= 64 and _DURATION.fullmatch(value):
                parts = _DURATION_PART.findall(value)
                seconds = sum(float(number) * _SECONDS[unit] for number, unit in parts)
                if seconds < _MOST_SECONDS + 1:
                    return timedelta(seconds=-seconds if value[0] == "-" else seconds)
    except OverflowError:
        pass
    raise ExpressionError(f"duration() cannot convert {_named(value)}")


def _named(value: Any) -> str:
    return f'"{value[:60]}"' if isinstance(value, str) else kind_of(value)


MAX_RESULT_BYTES: Final = 512 * 1024


def json_text(budget: Budget, value: Any) -> str:
    plain = plain_json(value, MAX_RESULT_BYTES, budget)
    text = orjson.dumps(plain).decode()
    budget.build(len(text))
    budget.take(len(text) // 10)
    return text


def parse_json(budget: Budget, text: Any) -> Any:
    """Return the value of a text in JSON."""
    if not isinstance(text, str) or len(text) > MAX_RESULT_BYTES:
        raise ExpressionError(f"parseJson() takes a text of at most {MAX_RESULT_BYTES} characters")
    budget.build(len(text))
    budget.take(len(text) // 10)
    try:
        return orjson.loads(text)
    except ValueError as error:
        raise ExpressionError(f"parseJson(): the text is no JSON: {error}") from None


def plain_json(value: Any, max_bytes: int, budget: Budget | None = None) -> Any:
    """Return a value as plain JSON, in which times and durations are texts.

    Raises:
        ExpressionError: JSON cannot represent the value, or the value is larger than `max_bytes`.
            This check stops at the limit, however large the value is.
        TooMuch: the value has more parts than `budget` has steps.
    """
    room = max_bytes

    def plain(value: Any) -> Any:
        nonlocal room
        if budget is not None:
            budget.take()
        found = value
        match value:
            case str():
                room -= len(value)
            case float() if not math.isfinite(value):
                raise ExpressionError(f"the value {value} is no JSON")
            case datetime():
                found = time_text(value)
            case timedelta():
                found = to_text(Budget(), value)
        room -= 2
        if room < 0:
            raise ExpressionError(f"the value is larger than {max_bytes} bytes")
        match value:
            case list():
                found = [plain(each) for each in value]
            case dict():
                for name in value:
                    if not isinstance(name, str):
                        raise ExpressionError(
                            f"a key of an object must be a text, not {kind_of(name)}: it is no JSON"
                        )
                room -= sum(map(len, value))
                found = {name: plain(each) for name, each in value.items()}
        return found

    found = plain(value)
    try:
        size_bytes = len(orjson.dumps(found))
    except TypeError as error:
        if "Recursion limit" in str(error):
            raise ExpressionError("the data is nested too deep") from None
        # The value contains an integer of more than 64 bits, or a text that is no valid Unicode.
        raise ExpressionError(f"the value is no JSON: {error}") from None
    if size_bytes > max_bytes:
        raise ExpressionError(f"the value is larger than {max_bytes} bytes")
    return found
