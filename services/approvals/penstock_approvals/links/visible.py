"""Write foreign text as HTML in which nothing is hidden and nothing is markup. Pure."""

from __future__ import annotations

import html
import re
import unicodedata
from typing import Final

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
_PLAIN: Final = re.compile(r"[ -~\n]*")


def visible(text: str, *, lines: bool = True) -> str:
    """Return the text as HTML. A mark with the character's code replaces each invisible character.

    A mark also replaces each space character other than U+0020, because these characters look
    alike. With `lines`, line breaks are kept; otherwise a mark replaces each line break.
    """
    if _PLAIN.fullmatch(text) and (lines or "\n" not in text):
        return html.escape(text)
    return "".join(_shown(character, lines=lines) for character in text)


def _shown(character: str, *, lines: bool) -> str:
    if character == " " or (character == "\n" and lines):
        return character
    category = unicodedata.category(character)
    if category in _UNSEEN or category == "Zs" or _IGNORABLE.match(character):
        return f"<mark>\\u{{{ord(character):x}}}</mark>"
    return html.escape(character)
