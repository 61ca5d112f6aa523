"""Write a JSON value completely, as lines for a terminal with sorted keys. Pure."""

from __future__ import annotations

import json
import re
import unicodedata
from collections.abc import Iterator
from typing import Any, Final

# The categories of characters that are invisible or change the order of visible characters:
# control, format, unassigned and private characters, surrogates, and separators of lines and
# paragraphs.
_UNSEEN: Final = frozenset({"Cc", "Cf", "Cn", "Co", "Cs", "Zl", "Zp"})
# Invisible characters outside of these categories: Unicode's Default_Ignorable_Code_Point, and
# BRAILLE PATTERN BLANK.
_IGNORABLE: Final = re.compile(
    "[\u034f\u115f\u1160\u17b4\u17b5\u180b-\u180d\u180f\u2800\u3164\ufe00-\ufe0f\uffa0"
    "\U000e0100-\U000e01ef]"
)
MAX_DEPTH: Final = 30  # values that are nested more deeply are written as JSON
MAX_CHARS: Final = 100_000


class TooLarge(ValueError):
    """The error for a value that is too large to be shown completely.

    A person must then not decide in a terminal.
    """


def visible(text: str) -> str:
    """Return the text on one line. A code such as `\\u{202e}` replaces each invisible character.

    A code also replaces each space character other than U+0020, because these characters look
    alike.
    """
    return "".join(map(_shown, text))


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


def _shown(character: str) -> str:
    if " " <= character <= "~":
        return character
    category = unicodedata.category(character)
    if category in _UNSEEN or category == "Zs" or _IGNORABLE.match(character):
        return f"\\u{{{ord(character):x}}}"
    return character
