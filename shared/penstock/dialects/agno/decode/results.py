"""Converts tool results of Agno into JSON values.

Agno 2.3 and 3.1 stream `str(value)` of a tool's result. So an object arrives as the text of a
Python literal.
"""

from __future__ import annotations

import ast
from typing import Final

import orjson

from penstock.dialects.base import Json
from penstock.dialects.json import loads

# The length of the longest literal that is parsed, in characters. Parsing takes about 1 µs and 100
# bytes for each character. A longer literal stays text.
MAX_LITERAL_CHARS: Final = 128 * 1024

_LITERAL_WORDS: Final = frozenset({"True", "False", "None"})
_LITERAL_STARTS: Final = ("{", "[", "(")


def tool_value(result: Json) -> Json:
    """Return a tool's result, parsed as JSON or as a Python literal.

    A text that is neither is returned unchanged.

    A text that begins with a quote is not parsed as a literal, because Agno sends strings without
    quotes.
    """
    if not isinstance(result, str):
        return result
    try:
        return loads(result.encode())
    except ValueError:  # the text is not JSON, or has a lone surrogate, which UTF-8 cannot encode
        pass
    literal = result.strip()
    if len(literal) > MAX_LITERAL_CHARS or not (
        literal.startswith(_LITERAL_STARTS) or literal in _LITERAL_WORDS
    ):
        return result
    try:
        value = ast.literal_eval(literal)
        # This turns tuples into arrays and keys into strings. For sets, bytes and integers of more
        # than 64 bits, orjson raises an error, and the function returns the text.
        return orjson.loads(orjson.dumps(value, option=orjson.OPT_NON_STR_KEYS))
    except (ValueError, SyntaxError, TypeError, MemoryError, RecursionError):
        return result
