"""Searches texts with regular expressions of RE2, and estimates the time of a search.

The time that RE2 takes is proportional to the size of the text and to the size of the expression
after its counted repetitions were written out. For example, the expression
`(a|aa){1,500}(a|aa){1,500}` takes 20 µs for each byte of the text.
"""

from __future__ import annotations

import re
from typing import Final

MAX_PATTERN_CHARACTERS: Final = 2000
# The greatest product of both sizes with which a search takes about one second at most. A character
# has up to 4 bytes.
_MAX_PRODUCT: Final = 150 * 1024 * 1024 // 4
_PROPERTY_SIZE: Final = 50  # the size of a class of characters such as \pL, which has many ranges
_COUNT: Final = re.compile(r"\{([0-9]{1,6})(?:(,)([0-9]{0,6}))?\}")
_PROPERTY: Final = re.compile(r"\\[pP](?:\{\^?[A-Za-z_]+\}|.)")
_CLASS: Final = re.compile(r"\[\^?\]?(?:\\.|\[:\^?[a-z]+:\]|[^\]\\])*\]?", re.DOTALL)


def is_found(pattern: str, text: str) -> bool | None:
    """Return whether a text has a part that a pattern of RE2 matches.

    The result is None if RE2 does not know the pattern, or if the search would take long. RE2 takes
    time proportional to the text; Python's own regular expressions can take exponential time.
    """
    if len(pattern) > MAX_PATTERN_CHARACTERS or len(text) * size_of(pattern) > _MAX_PRODUCT:
        return None
    from penstock.expressions import cel_environment  # noqa: PLC0415 - see there

    try:
        found = cel_environment.found(pattern, text)
    except (RuntimeError, ValueError):
        return None
    return found if isinstance(found, bool) else None


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
