"""Write text and JSON values of strangers as HTML in which nothing is hidden and nothing is markup.

Pure.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from html import escape
from typing import Any, Final

from penstock import visible as characters

LONG: Final = 600  # A text with more characters is folded, but the page has the whole text.
MAX_DEPTH: Final = 30  # Values that are nested more deeply are written as JSON.
MAX_CHARS: Final = 1_000_000


class TooLarge(ValueError):
    """The error for a value that is too large to be shown completely.

    A person must then not decide on the page.
    """


def visible(text: str, *, lines: bool = True) -> str:
    """Return the text as HTML. A mark with the character's code replaces each character that cannot
    be seen.

    With `lines`, line breaks are kept; otherwise a mark replaces each line break.
    """
    parts = text.split("\n") if lines else [text]
    return "\n".join(characters.visible(part, escape, _mark) for part in parts)


def _mark(code: str) -> str:
    return f"<mark>{code}</mark>"


def tree(value: Any) -> str:
    """Return the value as HTML.

    Raises:
        TooLarge: the HTML would have more than `MAX_CHARS` characters.
    """
    pieces: list[str] = []
    size = 0
    for piece in _pieces(value, 0):
        pieces.append(piece)
        size += len(piece)
        if size > MAX_CHARS:
            raise TooLarge
    return "".join(pieces)


def _pieces(value: Any, depth: int) -> Iterator[str]:
    if isinstance(value, dict | list) and value:
        if depth == MAX_DEPTH:
            yield _text(_json(value))
            return
        named = sorted(value.items()) if isinstance(value, dict) else enumerate(value)
        yield "<ul>"
        for name, each in named:
            key = visible(name, lines=False) if isinstance(name, str) else f"[{name}]"
            yield f'<li><bdi class="key">{key}</bdi> '
            yield from _pieces(each, depth + 1)
            yield "</li>"
        yield "</ul>"
    elif isinstance(value, str):
        yield _text(f'"{value}"', "text")
    else:
        yield _text(_json(value))


def _text(text: str, kind: str = "value") -> str:
    shown = f'<bdi class="{kind}">{visible(text)}</bdi>'
    if len(text) <= LONG:
        return shown
    return f"<details><summary>{len(text)} characters</summary>{shown}</details>"


def _json(value: Any) -> str:
    """Return the value as JSON. Raises TooLarge if the value is nested too deeply."""
    try:
        return json.dumps(value, ensure_ascii=False, sort_keys=True)
    except RecursionError:
        raise TooLarge from None
