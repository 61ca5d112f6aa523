"""The results of one or several rounds, and the minimum that a round must reach. No I/O."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from support.chaos.checker import Violation
from support.chaos.load import Load


@dataclass(frozen=True, order=True, slots=True)
class Wait:
    """The time from a kill to the next new event of a run that was streaming at the kill."""

    took_s: float
    target: str
    killed_at_s: float  # seconds after the round began to wait for its first fault
    run: str
    meanwhile: tuple[str, ...] = ()  # other faults between the kill and the event

    def __str__(self) -> str:
        told = f"{self.took_s:.1f} s {self.run} after {self.target} at {self.killed_at_s:.0f} s"
        return f"{told}, with {', '.join(self.meanwhile) or 'nothing else'}"


@dataclass(slots=True)
class Report:
    """The results of a round."""

    seed: int
    kills: dict[str, int] = field(default_factory=dict)  # the number of kills by target
    outcomes: dict[str, int] = field(default_factory=dict)
    events: int = 0
    reconnects: int = 0
    reattached: int = 0  # legs that another connector continued
    violations: list[Violation] = field(default_factory=list)
    waits: list[Wait] = field(default_factory=list)
    took_s: float = 0.0
    load: Load = field(default_factory=Load)

    @property
    def faults(self) -> list[Violation]:
        """The violations that count. On a starved machine, late ones do not count."""
        return [each for each in self.violations if not (each.late and self.load.starved)]

    @property
    def excused(self) -> list[Violation]:
        """Late violations on a starved machine. For them the round proves nothing."""
        return [each for each in self.violations if each.late and self.load.starved]

    def __str__(self) -> str:
        head = f"seed {self.seed}: {sum(self.outcomes.values())} runs"
        return "\n".join([f"{head}, {_counted(self)}", *_body(self)])


def summary(reports: Sequence[Report]) -> str:
    """Summarize all rounds together."""
    whole = Report(
        0,
        _sum([each.kills for each in reports]),
        _sum([each.outcomes for each in reports]),
        sum(each.events for each in reports),
        sum(each.reconnects for each in reports),
        sum(each.reattached for each in reports),
        # Each round has already decided which of its violations count.
        [
            violation
            for each in reports
            for violation in (*(replace(v, late=False) for v in each.faults), *each.excused)
        ],
        [wait for each in reports for wait in each.waits],
        sum(each.took_s for each in reports),
        sum((each.load for each in reports), Load()),
    )
    seeds = ", ".join(str(each.seed) for each in reports)
    head = f"all {len(reports)} rounds, seeds {seeds}: {sum(whole.outcomes.values())} runs"
    return "\n".join([f"{head}, {_counted(whole)}", *_body(whole)])


def check_floors(report: Report, completed: float, reattached: int = 0) -> list[Violation]:
    """Return what is less than these floors. Below them, the faults had too little effect.

    `completed`: the share of the runs, 0 to 1. `reattached`: the number of legs.
    """
    share = report.outcomes.get("completed", 0) / max(1, sum(report.outcomes.values()))
    found = []
    if share < completed:
        found.append(f"{share:.0%} of the runs were completed, not {completed:.0%}")
    if report.reattached < reattached:
        found.append(f"{report.reattached} legs went on by another connector, not {reattached}")
    if report.kills and not report.waits:
        found.append("no run was streaming when something was killed")
    return [Violation("floor", "", text, late=True) for text in found]


def _sum(counts: Sequence[Mapping[str, int]]) -> dict[str, int]:
    total: Counter[str] = Counter()
    for each in counts:
        total.update(each)
    return dict(total)


def _counted(report: Report) -> str:
    return (
        f"{report.events} events, {report.reconnects} reconnects, "
        f"{report.reattached} legs gone on with in {report.took_s:.0f} s"
    )


def _body(report: Report) -> list[str]:
    return [
        f"  kills: {sum(report.kills.values())} ({_told(report.kills)})",
        f"  runs: {_told(report.outcomes)}",
        *_waits(report.waits),
        f"  {report.load}",
        *_violations("violations", report.faults),
        *(_violations("late on a starved machine", report.excused) if report.excused else ()),
    ]


def _violations(what: str, found: Sequence[Violation]) -> list[str]:
    by_check = Counter(violation.check for violation in found)
    return [
        f"  {what}: {len(found)}{f' ({_told(by_check)})' if by_check else ''}",
        *(f"    {violation}"[:2000] for violation in found[:20]),
    ]


def _told(counts: Mapping[str, int]) -> str:
    return ", ".join(f"{count} {name}" for name, count in sorted(counts.items()))


def _waits(waits: Sequence[Wait]) -> list[str]:
    """Return percentiles of the time from a kill to the next event of a streaming run."""
    by_target: dict[str, list[float]] = {"anything": [wait.took_s for wait in waits]}
    for wait in waits:
        by_target.setdefault(wait.target, []).append(wait.took_s)
    lines = [
        f"  from the kill of {target} to the next event (n={len(found)}): "
        f"p50 {percentile(found, 50):.2f} s, p99 {percentile(found, 99):.2f} s, "
        f"max {max(found):.2f} s"
        for target, found in sorted(by_target.items())
        if found
    ]
    slowest = [f"    {wait}" for wait in sorted(waits, reverse=True)[:5]]
    return [*lines, "  the slowest, and what else was hurt meanwhile:", *slowest] if waits else []


def percentile(values: Sequence[float], percent: float) -> float:
    """Return the value that `percent` percent of a non-empty list do not exceed."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(len(ordered) * percent / 100))]
