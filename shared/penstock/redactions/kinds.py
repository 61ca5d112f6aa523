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

_DOUBLED: Final = tuple(sum(divmod(digit * 2, 10)) for digit in range(10))
OWN: Final = "re:"  # begins a pattern of the operator's own

# With the accents that are signs of their own, as macOS writes them.
_LETTERS: Final = "A-Za-zÀ-ÖØ-öø-ɏ\u0300-\u036fͰ-ϿЀ-ӿ"
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


def _ends_word(text: bytes, at: int) -> bool:
    return not text[at + 1 : at + 2].isalnum()


def _card(text: bytes) -> int:
    # One pass, since a text may have the form of a card at every second character. Of the two sums,
    # each doubles the digits that the other does not, so the one for which the last digit is single
    # is Luhn's.
    end, count, single, doubled = 0, 0, 0, 0
    for at, each in enumerate(text):
        if not 48 <= each <= 57:
            continue
        digit = each - 48
        count += 1
        single, doubled = doubled + digit, single + _DOUBLED[digit]
        if count >= 13 and single % 10 == 0 and _ends_word(text, at):
            end = at + 1
    return end


def _iban(text: bytes) -> int:
    end, count, first, rest = 0, 0, 0, 0
    for at, each in enumerate(text):
        if each in b" -":
            continue
        sign = int(chr(each), 36)
        count += 1
        if count <= 4:
            first = first * (10 if sign < 10 else 100) + sign
            continue
        rest = (rest * (10 if sign < 10 else 100) + sign) % 97
        # The first four signs, two letters and two digits, come last: six digits.
        if count >= 15 and _ends_word(text, at) and (rest * 1_000_000 + first) % 97 == 1:
            end = at + 1
    return end


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
