"""Refuses conditions that could take much time or memory, before they are compiled. Pure.

The CEL runtime cannot be interrupted, and its own limit counts iterations only. For example, apply
`.map(a, [a, a])` 23 times to `["ab"]`, and compare the result with itself. The runtime needs one
second for this, and each further `map` doubles the time. In the same way, each `.map(a, a + a)`
doubles the memory. Such conditions build large values from smaller values. So a condition may have
no `+`, no macro `map`, and no map or message literal, and a list literal may have only constants.
An allowed condition therefore never makes a value that is larger than the data.

The time of an operation is proportional to the size of its operands, and a macro repeats its
operations. For example, `event.l.all(a, event.l == event.l)` takes two minutes on 1 MB of data. So
each condition gets a limit for the size of its data. Within this limit, an evaluation takes about
one second at most. If the body of a macro reads only the macro's own element, all evaluations of
the body together read the whole data at most once. If the body reads other data, this data is read
again for each element. So such reads lower the limit much more.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Final

from penstock.expressions.errors import ExpressionError, Position
from penstock.expressions.patterns import pattern_of, size_of

MAX_CHARACTERS = 2000
# The greatest size of the data in bytes: first for conditions without macros, then for conditions
# whose macros are nested one, two and three deep. Each further level can multiply the time by the
# size of the data.
MAX_DATA_BYTES = (1024 * 1024, 1024 * 1024, 64 * 1024, 8 * 1024)
MAX_NESTED = len(MAX_DATA_BYTES) - 1

MACROS = frozenset({"all", "exists", "exists_one", "filter"})

# Measured sizes of data, in bytes, with which an evaluation takes about one second. For a
# condition, each size is divided by a number that depends on the condition.

# The size of data for a condition that reads values. It is divided by the number of reads.
_READ_BYTES: Final = 100 * 1024 * 1024
# The size of data for a condition that searches with patterns. It is divided by the size of all
# patterns.
_PATTERN_BYTES: Final = 150 * 1024 * 1024
# The size of data for a condition that searches for texts from the data. It is divided by the
# square root of the number of such searches.
_SEARCH_BYTES: Final = 600 * 1024
# The size of data for a condition that repeats reads for each element. It is divided by the square
# root of the number of such reads.
_AGAIN_BYTES: Final = 16 * 1024

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


@dataclass(slots=True)
class _Weights:
    """Counts what a condition reads and searches.

    The counts determine how much time an evaluation may take.
    """

    nested: int = 0  # how deeply macros are nested
    reads: int = 0
    # the number of reads in the bodies of macros that read other data than the macro's element;
    # such reads are repeated for each element
    again: int = 0
    searches: int = 0  # The number of `contains` whose argument is no literal text.
    patterns: int = 0  # The sum of the sizes of all patterns.
    # The names of the elements in the macros that are open.
    names: list[str] = field(default_factory=list)

    def max_data_bytes(self) -> int:
        """Return the greatest size of the data, in bytes, with which an evaluation takes about 1 s
        at most."""
        again = self.again + (self.patterns + self.searches if self.again else 0)
        return min(
            MAX_DATA_BYTES[self.nested],
            _READ_BYTES // max(self.reads, 1),
            _PATTERN_BYTES // max(self.patterns, 1),
            int(_SEARCH_BYTES / math.sqrt(self.searches)) if self.searches else MAX_DATA_BYTES[0],
            int(_AGAIN_BYTES / math.sqrt(again)) if again else MAX_DATA_BYTES[0],
        )


def max_data_bytes(text: str) -> int:
    """Return the greatest size of the data, in bytes of JSON, for which the condition may be
    evaluated.

    Raises:
        ExpressionError: the condition is too long, or has a part that conditions may not have.
    """
    if len(text) > MAX_CHARACTERS:
        raise ExpressionError(
            f"the condition has {len(text)} characters; at most {MAX_CHARACTERS} are allowed"
        )
    weights = _Weights()
    opened: list[str] = []  # the brackets that are open: "macro", "list" or "other"
    tokens = list(_tokens(text))
    for at, token in enumerate(tokens):
        before = tokens[at - 1] if at else None
        if opened and opened[-1] == "list" and token.text != "]":
            _check_element(token)
        if token.kind == "sign":
            _check_sign(token, before)
            if token.text in "([":
                opened.append(_bracket(token, before))
                if opened[-1] == "macro":
                    weights.names.append(tokens[at + 1].text if at + 1 < len(tokens) else "")
            elif token.text in ")]" and opened and opened.pop() == "macro":
                weights.names.pop()
        elif token.kind == "name":
            _weigh(weights, tokens, at)
        weights.nested = max(weights.nested, opened.count("macro"))
        if weights.nested > MAX_NESTED:
            raise ExpressionError(f"macros may be nested at most {MAX_NESTED} deep", token.position)
    return weights.max_data_bytes()


def is_quick(pattern: str, text: str) -> bool:
    """Return whether a search for the pattern in the text takes about one second at most."""
    if len(pattern) > MAX_CHARACTERS:
        return False
    return len(text) * size_of(pattern) <= _PATTERN_BYTES // 4  # a character has up to 4 bytes


def _weigh(weights: _Weights, tokens: Sequence[_Token], at: int) -> None:
    """Count the reads and searches that the name at this place causes.

    The name is a variable, a function or a field.
    """
    name = tokens[at].text
    argument = _argument(tokens, at)
    if argument is None:
        if name in _CONSTANT_NAMES or name == "in" or not _is_variable(tokens, at):
            return
        weights.reads += 1
        weights.again += bool(weights.names) and name != weights.names[-1]
        return
    weights.reads += 1
    if name == "map":
        raise ExpressionError(
            "the macro map is not allowed in a condition; use exists, all or filter",
            tokens[at].position,
        )
    if name == "contains":
        weights.searches += argument == ""
    elif name == "matches":
        if not argument or not _is_field(tokens, at):
            raise ExpressionError(
                "matches needs its pattern as a text in quotes, as in x.matches('^a')",
                tokens[at].position,
            )
        try:
            weights.patterns += size_of(pattern_of(argument))
        except ExpressionError as error:
            raise ExpressionError(error.reason, tokens[at].position) from None


def _argument(tokens: Sequence[_Token], at: int) -> str | None:
    """Return the literal text that is the only argument of the function at a place.

    The result is "" if the arguments are not one literal text, and None if the name is no function.
    """
    after = tokens[at + 1 : at + 4]
    if not after or after[0].text != "(":
        return None
    is_literal = len(after) == 3 and after[1].kind == "string" and after[2].text == ")"
    return after[1].text if is_literal else ""


def _is_variable(tokens: Sequence[_Token], at: int) -> bool:
    """Return whether a name is a variable.

    For example, `event` is a variable in `event` and `.event`, but a field in `x.event`.
    """
    return not _is_field(tokens, at)


def _is_field(tokens: Sequence[_Token], at: int) -> bool:
    if at < 2 or tokens[at - 1].text != "." or tokens[at - 1].kind != "sign":
        return False
    owner = tokens[at - 2]
    return (
        owner.kind in ("string", "number")
        or owner.text in (")", "]", "}")
        or (owner.kind == "name" and owner.text != "in")
    )


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
