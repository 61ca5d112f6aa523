"""Shows text of strangers so that nothing in it is hidden. Pure.

The page of a one-time link and the terminal show what a person decides about. A character that
cannot be seen, or that changes the reading order, could hide what is asked.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Callable
from typing import Final

# The categories of characters that are invisible or change the order of visible characters:
# control, format, unassigned and private characters, surrogates, and separators of lines and
# paragraphs. Spaces other than U+0020 (Zs) are here because they look alike.
_UNSEEN: Final = frozenset({"Cc", "Cf", "Cn", "Co", "Cs", "Zl", "Zp", "Zs"})
# Invisible characters outside of these categories: Unicode's Default_Ignorable_Code_Point, and
# BRAILLE PATTERN BLANK.
_IGNORABLE: Final = frozenset(
    "\u034f\u115f\u1160\u17b4\u17b5\u2800\u3164\uffa0"
    + "".join(map(chr, (*range(0x180B, 0x180E), 0x180F, *range(0xFE00, 0xFE10))))
    + "".join(map(chr, range(0xE0100, 0xE01F0)))
)
_PLAIN: Final = re.compile(r"[ -~]*")


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
    return unicodedata.category(character) in _UNSEEN or character in _IGNORABLE
