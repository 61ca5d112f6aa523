"""Finds where a fork's conversation ends in the stored conversation of its first run. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from penstock.bus.records.runs import TakenOver
from penstock.start_fields import NotAccepted, Refusal


@dataclass(frozen=True, slots=True)
class Entry:
    """A message or event of a conversation: the ids of the calls that it makes, the ids of the
    calls that it answers, and whether the agent says something in it."""

    calls: frozenset[str] = frozenset()
    answers: frozenset[str] = frozenset()
    says: bool = False


def not_forkable(reason: str) -> NotAccepted:
    return NotAccepted([Refusal(("forked_from",), reason)])


def kept_entries(entries: Iterable[Entry], taken: TakenOver) -> int:
    """Return how many of the first run's entries the fork takes over.

    A model refuses a conversation with a call that has no result. So an entry with several calls is
    only taken over if all of them had a result at the fork's point.
    """
    kept = said = 0
    called: set[str] = set()
    answered: set[str] = set()
    for entry in entries:
        called |= entry.calls
        answered |= entry.answers
        said += entry.says
        if said > taken.messages or max(len(called), len(answered)) > taken.tool_calls:
            break
        kept += 1
    return kept
