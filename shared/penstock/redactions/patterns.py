"""Parses patterns, and derives from each the pattern of its beginnings. Pure.

A text comes in pieces, and a match may be spread over several of them. So a scanner must know from
which character on the text may still become a match. RE2 cannot say so about a pattern. But the
texts that are the beginning of a match are described by another pattern, which follows from the
first: of `ab?c`, it is `(?:ab?)?`. Where it matches at the end of the text, the text may still
become a match; nowhere else.

A match has a greatest length, so `*`, `+` and `{2,}` are no part of the language: a text could
otherwise be held back without limit.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from functools import lru_cache
from typing import Final, Protocol

MAX_PATTERN_CHARACTERS: Final = 1000
# The most characters that a pattern may match, and so the most that are held back.
MAX_MATCH_CHARACTERS: Final = 1000
_MAX_LEVELS: Final = 20  # of groups in groups
_COUNT: Final = re.compile(r"\?|\{([0-9]{1,4})(?:(,)([0-9]{0,4}))?\}")
_UNBOUNDED: Final = "*+"
_CLASS: Final = re.compile(r"\[\^?\]?(?:\\.|\[:\^?[a-z]+:\]|[^\]\\])*\]", re.DOTALL)
_ONE: Final = re.compile(
    r"\\(?:[pP](?:\{\^?[A-Za-z_]+\}|[A-Z])|x(?:\{[0-9A-Fa-f]{1,6}\}|[0-9A-Fa-f]{2})"
    r"|[dDwWsSnrtfv]|[^A-Za-z0-9])"
)
_IGNORES_CASE: Final = "(?i)"


class InvalidPattern(ValueError):
    """The error for a pattern that is no bounded regular expression of RE2."""


@dataclass(frozen=True, slots=True)
class Pattern:
    """A pattern in RE2's language. `beginnings` matches each text that is the beginning of a match
    and no whole one, or a match that more text may extend; it also matches the empty text."""

    whole: str
    beginnings: str


class _Node(Protocol):
    @property
    def least(self) -> int: ...

    @property
    def most(self) -> int: ...

    @property
    def whole(self) -> str: ...

    @property
    def begun(self) -> str: ...


@dataclass(frozen=True, slots=True)
class _One:
    """One character, or a place between two (`\\b`), which has no length."""

    whole: str
    most: int = 1
    begun: str = ""

    @property
    def least(self) -> int:
        return self.most


@dataclass(frozen=True, slots=True)
class _Sequence:
    parts: tuple[_Node, ...]

    @property
    def least(self) -> int:
        return sum(part.least for part in self.parts)

    @property
    def most(self) -> int:
        return sum(part.most for part in self.parts)

    @property
    def whole(self) -> str:
        return "".join(part.whole for part in self.parts)

    @property
    def begun(self) -> str:
        begun = ""
        for number, part in reversed(list(enumerate(self.parts))):
            is_last = number == len(self.parts) - 1
            begun = part.begun if is_last else _either([part.begun, part.whole + begun])
        return begun


@dataclass(frozen=True, slots=True)
class _Choice:
    parts: tuple[_Node, ...]

    @property
    def least(self) -> int:
        return min(part.least for part in self.parts)

    @property
    def most(self) -> int:
        return max(part.most for part in self.parts)

    @property
    def whole(self) -> str:
        return f"(?:{'|'.join(part.whole for part in self.parts)})"

    @property
    def begun(self) -> str:
        return _either(part.begun for part in self.parts)


@dataclass(frozen=True, slots=True)
class _Repeat:
    part: _Node
    fewest: int
    times: int

    @property
    def least(self) -> int:
        return self.part.least * self.fewest

    @property
    def most(self) -> int:
        return self.part.most * self.times

    @property
    def whole(self) -> str:
        return f"(?:{self.part.whole}){{{self.fewest},{self.times}}}"

    @property
    def begun(self) -> str:
        if not self.times:
            return ""
        before = f"(?:{self.part.whole}){{0,{self.times - 1}}}" if self.times > 1 else ""
        return before + self.part.begun


@lru_cache(maxsize=256)
def parse(pattern: str) -> Pattern:
    """Return a pattern and its beginnings. Raises InvalidPattern."""
    if len(pattern) > MAX_PATTERN_CHARACTERS:
        raise InvalidPattern(f"a pattern has at most {MAX_PATTERN_CHARACTERS} characters")
    ignores_case = pattern.startswith(_IGNORES_CASE)
    parser = _Parser(pattern.removeprefix(_IGNORES_CASE))
    node = parser.choice(0)
    if parser.rest:
        raise InvalidPattern("a `)` has no `(`")
    if not node.least:
        raise InvalidPattern("it matches the empty text")
    if node.most > MAX_MATCH_CHARACTERS:
        raise InvalidPattern(
            f"it may match {node.most} characters, and may match {MAX_MATCH_CHARACTERS} at most"
        )
    flag = "(?i:" if ignores_case else "(?:"
    return Pattern(f"{flag}{node.whole})", f"{flag}{node.begun})")


class _Parser:
    def __init__(self, text: str) -> None:
        self.rest = text

    def choice(self, level: int) -> _Node:
        if level > _MAX_LEVELS:
            raise InvalidPattern(f"it has more than {_MAX_LEVELS} groups in each other")
        parts = [self._sequence(level)]
        while self._takes("|"):
            parts.append(self._sequence(level))
        return parts[0] if len(parts) == 1 else _Choice(tuple(parts))

    def _sequence(self, level: int) -> _Node:
        parts: list[_Node] = []
        while self.rest and self.rest[0] not in "|)":
            part = self._part(level)
            if count := _COUNT.match(self.rest):
                part = self._repeated(part, count)
            elif self.rest[:1] in (*_UNBOUNDED,):
                raise InvalidPattern(
                    f"`{self.rest[0]}` has no greatest number: write such as {{1,64}}"
                )
            if self.rest[:1] in ("?", *_UNBOUNDED) or _COUNT.match(self.rest):
                raise InvalidPattern("a repetition may not follow another one; put it in a group")
            parts.append(part)
        return parts[0] if len(parts) == 1 else _Sequence(tuple(parts))

    def _repeated(self, part: _Node, count: re.Match[str]) -> _Node:
        self.rest = self.rest[count.end() :]
        if count[1] is None:
            return _Repeat(part, 0, 1)
        if count[2] is not None and not count[3]:
            raise InvalidPattern(f"`{count[0]}` has no greatest number: write such as {{2,64}}")
        fewest = int(count[1])
        times = int(count[3]) if count[2] is not None else fewest
        if fewest > times:
            raise InvalidPattern(f"`{count[0]}`: the greatest number comes last")
        return _Repeat(part, fewest, times)

    def _part(self, level: int) -> _Node:
        for sign in (r"\b", r"\B"):
            if self._takes(sign):
                return _One(sign, 0)
        for expression in (_ONE, _CLASS):
            if one := expression.match(self.rest):
                self.rest = self.rest[one.end() :]
                return _One(one[0])
        if self._takes("("):
            if not self._takes("?:") and self.rest.startswith("?"):
                raise InvalidPattern("a group begins with `(` or `(?:`, and `(?i)` the pattern")
            node = self.choice(level + 1)
            if not self._takes(")"):
                raise InvalidPattern("a `(` has no `)`")
            return node if isinstance(node, _Choice) else _Sequence((node,))
        sign, self.rest = self.rest[0], self.rest[1:]
        if sign == ".":
            return _One(sign)
        if sign in r"^$\[":
            raise InvalidPattern(f"`{sign}{self.rest[:1]}` is not known here")
        if sign in "?*+{":
            raise InvalidPattern(f"`{sign}` has nothing before it; write \\{sign} for the sign")
        return _One(re.escape(sign) if sign in "}])" else sign)

    def _takes(self, sign: str) -> bool:
        if not self.rest.startswith(sign):
            return False
        self.rest = self.rest[len(sign) :]
        return True


def _either(options: Iterable[str]) -> str:
    unique = dict.fromkeys(options)
    texts = [option for option in unique if option]
    if not texts:
        return ""
    return f"(?:{'|'.join(texts)})" + ("?" if "" in unique else "")
