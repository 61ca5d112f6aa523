"""The functions and operators of CEL on JSON values, times and durations. Pure.

A value is None, a boolean, a number, a text, a list, an object (dict), a time (datetime) or a
duration (timedelta). The functions raise `ExpressionError` where CEL gives an error. What takes
time or memory is counted by a `Budget` first.
"""

from __future__ import annotations

import math
import operator
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any, Final
from zoneinfo import ZoneInfo

import orjson

from penstock.expressions.condition import is_found
from penstock.expressions.errors import ExpressionError, MissingField
from penstock.expressions.patterns import size_of

MAX_STEPS: Final = 200_000  # a step takes a microsecond or two
MAX_BUILT: Final = 4 * 1024 * 1024  # characters of all texts that one evaluation makes
MAX_RESULT_BYTES: Final = 512 * 1024
# How many characters or elements are copied or compared in the time of a step.
_CHARACTERS, _ELEMENTS, _PATTERN = 2000, 50, 100

_LEAST, _MOST = -(2**63), 2**63 - 1
_INTEGER = re.compile(r"[+-]?[0-9]{1,19}")
_NUMBER = re.compile(r"[+-]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]+)?")
_TIME = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d{1,9})?(Z|[+-]\d\d:\d\d)")
_DURATION_PART = re.compile(r"([0-9]+(?:\.[0-9]*)?|\.[0-9]+)(ns|us|ms|h|m|s)")
_DURATION = re.compile(rf"[+-]?(?:0|(?:{_DURATION_PART.pattern})+)")
_SECONDS = {"h": 3600.0, "m": 60.0, "s": 1.0, "ms": 1e-3, "us": 1e-6, "ns": 1e-9}


class TooMuch(Exception):
    """An evaluation would take too much time or memory. Unlike other errors, `||` keeps it."""


@dataclass(slots=True)
class Budget:
    """What an evaluation may still take."""

    steps: int = MAX_STEPS
    characters: int = MAX_BUILT

    def take(self, steps: int = 1) -> None:
        """Count steps.

        Raises:
            TooMuch: there are no more steps.
        """
        self.steps -= steps
        if self.steps < 0:
            raise TooMuch(f"it takes more than {MAX_STEPS} steps")

    def build(self, characters: int) -> None:
        """Count the characters of a new text.

        Raises:
            TooMuch: there are no more characters.
        """
        self.characters -= characters
        if self.characters < 0:
            raise TooMuch(f"it makes texts of more than {MAX_BUILT} characters")
        self.take(1 + characters // _CHARACTERS)


Function = Callable[..., Any]  # takes the budget and the arguments


_KINDS: Final[Mapping[type, str]] = {
    type(None): "null",
    bool: "a boolean",
    int: "an integer",
    float: "a double",
    str: "a text",
    list: "a list",
    dict: "an object",
    datetime: "a time",
    timedelta: "a duration",
}


def kind_of(value: Any) -> str:
    """Return the name of a value's type for people."""
    return _KINDS.get(type(value), "an unknown value")


def _no_overload(name: str, *values: Any) -> ExpressionError:
    kinds = " and ".join(map(kind_of, values))
    hint = ""
    if {int, float} == set(map(type, values)):
        hint = "; convert the integer with double()"
    return ExpressionError(f"{name} does not take {kinds}{hint}")


def is_number(value: Any) -> bool:
    """Return whether the value is an integer or a double."""
    return isinstance(value, int | float) and not isinstance(value, bool)


def _checked(value: Any) -> Any:
    """Return a number or a time if CEL could represent it."""
    if isinstance(value, int) and not _LEAST <= value <= _MOST:
        raise ExpressionError("integer overflow")
    return value


def select(budget: Budget, value: Any, field: Any) -> Any:
    """Return a field of an object, or an element of a list."""
    match value, field:
        case dict(), str():
            if field not in value:
                raise MissingField(f"there is no field {field[:100]!r}")
            return value[field]
        case list(), int() | float() if is_number(field) and field == math.floor(field):
            if not 0 <= field < len(value):
                raise MissingField(f"there is no element {int(field)} in a list of {len(value)}")
            return value[int(field)]
    raise ExpressionError(f"{kind_of(value)} has no field {str(field)[:100]!r}")


def add(budget: Budget, one: Any, other: Any) -> Any:
    """Return the sum of numbers, times and durations, or the concatenation of texts and lists."""
    match one, other:
        case str(), str():
            budget.build(len(one) + len(other))
            return one + other
        case list(), list():
            budget.take(1 + (len(one) + len(other)) // _ELEMENTS)
            return one + other
        case (datetime() | timedelta(), timedelta()) | (timedelta(), datetime()):
            return _time(operator.add, one, other)
    return _arithmetic("+", operator.add, one, other)


def subtract(budget: Budget, one: Any, other: Any) -> Any:
    """Return the difference of numbers, times and durations."""
    match one, other:
        case (datetime(), datetime() | timedelta()) | (timedelta(), timedelta()):
            return _time(operator.sub, one, other)
    return _arithmetic("-", operator.sub, one, other)


def _time(act: Callable[[Any, Any], Any], one: Any, other: Any) -> Any:
    try:
        return act(one, other)
    except OverflowError:
        raise ExpressionError("the time is out of range") from None


def _arithmetic(name: str, act: Callable[[Any, Any], Any], one: Any, other: Any) -> Any:
    if type(one) is not type(other) or not is_number(one):
        raise _no_overload(name, one, other)
    try:
        return _checked(act(one, other))
    except OverflowError:
        raise ExpressionError("number overflow") from None


def multiply(budget: Budget, one: Any, other: Any) -> Any:
    """Return the product of two numbers of one type."""
    return _arithmetic("*", operator.mul, one, other)


def divide(budget: Budget, one: Any, other: Any) -> Any:
    """Return the quotient; that of integers is rounded towards zero."""

    def quotient(one: Any, other: Any) -> Any:
        if isinstance(one, float):
            if other:
                return one / other
            sign = math.copysign(1, one) * math.copysign(1, other)
            return math.nan if not one or math.isnan(one) else math.inf * sign
        if not other:
            raise ExpressionError("divide by zero")
        return _towards_zero(one, other)

    return _arithmetic("/", quotient, one, other)


def modulo(budget: Budget, one: Any, other: Any) -> Any:
    """Return the remainder of a division of integers, with the sign of the dividend."""

    def remainder(one: int, other: int) -> int:
        if not other:
            raise ExpressionError("modulus by zero")
        return one - other * _towards_zero(one, other)

    if isinstance(one, float):
        raise _no_overload("%", one, other)
    return _arithmetic("%", remainder, one, other)


def _towards_zero(one: int, other: int) -> int:
    quotient = abs(one) // abs(other)
    return quotient if (one < 0) == (other < 0) else -quotient


def negate(budget: Budget, value: Any) -> Any:
    """Return the negative number."""
    if not is_number(value):
        raise _no_overload("-", value)
    return _checked(-value)


def invert(budget: Budget, value: Any) -> bool:
    """Return the other boolean."""
    if not isinstance(value, bool):
        raise _no_overload("!", value)
    return not value


def equal(budget: Budget, one: Any, other: Any) -> bool:
    """Return whether two values are equal. Values of different types are not, except numbers."""
    budget.take()
    match one, other:
        case (bool(), _) | (_, bool()):
            return one is other
        case str(), str():
            budget.take(min(len(one), len(other)) // _CHARACTERS)
            return one == other
        case list(), list():
            return len(one) == len(other) and all(
                equal(budget, each, one_of_other)
                for each, one_of_other in zip(one, other, strict=True)
            )
        case dict(), dict():
            return len(one) == len(other) and all(
                name in other and equal(budget, each, other[name]) for name, each in one.items()
            )
    return bool(one == other)


def not_equal(budget: Budget, one: Any, other: Any) -> bool:
    """Return whether two values are not equal."""
    return not equal(budget, one, other)


def _ordering(name: str, act: Callable[[Any, Any], bool]) -> Function:
    def compare(budget: Budget, one: Any, other: Any) -> bool:
        are_numbers = is_number(one) and is_number(other)
        are_alike = type(one) is type(other) and isinstance(one, bool | str | datetime | timedelta)
        if not are_numbers and not are_alike:
            raise _no_overload(name, one, other)
        if isinstance(one, str):
            budget.take(min(len(one), len(other)) // _CHARACTERS)
        return act(one, other)

    return compare


def contained(budget: Budget, value: Any, container: Any) -> bool:
    """Return whether a list has the element, or an object has the field."""
    match container:
        case dict() if isinstance(value, str | bool | int | float):
            return isinstance(value, str) and value in container
        case list():
            return any(equal(budget, value, each) for each in container)
    raise _no_overload("in", value, container)


def size(budget: Budget, value: Any) -> int:
    """Return the number of characters, elements or fields."""
    if not isinstance(value, str | list | dict):
        raise _no_overload("size", value)
    return len(value)


def _text_test(name: str, act: Callable[[str, str], bool]) -> Function:
    def test(budget: Budget, text: Any, part: Any) -> bool:
        if not isinstance(text, str) or not isinstance(part, str):
            raise _no_overload(name, text, part)
        budget.take((len(text) + len(part)) // _CHARACTERS)
        return act(text, part)

    return test


def matches(budget: Budget, text: Any, pattern: Any) -> bool:
    """Return whether the text has a part that a pattern of RE2 matches."""
    if not isinstance(text, str) or not isinstance(pattern, str):
        raise _no_overload("matches", text, pattern)
    budget.take(len(pattern) + (1 + len(text)) * size_of(pattern) // _PATTERN)
    found = is_found(pattern, text)
    if found is None:
        raise ExpressionError("matches: the pattern is no regular expression of RE2, or too long")
    return found


def to_text(budget: Budget, value: Any) -> str:
    """Return a text that shows a simple value."""
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


def _double_text(value: float) -> str:
    if math.isfinite(value):
        return repr(value).removesuffix(".0")
    return "nan" if math.isnan(value) else "inf" if value > 0 else "-inf"


def time_text(value: datetime) -> str:
    """Return a time as RFC 3339, in UTC."""
    text = value.astimezone(UTC).replace(tzinfo=None).isoformat()
    return (text.rstrip("0").removesuffix(".") if "." in text else text) + "Z"


def to_integer(budget: Budget, value: Any) -> int:
    """Return the integer of a number, a text or a time (seconds since 1970)."""
    match value:
        case int():  # also true and false
            return int(value)
        case float() if math.isfinite(value) and abs(value) < _MOST:
            return int(value)
        case str() if _INTEGER.fullmatch(value):
            return int(_checked(int(value)))
        case datetime():
            return math.floor(value.timestamp())
    raise ExpressionError(f"int() cannot convert {_given(value)}")


def to_double(budget: Budget, value: Any) -> float:
    """Return the double of a number or a text."""
    match value:
        case int() | float() if is_number(value):
            return float(value)
        case str() if len(value) <= 64 and _NUMBER.fullmatch(value):
            return float(value)
    raise ExpressionError(f"double() cannot convert {_given(value)}")


def to_boolean(budget: Budget, value: Any) -> bool:
    """Return the boolean of a text such as `true`."""
    match value:
        case bool():
            return value
        case "true" | "True" | "TRUE" | "t" | "1":
            return True
        case "false" | "False" | "FALSE" | "f" | "0":
            return False
    raise ExpressionError(f"bool() cannot convert {_given(value)}")


def to_time(budget: Budget, value: Any) -> datetime:
    """Return the time of a text in RFC 3339, or of seconds since 1970."""
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
    raise ExpressionError(f"timestamp() cannot convert {_given(value)}")


def to_duration(budget: Budget, value: Any) -> timedelta:
    """Return the duration of a text such as `1h30m`."""
    try:
        match value:
            case timedelta():
                return value
            case str() if len(value) <= 64 and _DURATION.fullmatch(value):
                parts = _DURATION_PART.findall(value)
                seconds = sum(float(number) * _SECONDS[unit] for number, unit in parts)
                return timedelta(seconds=-seconds if value[0] == "-" else seconds)
    except OverflowError:
        pass
    raise ExpressionError(f"duration() cannot convert {_given(value)}")


def _given(value: Any) -> str:
    return f'"{value[:60]}"' if isinstance(value, str) else kind_of(value)


def _getter(name: str, part: Callable[[datetime], int]) -> Function:
    def get(budget: Budget, value: Any, zone: Any = "UTC") -> int:
        budget.take(50)
        if isinstance(value, timedelta) and name in _OF_DURATION and zone == "UTC":
            return _OF_DURATION[name](value)
        if not isinstance(value, datetime):
            raise _no_overload(name, value)
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


def json_text(budget: Budget, value: Any) -> str:
    """Return the value as JSON."""
    plain = plain_json(value, MAX_RESULT_BYTES)
    text = orjson.dumps(plain).decode()
    budget.build(len(text))
    budget.take(len(text) // 10)
    return text


def join(budget: Budget, values: Any, between: Any = "") -> str:
    """Return a text of all texts of a list, with a text between them."""
    if not isinstance(values, list) or not isinstance(between, str):
        raise _no_overload("join", values, between)
    budget.take(len(values))
    for each in values:
        if not isinstance(each, str):
            raise ExpressionError(f"join takes a list of texts, which has {kind_of(each)}")
    budget.build(sum(map(len, values)) + len(between) * len(values))
    return between.join(values)


def plain_json(value: Any, max_bytes: int) -> Any:
    """Return a value as plain JSON: times and durations become texts.

    Raises:
        ExpressionError: the value is larger than `max_bytes`, or JSON does not have it. The time
            does not depend on how much larger it is.
    """
    left = max_bytes

    def plain(value: Any) -> Any:
        nonlocal left
        found = value
        match value:
            case str():
                left -= len(value)
            case float() if not math.isfinite(value):
                raise ExpressionError(f"the value {value} is no JSON")
            case datetime():
                found = time_text(value)
            case timedelta():
                found = to_text(Budget(), value)
        left -= 2
        if left < 0:
            raise ExpressionError(f"the value is larger than {max_bytes} bytes")
        match value:
            case list():
                found = [plain(each) for each in value]
            case dict():
                left -= sum(map(len, value))
                found = {name: plain(each) for name, each in value.items()}
        return found

    found = plain(value)
    try:
        size_bytes = len(orjson.dumps(found))
    except TypeError as error:
        # an integer of more than 64 bits, or a text that is no valid Unicode
        raise ExpressionError(f"the value is no JSON: {error}") from None
    if size_bytes > max_bytes:
        raise ExpressionError(f"the value is larger than {max_bytes} bytes")
    return found


# Each function's implementation, by its name in the syntax tree. `&&`, `||` and `?:` are not here,
# because they do not evaluate all arguments.
FUNCTIONS: Final[Mapping[str, Function]] = {
    "_+_": add,
    "_-_": subtract,
    "_*_": multiply,
    "_/_": divide,
    "_%_": modulo,
    "-_": negate,
    "!_": invert,
    "_==_": equal,
    "_!=_": not_equal,
    "_<_": _ordering("<", operator.lt),
    "_<=_": _ordering("<=", operator.le),
    "_>_": _ordering(">", operator.gt),
    "_>=_": _ordering(">=", operator.ge),
    "@in": contained,
    "_[_]": select,
    "size": size,
    "contains": _text_test("contains", lambda text, part: part in text),
    "startsWith": _text_test("startsWith", str.startswith),
    "endsWith": _text_test("endsWith", str.endswith),
    "matches": matches,
    "string": to_text,
    "int": to_integer,
    "double": to_double,
    "bool": to_boolean,
    "timestamp": to_time,
    "duration": to_duration,
    "dyn": lambda budget, value: value,
    "json": json_text,
    "join": join,
    "getFullYear": _getter("getFullYear", lambda time: time.year),
    "getMonth": _getter("getMonth", lambda time: time.month - 1),
    "getDate": _getter("getDate", lambda time: time.day),
    "getDayOfMonth": _getter("getDayOfMonth", lambda time: time.day - 1),
    "getDayOfWeek": _getter("getDayOfWeek", lambda time: time.isoweekday() % 7),
    "getDayOfYear": _getter("getDayOfYear", lambda time: time.timetuple().tm_yday - 1),
    "getHours": _getter("getHours", lambda time: time.hour),
    "getMinutes": _getter("getMinutes", lambda time: time.minute),
    "getSeconds": _getter("getSeconds", lambda time: time.second),
    "getMilliseconds": _getter("getMilliseconds", lambda time: time.microsecond // 1000),
}
