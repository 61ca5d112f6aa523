"""Counts what became of the runs. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from statistics import median

from penstock_conformance.chaos.counter import Effect
from penstock_conformance.chaos.protocols.base import End


@dataclass(slots=True)
class Seen:
    """What the client of one run has seen. Times are those of time.monotonic."""

    run: str
    words: list[int] = field(default_factory=list)  # of streams, in their order
    shown: set[int] = field(default_factory=set)  # in texts that repeat words on purpose
    end: End | None = None
    ended_s: float | None = None
    answered: bool = False  # whether the client knows that the run has started
    unknown: bool = False  # whether the last answer was that there is no such run
    reread: set[int] | None = None  # the words that a later client reads; None: not offered
    next_s: float | None = None  # when the first word or end came after the kill

    def met_by(self, killed_s: float) -> bool:
        """Return whether the run was open when the server was killed."""
        return self.ended_s is None or self.ended_s > killed_s


@dataclass(frozen=True, slots=True)
class Round:
    """One kill, with its runs."""

    moment: str
    killed_s: float
    answered_s: float  # when the server answered again
    runs: Sequence[Seen]


@dataclass(slots=True)
class Figures:
    """The counts of all rounds. `*_names` name the runs, for a look at their frames."""

    rounds: int = 0
    runs: int = 0
    met: int = 0  # runs that were open when the server was killed
    effects_planned: int = 0
    effects_once: int = 0
    effects_twice: int = 0  # or more often
    effects_never: int = 0
    effects_never_but_completed: int = 0  # of those, in runs that are said to be completed
    completed: int = 0
    failed: int = 0
    unanswered: int = 0  # runs whose start brought nothing back, and that have no end
    unknown: int = 0  # runs of which the server says that there is no such run
    endless: int = 0  # all other runs that have no end
    words_lost: int = 0  # of completed runs
    words_repeated: int = 0
    words_gone: int = 0  # seen by the client, and not shown to a later one
    rereadable: bool = True
    next_s: list[float] = field(default_factory=list)
    restart_s: list[float] = field(default_factory=list)
    twice_names: list[str] = field(default_factory=list)
    never_names: list[str] = field(default_factory=list)
    unanswered_names: list[str] = field(default_factory=list)
    unknown_names: list[str] = field(default_factory=list)
    endless_names: list[str] = field(default_factory=list)
    lost_names: list[str] = field(default_factory=list)
    repeated_names: list[str] = field(default_factory=list)
    gone_names: list[str] = field(default_factory=list)

    @property
    def faults(self) -> list[str]:
        """What a user of the server would have to mend by hand, as sentences. Empty: nothing."""
        rows = [
            (self.effects_twice, "effects happened twice or more often", self.twice_names),
            (
                self.effects_never_but_completed,
                "effects never happened in runs that are said to be completed",
                self.never_names,
            ),
            (self.words_lost, "words are lost in completed runs", self.lost_names),
            (self.words_repeated, "words were repeated", self.repeated_names),
            (self.words_gone, "words that a client saw are not shown later", self.gone_names),
            (self.unknown, "runs are no longer known", self.unknown_names),
            (self.endless, "runs have no end", self.endless_names),
        ]
        return [f"{count} {what}: {', '.join(names)}" for count, what, names in rows if count]


def judge(rounds: Iterable[Round], effects: Iterable[Effect], *, calls: int, words: int) -> Figures:
    """Count all rounds. Each run has `calls` effects and `words` words.

    An effect counts for its run whenever it happened, also rounds later.
    """
    figures = Figures()
    times = Counter((effect.run, effect.call) for effect in effects)
    for each in rounds:
        figures.rounds += 1
        figures.restart_s.append(each.answered_s - each.killed_s)
        for seen in each.runs:
            _count(figures, each, seen, words)
            _count_effects(figures, seen, [times[seen.run, call] for call in range(calls)])
    return figures


def _count(figures: Figures, of: Round, seen: Seen, words: int) -> None:
    figures.runs += 1
    if seen.met_by(of.killed_s):
        figures.met += 1
        if seen.next_s is not None:
            figures.next_s.append(seen.next_s - of.killed_s)
    if seen.end == "completed":
        figures.completed += 1
        if lost := words - len({*seen.words, *seen.shown} & set(range(words))):
            figures.words_lost += lost
            figures.lost_names.append(seen.run)
    elif seen.end == "failed":
        figures.failed += 1
    elif not seen.answered:
        figures.unanswered += 1
        figures.unanswered_names.append(seen.run)
    elif seen.unknown:
        figures.unknown += 1
        figures.unknown_names.append(seen.run)
    else:
        figures.endless += 1
        figures.endless_names.append(seen.run)
    if repeated := len(seen.words) - len(set(seen.words)):
        figures.words_repeated += repeated
        figures.repeated_names.append(seen.run)
    if seen.reread is None:
        figures.rereadable = figures.rereadable and not seen.answered
    elif gone := len({*seen.words, *seen.shown} - seen.reread):
        figures.words_gone += gone
        figures.gone_names.append(seen.run)


def _count_effects(figures: Figures, seen: Seen, times: Sequence[int]) -> None:
    """Count the effects of a run. `times` says for each call how often its effect happened."""
    figures.effects_planned += len(times)
    figures.effects_once += times.count(1)
    for call, n in enumerate(times):
        if n > 1:
            figures.effects_twice += 1
            figures.twice_names.append(f"{seen.run}/{call}")
        elif n == 0:
            figures.effects_never += 1
            if seen.end == "completed":
                figures.effects_never_but_completed += 1
                figures.never_names.append(f"{seen.run}/{call}")


def spread(values: Sequence[float]) -> str:
    """Return the median and the largest value, in seconds."""
    return f"{median(values):.1f} s, at most {max(values):.1f} s" if values else "none came"
