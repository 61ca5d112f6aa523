"""Searches JSON that comes in pieces, such as the arguments of a tool call. Pure.

Each text in the JSON is searched for itself, without its escapes. What stands outside of texts,
such as a whole number, is searched whole, and becomes a text if something is found in it. A text
that is no JSON is searched in the same way, so nothing but a number with a fraction passes
unsearched.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, field
from typing import Final

from penstock.redactions.scanner import Redactor, Scanner

_PLAIN: Final = re.compile(r'[^"\\]+')
_BARE: Final = re.compile(r"[^\"{}\[\]:,]+")
# An escape, and the second one of a pair that is one character.
_ESCAPE: Final = re.compile(
    r"\\(?:u[dD][89abAB][0-9a-fA-F]{2}\\u[dD][c-fC-F][0-9a-fA-F]{2}|u[0-9a-fA-F]{4}|[^u])",
    re.DOTALL,
)
_DECODER: Final = json.JSONDecoder(strict=False)
_MAX_ESCAPE: Final = 12
_HIGH: Final = re.compile(r"\\u[dD][89abAB]")


@dataclass(slots=True)
class JsonScanner:
    """Searches one JSON value that comes in pieces."""

    redactor: Redactor
    _unread: str = ""  # the beginning of an escape
    _bare: list[str] = field(default_factory=list)  # what comes outside of texts, such as a number
    _text: Scanner | None = None  # of the text that is open

    @property
    def held(self) -> str:
        """The end of the JSON so far, of which nothing is decided yet; as texts mean it, without
        their escapes."""
        return "".join(self._bare) if self._text is None else self._text.held + self._unread

    @property
    def is_in_match(self) -> bool:
        """Whether what follows may belong to the last match, however long it is."""
        return self._text is not None and self._text.is_in_match

    def feed(self, piece: str, *, last: bool = False) -> str:
        """Return the JSON up to where further pieces may change it; with `last`, up to its end."""
        source, at = self._unread + piece, 0
        decided: list[str] = []
        read: list[str] = []  # of the open text, without escapes
        self._unread = ""
        while at < len(source):
            if self._text is None:
                if bare := _BARE.match(source, at):
                    self._bare.append(bare[0])
                    self.redactor.waiting += len(bare[0])
                    at = bare.end()
                    continue
                decided += (self._end_bare(), source[at])
                if source[at] == '"':
                    self._text = Scanner(self.redactor)
                at += 1
            elif plain := _PLAIN.match(source, at):
                read.append(plain[0])
                at = plain.end()
            elif source[at] == '"':
                decided.append(f'{_escaped(self._text.feed("".join(read), last=True))}"')
                read.clear()
                self._text = None
                at += 1
            else:
                escape = _ESCAPE.match(source, at)
                is_whole = escape is not None and not self._is_half(source, at, escape[0])
                if not is_whole and not last and len(source) - at < _MAX_ESCAPE:
                    self._unread = source[at:]
                    break
                sign = escape[0] if escape is not None else source[at]
                read.append(_unescaped(sign))
                at += len(sign)
            if self.redactor.blocked is not None:
                return "".join(decided)
        if last:
            decided.append(self._end_bare())
        if self._text is not None:
            decided.append(_escaped(self._text.feed("".join(read), last=last)))
        return "".join(decided)

    def flush(self) -> str:
        """Return what is held back, since the JSON has ended."""
        return self.feed("", last=True)

    def _is_half(self, source: str, at: int, escape: str) -> bool:
        """Return whether the escape may be the first of a pair whose second has not come yet."""
        after = source[at + len(escape) : at + len(escape) + 2]
        return len(escape) == 6 and _HIGH.match(escape) is not None and r"\u".startswith(after)

    def _end_bare(self) -> str:
        whole = "".join(self._bare)
        self._bare.clear()
        self.redactor.waiting -= len(whole)
        bare = whole.strip()
        if not bare or _is_fraction(bare):  # as in a value: digits of a fraction look like cards
            return whole
        clean = self.redactor.text(bare)
        return whole if clean == bare else whole.replace(bare, f'"{_escaped(clean)}"')


def _is_fraction(bare: str) -> bool:
    try:
        return not float(bare).is_integer()
    except ValueError:
        return False


def _escaped(text: str) -> str:
    if not text:
        return ""
    try:
        text.encode()
    except UnicodeEncodeError:  # half of a surrogate pair can only be written as an escape
        return json.dumps(text)[1:-1]
    return json.dumps(text, ensure_ascii=False)[1:-1]


def _unescaped(sign: str) -> str:
    try:
        return str(_DECODER.decode(f'"{sign}"'))
    except ValueError:
        return sign
