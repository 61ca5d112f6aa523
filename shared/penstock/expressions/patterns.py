"""Estimates the size of a regular expression after its counted repetitions were written out. Pure.

The time that RE2 takes is proportional to the size of the text and to this size. For example, the
expression `(a|aa){1,500}(a|aa){1,500}` takes 20 µs for each byte of the text.
"""

from __future__ import annotations

import re
from typing import Final

from penstock.expressions.errors import ExpressionError

_PROPERTY_SIZE: Final = 50  # the size of a class of characters such as \pL, which has many ranges
_COUNT: Final = re.compile(r"\{([0-9]{1,6})(?:(,)([0-9]{0,6}))?\}")
_PROPERTY: Final = re.compile(r"\\[pP](?:\{\^?[A-Za-z_]+\}|.)")
_CLASS: Final = re.compile(r"\[\^?\]?(?:\\.|\[:\^?[a-z]+:\]|[^\]\\])*\]?", re.DOTALL)
# The escapes that a literal may have. Other escapes are refused, because an escape such as \x7b
# could hide a brace.
_PLAIN_ESCAPES: Final = {"\\": "\\", '"': '"', "'": "'", "n": "\n", "t": "\t"}
_ESCAPE: Final = re.compile(r"\\(.)", re.DOTALL)


def pattern_of(literal: str) -> str:
    """Return the regular expression that a text literal of CEL, such as `r"^a"`, contains.

    Raises:
        ExpressionError: the literal has an escape such as \\x7b.
    """
    prefix, quote = "", literal[:1]
    while quote not in ("'", '"'):
        prefix, literal = prefix + quote.lower(), literal[1:]
        quote = literal[:1]
    width = 3 if literal.startswith(quote * 3) and len(literal) >= 6 else 1
    text = literal[width:-width]
    return text if "r" in prefix else _ESCAPE.sub(_unescaped, text)


def size_of(pattern: str) -> int:
    """Return the approximate number of RE2's instructions for the pattern."""
    # `groups` has the sizes of the open groups, and `last` the size of the last part
    groups, last, at = [0], 0, 0
    while at < len(pattern):
        sign = pattern[at]
        if count := _COUNT.match(pattern, at):
            most = int(count[3] or count[1]) + (count[2] is not None and not count[3])
            groups[-1] += last * (max(most, 1) - 1)
            last, at = last * max(most, 1), count.end()
            continue
        if sign == "(":
            groups.append(0)
            last, at = 0, at + 1
            continue
        if sign == ")" and len(groups) > 1:
            last, at = groups.pop() + 2, at + 1
        elif sign == "[":
            found = _CLASS.match(pattern, at)
            text = found[0] if found is not None else sign
            last, at = len(text) + _PROPERTY_SIZE * text.lower().count(r"\p"), at + len(text)
        elif sign == "\\":
            property_ = _PROPERTY.match(pattern, at)
            last = _PROPERTY_SIZE if property_ is not None else 1
            at = property_.end() if property_ is not None else at + 2
        else:
            last, at = (last if sign in "*+?" else 1), at + 1
            groups[-1] += 1 if sign in "*+?" else 0
            if sign in "*+?":
                continue
        groups[-1] += last
    return sum(groups)


def _unescaped(escape: re.Match[str]) -> str:
    if escape[1] not in _PLAIN_ESCAPES:
        raise ExpressionError(
            f"a pattern of matches may not have {escape[0]}; write it as a raw text, "
            r"as in matches(r'^\d+$')"
        )
    return _PLAIN_ESCAPES[escape[1]]
