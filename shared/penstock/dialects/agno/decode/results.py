"""Converts tool results of Agno into JSON values.

Agno streams `str(value)` of a tool's result (agno 2.3 and 3.1), so an object arrives as the text of
a Python literal.
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
    """Returns a tool's result parsed as JSON or as a Python literal; the text if neither fits.

    A text that begins with a quote is not parsed as a literal, because Agno sends strings without
    quotes.
    """
    if not isinstance(result, str):
        return result
    try:
        return loads(result.encode())
    except ValueError:  # not JSON, or a lone surrogate, which UTF-8 cannot encode
        pass
    literal = result.strip()
    if len(literal) > MAX_LITERAL_CHARS or not (
        literal.startswith(_LITERAL_STARTS) or literal in _LITERAL_WORDS
    ):
        return result
    try:
        value = ast.literal_eval(literal)
        # JSON turns tuples into arrays and keys into strings. orjson refuses sets, bytes and
        # integers of more than 64 bits; the function then returns the text.
        return orjson.loads(orjson.dumps(value, option=orjson.OPT_NON_STR_KEYS))
    except (ValueError, SyntaxError, TypeError, MemoryError, RecursionError):
        return result
