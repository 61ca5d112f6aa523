"""Refuses conditions that could take much time or memory, before they are compiled. Pure.

The CEL runtime cannot be interrupted, and its own limit counts iterations only. For example, the
runtime needs one second to apply `.map(a, [a, a])` 23 times to `["ab"]` and to compare the result
with itself, and each further `map` doubles the time. In the same way, each `.map(a, a + a)` doubles
the memory. Such conditions build large values from smaller values. So a condition may have no `+`,
no macro `map`, and no map or message literal, and a list literal may have only constants. An
allowed condition therefore never makes a value that is larger than the data.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

from penstock.expressions.errors import ExpressionError, Position

MAX_CHARACTERS = 2000
# The greatest size of the data in bytes, by how deeply the condition's macros are nested: without
# macros, one level, two levels, three levels. Each further level multiplies the time of an
# evaluation by up to the size of the data, so deeper nesting gets less data.
MAX_DATA_BYTES = (1024 * 1024, 1024 * 1024, 64 * 1024, 8 * 1024)
MAX_NESTED = len(MAX_DATA_BYTES) - 1

MACROS = frozenset({"all", "exists", "exists_one", "filter"})

_TOKEN = re.compile(
    r"""(?P<blank>\s+|//[^\n]*)
    |(?P<string>(?i:rb|br|r|b)?(?:'''.*?'''|\"{3}.*?\"{3}|'(?:\\.|[^'\\\n])*'|"(?:\\.|[^"\\\n])*"))
    |(?P<number>(?:0x[0-9a-fA-F]+|(?:\d+\.\d+|\.\d+|\d+)(?:[eE][+-]?\d+)?)u?)
    |(?P<name>[A-Za-z_][A-Za-z0-9_]*)
    |(?P<sign>.)""",
    re.VERBOSE | re.DOTALL,
)
_CONSTANT_NAMES = frozenset({"true", "false", "null"})


@dataclass(frozen=True, slots=True)
class _Token:
    kind: str
    text: str
    position: Position


def nested_macros(text: str) -> int:
    """Return how deeply macros are nested in a condition; 0 if the condition has no macros.

    Raises:
        ExpressionError: the condition is too long, or has a part that conditions may not have.
    """
    if len(text) > MAX_CHARACTERS:
        raise ExpressionError(
            f"the condition has {len(text)} characters; at most {MAX_CHARACTERS} are allowed"
        )
    deepest = 0
    opened: list[str] = []  # the brackets that are open: "macro", "list" or "other"
    before: _Token | None = None
    for token in _tokens(text):
        if opened and opened[-1] == "list" and token.text != "]":
            _check_element(token)
        if token.kind == "sign":
            _check_sign(token, before)
            if token.text in "([":
                opened.append(_bracket(token, before))
            elif token.text in ")]" and opened:
                opened.pop()
        elif token.text == "map" and token.kind == "name" and before and before.text == ".":
            raise ExpressionError(
                "the macro map is not allowed in a condition; use exists, all or filter",
                token.position,
            )
        deepest = max(deepest, opened.count("macro"))
        if deepest > MAX_NESTED:
            raise ExpressionError(f"macros may be nested at most {MAX_NESTED} deep", token.position)
        before = token
    return deepest


def _check_sign(token: _Token, before: _Token | None) -> None:
    if token.text == "+":
        raise ExpressionError(
            "+ is not allowed in a condition; compare the parts separately", token.position
        )
    if token.text == "{":
        raise ExpressionError("map and message literals are not allowed", token.position)


def _check_element(token: _Token) -> None:
    if token.kind in ("string", "number") or token.text in (",", "-"):
        return
    if token.kind == "name" and token.text in _CONSTANT_NAMES:
        return
    raise ExpressionError("a list may have only constants, as in ['a', 'b']", token.position)


def _bracket(token: _Token, before: _Token | None) -> str:
    if token.text == "(":
        is_macro = before is not None and before.kind == "name" and before.text in MACROS
        return "macro" if is_macro else "other"
    # A bracket after a value is an index; any other bracket begins a list.
    follows_value = before is not None and (
        (before.kind == "name" and before.text not in {"in", *_CONSTANT_NAMES})
        or before.kind == "string"
        or before.text in (")", "]")
    )
    return "other" if follows_value else "list"


def _tokens(text: str) -> Iterator[_Token]:
    line, start = 1, 0
    for match in _TOKEN.finditer(text):
        kind, token = match.lastgroup or "", match[0]
        if kind != "blank":
            yield _Token(kind, token, Position(line, match.start() - start + 1))
        if newlines := token.count("\n"):
            line += newlines
            start = match.start() + token.rindex("\n") + 1
