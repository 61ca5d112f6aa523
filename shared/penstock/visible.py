"""Shows texts and values of strangers so that nothing in them is hidden. Pure.

The page of a one-time link, the console and the terminal show what a person decides about. A
character that cannot be seen, or that changes the reading order, could hide what is asked.
"""

from __future__ import annotations

import json
import re
import unicodedata
from collections.abc import Callable, Iterator
from typing import Any, Final, NamedTuple

# The categories of characters that are invisible or change the order of visible characters:
# control, format, unassigned and private characters, surrogates, and separators of lines and
# paragraphs. Spaces other than U+0020 (Zs) are here because they look alike.
UNSEEN: Final = frozenset({"Cc", "Cf", "Cn", "Co", "Cs", "Zl", "Zp", "Zs"})
# Invisible characters outside of these categories: Unicode's Default_Ignorable_Code_Point, and
# BRAILLE PATTERN BLANK.
IGNORABLE: Final = frozenset(
    "\u034f\u115f\u1160\u17b4\u17b5\u2800\u3164\uffa0"
    + "".join(map(chr, (*range(0x180B, 0x180E), 0x180F, *range(0xFE00, 0xFE10))))
    + "".join(map(chr, range(0xE0100, 0xE01F0)))
)
_PLAIN: Final = re.compile(r"[ -~]*")
MAX_DEPTH: Final = 30  # Values that are nested more deeply are written as JSON.


class TooLarge(ValueError):
    """The error for a value that is too large to be shown completely. A person must then not decide
    about it."""


class Member(NamedTuple):
    """A member of a JSON value. Its `text` is None if its own members follow."""

    depth: int
    name: str
    text: str | None


def visible(text: str, show: Callable[[str], str] = str, mark: Callable[[str], str] = str) -> str:
    """Return the text, in which the code of each character that cannot be seen replaces it.

    Args:
        text: the text, which may contain any character.
        show: returns what is written for the other characters, one or several at a time.
        mark: returns what is written for a code, such as `\\u{202e}`.
    """
    if _PLAIN.fullmatch(text):
        return show(text)
    return "".join(
        mark(f"\\u{{{ord(character):x}}}") if _is_unseen(character) else show(character)
        for character in text
    )


def _is_unseen(character: str) -> bool:
    if " " <= character <= "~":
        return False
    return unicodedata.category(character) in UNSEEN or character in IGNORABLE


def members(value: Any, depth: int = 0) -> Iterator[Member]:
    """Yield the members of an object or a list, sorted by name, each before its own members. The
    names and texts may have characters that cannot be seen. Raises TooLarge."""
    named = sorted(value.items()) if isinstance(value, dict) else enumerate(value)
    for key, each in named:
        name = key if isinstance(key, str) else f"[{key}]"
        if isinstance(each, dict | list) and each and depth < MAX_DEPTH:
            yield Member(depth, name, None)
            yield from members(each, depth + 1)
        else:
            yield Member(depth, name, text_of(each))


def text_of(value: Any) -> str:
    """Return a value as JSON; a text as it is, in quotes. Raises TooLarge."""
    if isinstance(value, str):
        return f'"{value}"'
    try:
        return json.dumps(value, ensure_ascii=False, sort_keys=True)
    except RecursionError:
        raise TooLarge from None
