"""Tool results of Agno as JSON values.

Agno streams `str(value)` of a tool's result (agno 2.3 and 3.1), so an object comes as the text of
a Python literal.
"""

from __future__ import annotations

import ast
from typing import Final

import orjson

from penstock.dialects.base import Json
from penstock.dialects.json import loads

# Parsing a literal takes about 1 µs and 100 bytes for each character. A longer one stays a text.
MAX_LITERAL_CHARS: Final = 128 * 1024

_LITERAL_WORDS: Final = frozenset({"True", "False", "None"})
_LITERAL_STARTS: Final = ("{", "[", "(")


def tool_value(result: Json) -> Json:
    """The value of a tool's result: parsed as JSON, else as a Python literal, else the text.

    A text that begins with a quote is no literal, since Agno sends strings without quotes.
    """
    if not isinstance(result, str):
        return result
    try:
        return loads(result.encode())
    except ValueError:  # no JSON, or a lone surrogate, which has no UTF-8
        pass
    literal = result.strip()
    if len(literal) > MAX_LITERAL_CHARS or not (
        literal.startswith(_LITERAL_STARTS) or literal in _LITERAL_WORDS
    ):
        return result
    try:
        value = ast.literal_eval(literal)
        # JSON turns tuples into arrays and keys into strings; orjson refuses sets, bytes and
        # integers of more than 64 bits, and the result then stays a text
        return orjson.loads(orjson.dumps(value, option=orjson.OPT_NON_STR_KEYS))
    except (ValueError, SyntaxError, TypeError, MemoryError, RecursionError):
        return result
