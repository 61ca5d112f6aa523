"""The results in the README, and the generated parts of documents that show them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Final

from bench.pieces import PIECES
from bench.plots import plot
from bench.results import Results, Sample, load, summary
from bench.session import OURS

FILE: Final = Path(__file__).with_name("figures.json")
PLOTTED: Final = frozenset({"edge", "path", "growth"})  # the pieces whose plots are in documents
# `before` is f42d6159, before decision 0370; of growth and joins, the code before work on speed.
OTHERS: Final = ("before", "nchan", "centrifugo", "naive", "proxy")


def ordered(found: Results) -> Results:
    """Return the samples in the order of pieces, workloads and systems."""
    systems = (OURS, *OTHERS)

    def place(sample: Sample) -> tuple[int, int, int]:
        workloads = list(PIECES[sample.piece].about) if sample.piece in PIECES else []
        return (
            _index(list(PIECES), sample.piece),
            _index(workloads, sample.workload),
            _index(systems, sample.system),
        )

    return replace(found, samples=sorted(found.samples, key=place))


def _index(names: Sequence[str], name: str) -> int:
    return names.index(name) if name in names else len(names)


def results() -> Results:
    """Return the results that were published last. Raises OSError, ValueError."""
    return load(FILE)


def table(piece: str) -> str:
    """Return the table of a piece for a document.

    For `machine`, return where the figures were measured.
    """
    found = results()
    if piece == "machine":
        return "; ".join(f"{name} {value}" for name, value in found.machine.items()) + ".\n"
    shown = PIECES[piece]
    return summary(found, piece, shown.table, shown.about, OURS, OTHERS)


def publish(found: Results, plots: Path) -> list[Path]:
    """Store the results for the documents and write their plots; return the written files."""
    FILE.write_text(found.dump())
    shown = [sample for sample in found.samples if sample.piece in PLOTTED]
    return [FILE, *write_plots(replace(found, samples=shown), plots)]


def write_plots(found: Results, folder: Path) -> list[Path]:
    """Write bench-<piece>.svg for each piece that has a plot."""
    made = []
    for name in found.pieces():
        if name in PIECES and PIECES[name].plot:
            file = folder / f"bench-{name}.svg"
            file.write_text(plot(found, name, PIECES[name].plot, PIECES[name].about))
            made.append(file)
    return made
