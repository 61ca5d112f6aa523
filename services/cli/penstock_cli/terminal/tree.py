"""Write a JSON value completely, as lines for a terminal with sorted keys. Pure."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any, Final

from penstock.visible import visible

MAX_DEPTH: Final = 30  # values that are nested more deeply are written as JSON
MAX_CHARS: Final = 100_000


class TooLarge(ValueError):
    """The error for a value that is too large to be shown completely. A person must then not decide
    in a terminal."""


def lines(value: Any) -> list[str]:
    """Return the value as lines.

    Raises:
        TooLarge: the lines would have more than `MAX_CHARS` characters.
    """
    made: list[str] = []
    size = 0
    for line in _lines(value, 0):
        made.append(line)
        size += len(line)
        if size > MAX_CHARS:
            raise TooLarge
    return made


def _lines(value: Any, depth: int) -> Iterator[str]:
    named = sorted(value.items()) if isinstance(value, dict) else enumerate(value)
    for name, each in named:
        key = visible(name) if isinstance(name, str) else f"[{name}]"
        indent = "  " * depth
        if isinstance(each, dict | list) and each and depth < MAX_DEPTH:
            yield f"{indent}{key}:"
            yield from _lines(each, depth + 1)
        else:
            yield f"{indent}{key}: {_scalar(each)}"


def _scalar(value: Any) -> str:
    if isinstance(value, str):
        return f'"{visible(value)}"'
    try:
        return visible(json.dumps(value, ensure_ascii=False, sort_keys=True))
    except RecursionError:
        raise TooLarge from None
