"""Reads for how long what is stored is kept: PENSTOCK_KEEP. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Final, NamedTuple

from penstock.durations import seconds_of, text_of

FOREVER: Final = "forever"
DAY_S: Final = 86400.0
MAX_S: Final = 36_500 * DAY_S  # NATS counts ages in nanoseconds, in 63 bits


class Kind(NamedTuple):
    """What is kept for one age: the age in seconds without a setting (0: forever), the stream whose
    age it is, and the shortest age that is possible."""

    age_s: float
    stream: str
    least_s: float = 1.0
    may_be_forever: bool = False


KINDS: Final[Mapping[str, Kind]] = {
    "raw": Kind(DAY_S, "RAW"),
    "events": Kind(7 * DAY_S, "EVENTS"),
    "deadletters": Kind(30 * DAY_S, "DEADLETTERS"),
    # A delivery may wait for its next attempt for a day and a tenth.
    "deliveries": Kind(30 * DAY_S, "KV_deliveries", 2 * DAY_S),
    # A request may wait for as long as the record of its run is kept (see `parse_keep`).
    "decisions": Kind(0.0, "KV_approvals", 30 * DAY_S, may_be_forever=True),
    # A budget may be of a month, and must not forget what was used since its first day.
    "costs": Kind(400 * DAY_S, "KV_costs", 31 * DAY_S, may_be_forever=True),
}
FACTS: Final = ("agent", "tenant")


class Early(NamedTuple):
    """Runs whose content is erased before its events expire: those of the agents or tenants that
    fit a pattern."""

    fact: str
    pattern: str
    age_s: float

    def __str__(self) -> str:
        return f"{self.fact}:{self.pattern}={text_of(self.age_s)}"


@dataclass(frozen=True, slots=True)
class Keep:
    """The age of each kind in seconds (0: forever), and the runs that are erased earlier."""

    ages_s: Mapping[str, float]
    early: Sequence[Early] = ()

    def early_for(self, agent: str, tenant: str | None) -> Early | None:
        """Return the first entry that fits a run; None if its content stays until it expires."""
        of_run = {"agent": agent, "tenant": tenant or ""}
        fitting = (each for each in self.early if fnmatchcase(of_run[each.fact], each.pattern))
        return next(fitting, None)


def parse_keep(words: Sequence[str]) -> Keep:
    """Return what the words say: `events=7d` for a kind, `agent:support-*=2d` or `tenant:acme=12h`
    for runs that are erased earlier. Raises ValueError."""
    ages_s = {name: kind.age_s for name, kind in KINDS.items()}
    early: list[Early] = []
    seen: set[str] = set()
    for word in words:
        what, _, age = word.rpartition("=")
        fact, colon, pattern = what.partition(":")
        if what in seen:
            raise ValueError(f"{word}: {what} is there twice")
        seen.add(what)
        if colon and fact in FACTS and pattern:
            early.append(Early(fact, pattern, _age_s(word, age)))
        elif what in KINDS:
            ages_s[what] = _age_of(KINDS[what], word, age)
        else:
            kinds = ", ".join(KINDS)
            raise ValueError(
                f"{word}: write <kind>=<age> with one of the kinds {kinds}, or "
                "agent:<pattern>=<age> or tenant:<pattern>=<age>"
            )
    if 0 < ages_s["decisions"] < ages_s["events"]:
        events = text_of(ages_s["events"])
        raise ValueError(
            f"decisions={text_of(ages_s['decisions'])}: events are kept for {events}, and a run "
            f"may wait for its decision as long: set decisions={events} or more, or {FOREVER}"
        )
    for each in early:
        if each.age_s > ages_s["events"]:
            raise ValueError(
                f"{each}: events are kept for {text_of(ages_s['events'])}, and runs cannot be kept "
                f"longer: set events={text_of(each.age_s)}, and a shorter age for other runs"
            )
    return Keep(ages_s, tuple(early))


def shown_age(age_s: float) -> str:
    return text_of(age_s) if age_s else FOREVER


def _age_of(kind: Kind, word: str, age: str) -> float:
    if age == FOREVER and kind.may_be_forever:
        return 0.0
    age_s = _age_s(word, age)
    if age_s < kind.least_s:
        raise ValueError(f"{word}: must be at least {text_of(kind.least_s)}")
    return age_s


def _age_s(word: str, age: str) -> float:
    if age.strip().endswith("m"):
        # Who means months would lose all but the last minutes.
        raise ValueError(f"{word}: m is not taken here: write months as 180d, and minutes as 360s")
    try:
        age_s = float(seconds_of(age))
    except ValueError:
        text = "an age is a number and s, h or d, such as 180d"
        raise ValueError(f"{word}: {text}") from None
    if not 0 < age_s <= MAX_S:
        raise ValueError(f"{word}: an age is from 1s to {text_of(MAX_S)}")
    return age_s
