"""The result of a check, and functions for texts of several checks. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final, Literal

Verdict = Literal["ok", "unproven", "unreachable", "refused", "wrong_protocol", "wrong_agent"]

MAX_NAMES: Final = 8
MAX_SHOWN_CHARACTERS: Final = 120


@dataclass(frozen=True, slots=True)
class Finding:
    """The result of the check of one agent; `text` tells what is wrong, and what to change.

    The verdict `unproven` means that the check found nothing wrong, but that only a run can show
    whether the server speaks the protocol.
    """

    agent: str
    verdict: Verdict
    text: str

    @property
    def is_fine(self) -> bool:
        return self.verdict in {"ok", "unproven"}


def one_line(text: str) -> str:
    line = " ".join("".join(c if c.isprintable() else " " for c in text).split())
    return line if len(line) <= MAX_SHOWN_CHARACTERS else line[: MAX_SHOWN_CHARACTERS - 1] + "…"


def listed(names: Iterable[str]) -> str:
    known = [one_line(name) for name in names]
    more = f" and {len(known) - MAX_NAMES} more" if len(known) > MAX_NAMES else ""
    return ", ".join(known[:MAX_NAMES]) + more if known else "none"
