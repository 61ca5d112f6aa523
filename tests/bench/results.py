"""Measured samples by piece, workload, system and round, and the table of them. Pure."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from statistics import median
from typing import Any


@dataclass(frozen=True, slots=True)
class Sample:
    """One measurement. A figure's name ends in its unit, e.g. `us_per_event`."""

    piece: str
    workload: str
    system: str
    figures: Mapping[str, float]


@dataclass(frozen=True, slots=True)
class Value:
    """The median of a figure's rounds, with the lowest and the highest."""

    median: float
    low: float
    high: float
    rounds: int


@dataclass
class Results:
    """The samples of one or more sessions, and the machine of the measurement."""

    machine: dict[str, str]
    samples: list[Sample] = field(default_factory=list)
    skipped: dict[str, str] = field(default_factory=dict)

    def add(self, sample: Sample) -> None:
        self.samples.append(sample)

    def rows(self, piece: str) -> list[tuple[str, str]]:
        """Return the workloads and systems of a piece, in the order of their first samples."""
        return list(dict.fromkeys((s.workload, s.system) for s in self.samples if s.piece == piece))

    def pieces(self) -> list[str]:
        """Return the pieces that have samples."""
        return list(dict.fromkeys(s.piece for s in self.samples))

    def value(self, piece: str, workload: str, system: str, figure: str) -> Value | None:
        """Return a figure over all rounds; None if it was not measured."""
        found = [
            s.figures[figure]
            for s in self.samples
            if (s.piece, s.workload, s.system) == (piece, workload, system) and figure in s.figures
        ]
        return Value(median(found), min(found), max(found), len(found)) if found else None

    def figures(self, piece: str) -> list[str]:
        """Return the names of the figures of a piece, in their first order."""
        return list(dict.fromkeys(n for s in self.samples if s.piece == piece for n in s.figures))

    def dump(self) -> str:
        """Return JSON with a line for each sample."""
        samples = ",\n".join(json.dumps(asdict(sample)) for sample in self.samples)
        machine, skipped = json.dumps(self.machine), json.dumps(self.skipped)
        return f'{{"machine": {machine},\n"skipped": {skipped},\n"samples": [\n{samples}\n]}}\n'


def load(path: Path) -> Results:
    """Read what `dump` wrote. Raises OSError, ValueError, TypeError."""
    stored: dict[str, Any] = json.loads(path.read_text())
    samples = [Sample(**sample) for sample in stored["samples"]]
    return Results(stored["machine"], samples, stored["skipped"])


def merged(results: Sequence[Results]) -> Results:
    """Merge several sessions. Each fact of the machine has its first and its last value."""
    sessions = sorted(results, key=lambda each: each.machine.get("date", ""))
    names = dict.fromkeys(name for each in sessions for name in each.machine)
    whole = Results(
        {name: _named([each.machine.get(name, "") for each in sessions]) for name in names}
    )
    for each in results:
        whole.samples.extend(each.samples)
        whole.skipped.update(each.skipped)
    return whole


def _named(values: Sequence[str]) -> str:
    different = list(dict.fromkeys(value for value in values if value))
    return " to ".join([*different[:1], *different[1:][-1:]])


def markdown(results: Results, leads: Mapping[str, tuple[str, Sequence[str]]]) -> str:
    """Return the table of each piece.

    `leads`: a piece's most important figure, and the systems with which it is compared.
    """
    parts = [_table(results, piece, *leads.get(piece, ("", ()))) for piece in results.pieces()]
    machine = "; ".join(f"{name}: {value}" for name, value in results.machine.items())
    skipped = "".join(f"\nSkipped: {name} ({why})." for name, why in results.skipped.items())
    return f"{machine}.{skipped}\n\n" + "\n".join(parts)


def _table(results: Results, piece: str, lead: str, peers: Sequence[str]) -> str:
    figures = results.figures(piece)
    compared = [peer for peer in peers if any(s == peer for _, s in results.rows(piece))]
    heads = ["workload", "system", *(_heading(name) for name in figures)]
    heads += [f"÷ {peer}" for peer in compared]
    lines = [f"### {piece}", "", _row(heads), _row(["---", "---", *["---:"] * (len(heads) - 2)])]
    for workload, system in results.rows(piece):
        cells = [_cell(results.value(piece, workload, system, name)) for name in figures]
        for peer in compared:
            ratio = ratio_of(results, piece, workload, system, peer, lead)
            cells.append("" if ratio is None or system == peer else f"{ratio:.2f}")
        lines.append(_row([workload, system, *cells]))
    return "\n".join([*lines, ""])


def ratio_of(
    results: Results, piece: str, workload: str, system: str, peer: str, figure: str
) -> float | None:
    """Return a system's median as a multiple of a peer's.

    Returns None if one of the figures is missing or the peer's is 0.
    """
    ours = results.value(piece, workload, system, figure)
    theirs = results.value(piece, workload, peer, figure)
    return ours.median / theirs.median if ours and theirs and theirs.median else None


def summary(
    results: Results,
    piece: str,
    figures: Mapping[str, str],
    about: Mapping[str, str],
    ours: str,
    others: Sequence[str],
) -> str:
    """Return a table with a row for each workload and figure, and with the ratio to each system."""
    found = {system for _, system in results.rows(piece)}
    shown = [other for other in others if other in found]
    heads = ["", "figure", ours]
    for other in shown:
        heads += [other, f"{ours} ÷ {other}"]
    lines = [_row(heads), _row(["---", "---", *["---:"] * (len(heads) - 2)])]
    for workload in dict.fromkeys(workload for workload, _ in results.rows(piece)):
        name = ": ".join(filter(None, [workload, about.get(workload)]))
        for figure, title in figures.items():
            mine = results.value(piece, workload, ours, figure)
            if mine is None:
                continue
            cells = [name, title, _cell(mine)]
            for other in shown:
                ratio = ratio_of(results, piece, workload, ours, other, figure)
                cells += [_cell(results.value(piece, workload, other, figure))]
                cells += ["" if ratio is None else f"{ratio:.2f}"]
            lines.append(_row(cells))
            name = ""
    return "\n".join([*lines, ""])


_UNITS = {"us": "µs", "ms": "ms", "s": "s", "kib": "KiB", "mib": "MiB"}


def _heading(name: str) -> str:
    return " ".join(_UNITS.get(word, word) for word in name.split("_"))


def _row(cells: Iterable[str]) -> str:
    return f"| {' | '.join(cells)} |"


def _cell(value: Value | None) -> str:
    if value is None:
        return ""
    if value.low == value.high:
        return _number(value.median)
    return f"{_number(value.median)} ({_number(value.low)} to {_number(value.high)})"


def _number(value: float) -> str:
    if value == int(value) or abs(value) >= 100:
        return f"{value:,.0f}"
    return f"{value:.1f}" if abs(value) >= 10 else f"{value:.2f}"
