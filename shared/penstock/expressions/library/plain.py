"""Returns values as JSON. Pure."""

from __future__ import annotations

import math
from datetime import datetime, timedelta
from typing import Any, Final

import orjson

from penstock.expressions.errors import ExpressionError
from penstock.expressions.library.budget import Budget
from penstock.expressions.library.conversions import time_text, to_text

MAX_RESULT_BYTES: Final = 512 * 1024


def json_text(budget: Budget, value: Any) -> str:
    plain = plain_json(value, MAX_RESULT_BYTES, budget)
    text = orjson.dumps(plain).decode()
    budget.build(len(text))
    budget.take(len(text) // 10)
    return text


def plain_json(value: Any, max_bytes: int, budget: Budget | None = None) -> Any:
    """Return a value as plain JSON, in which times and durations are texts.

    Raises:
        ExpressionError: JSON cannot represent the value, or the value is larger than `max_bytes`.
            This check stops at the limit, however large the value is.
        TooMuch: the value has more parts than `budget` has steps.
    """
    left = max_bytes

    def plain(value: Any) -> Any:
        nonlocal left
        if budget is not None:
            budget.take()
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
        # The value contains an integer of more than 64 bits, or a text that is no valid Unicode.
        raise ExpressionError(f"the value is no JSON: {error}") from None
    if size_bytes > max_bytes:
        raise ExpressionError(f"the value is larger than {max_bytes} bytes")
    return found
