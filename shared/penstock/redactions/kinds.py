"""Defines the kinds of content that rules name, and the checks of those with a checksum. Pure.

A pattern finds what has the form; the check says how much of it is one. A number that has the form
of a card but not its checksum stays. What a kind finds, in each release, is in docs/privacy.md.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final

from penstock.redactions.patterns import Pattern, parse

OWN: Final = "re:"  # begins a pattern of the operator's own

_LETTERS: Final = "A-Za-zÀ-ÖØ-öø-ɏͰ-ϿЀ-ӿ"
_EMAIL: Final = (
    rf"[{_LETTERS}0-9._%+'-]{{1,64}}@[{_LETTERS}0-9-]{{1,63}}(?:\.[{_LETTERS}0-9-]{{1,63}}){{1,8}}"
)
_CARD: Final = r"\b[2-6][0-9](?:[ -]?[0-9]){11,17}\b"
_IBAN: Final = r"\b(?:[A-Z]{2}[0-9]{2}(?:[ -]?[A-Z0-9]){11,30}|[a-z]{2}[0-9]{2}[a-z0-9]{11,30})\b"
_PHONE: Final = (
    # +49 30 1234567, 0049…
    r"(?:\+|\b00)[1-9](?:[ ()./-]{0,2}[0-9]){6,13}\b"
    # (030) 123456, (555) 123-4567
    r"|\([0-9]{2,5}\)[ -]?[0-9]{3,4}[ -]?[0-9]{2,5}\b"
    # 030/123456, 0171-1234567
    r"|\b0[1-9][0-9]{1,4}[ ]?[/-][ ]?[0-9]{3,4}[ -]?[0-9]{2,5}\b"
    # 555-123-4567
    r"|\b[2-9][0-9]{2}[.-][0-9]{3}[.-][0-9]{4}\b"
)
# The beginnings of credentials. What follows in the same word belongs to them, however long it is.
_SECRET: Final = (
    r"\b(?:sk-[A-Za-z0-9_*-]{12,64}"  # OpenAI, Anthropic
    r"|(?:sk|rk|pk)_[A-Za-z0-9_]{16,64}"  # Stripe
    r"|whsec_[A-Za-z0-9_+/=-]{16,64}"
    r"|(?:AKIA|ASIA|AROA|AIDA)[0-9A-Z]{12,32}"  # AWS
    r"|gh[pousr]_[A-Za-z0-9]{16,64}|github_pat_[A-Za-z0-9_]{16,64}|glpat-[A-Za-z0-9_-]{16,64}"
    r"|xox[a-z]-[A-Za-z0-9-]{10,64}"  # Slack
    r"|AIza[0-9A-Za-z_-]{24,64}|ya29\.[0-9A-Za-z_.-]{16,64}"  # Google
    r"|(?:hf|gsk|npm|r8)_[A-Za-z0-9]{16,64}|xai-[A-Za-z0-9]{16,64}|pypi-[A-Za-z0-9_-]{16,64}"
    r"|SG\.[A-Za-z0-9_-]{16,64}"  # SendGrid
    r"|p(?:st|sv|ln)_[A-Za-z0-9_-]{20,64}"  # tokens of Penstock
    r"|eyJ[A-Za-z0-9_-]{8,64}\.[A-Za-z0-9_-]{2,8}"  # JWT
    r")"
)


@dataclass(frozen=True, slots=True)
class Kind:
    """One kind of content. `pattern` raises InvalidPattern if the source is not bounded. `check`
    returns how many bytes of a match are one, 0 for none. `same` returns the text by which two of
    them are the same. After a match, all bytes that `rest` matches belong to it."""

    name: str
    source: str
    check: Callable[[bytes], int] = len
    same: Callable[[str], str] = str
    rest: re.Pattern[bytes] | None = None

    @property
    def pattern(self) -> Pattern:
        return parse(self.source)

    @property
    def label(self) -> str:
        """The name in what takes a match's place, such as `EMAIL`."""
        return "PATTERN" if self.name.startswith(OWN) else self.name.upper()


def _compact(text: str) -> str:
    return re.sub(r"[^0-9A-Z+]", "", text.upper())


def _ends(text: bytes) -> list[int]:
    """Return the places, the last first, at which a word of the text ends."""
    return [
        end
        for end in range(len(text), 0, -1)
        if text[end - 1 : end].isalnum() and not text[end : end + 1].isalnum()
    ]


def _card(text: bytes) -> int:
    for end in _ends(text):
        digits = [each - 48 for each in text[:end] if 48 <= each <= 57]
        if len(digits) < 13:
            return 0
        doubled = (sum(divmod(each * 2, 10)) for each in digits[-2::-2])
        if (sum(digits[-1::-2]) + sum(doubled)) % 10 == 0:
            return end
    return 0


def _iban(text: bytes) -> int:
    for end in _ends(text):
        signs = [chr(each) for each in text[:end] if each not in b" -"]
        if len(signs) < 15:
            return 0
        number = "".join(str(int(each, 36)) for each in (*signs[4:], *signs[:4]))
        if int(number) % 97 == 1:
            return end
    return 0


# A key in PEM's form: its lines are words of base64, and so is what is between its first and last.
_KEY: Final = r"-----BEGIN [A-Z0-9 ]{0,40}PRIVATE KEY-----"

KINDS: Final[Mapping[str, tuple[Kind, ...]]] = {
    "secret": (
        Kind("secret", _SECRET, rest=re.compile(rb"[A-Za-z0-9_.=/+*-]*")),
        Kind("secret", _KEY, rest=re.compile(rb"[A-Za-z0-9=/+\s-]*")),
    ),
    "email": (Kind("email", _EMAIL, same=str.lower),),
    "iban": (Kind("iban", _IBAN, _iban, _compact),),
    "card": (Kind("card", _CARD, _card, _compact),),
    "phone": (Kind("phone", _PHONE, same=_compact),),
}


def kinds_of(name: str) -> tuple[Kind, ...]:
    """Return what a rule names: a kind, or `re:` and a pattern. Raises KeyError for an unknown
    name."""
    if name.startswith(OWN):
        return (Kind(name, name.removeprefix(OWN)),)
    return KINDS[name]
