"""The results that the README shows, and the parts of documents that are made of them."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from bench.pieces import PIECES
from bench.plots import plot
from bench.results import Results, load, summary
from bench.session import OURS

FILE: Final = Path(__file__).with_name("figures.json")
# `before` is the code of the morning of 2026-11-22, before the work on speed.
OTHERS: Final = ("before", "nchan", "naive", "proxy")


def results() -> Results:
    """What was published last. Raises OSError, ValueError."""
    return load(FILE)


def table(piece: str) -> str:
    """The table of a piece for a document; for `machine`, where the figures are from."""
    found = results()
    if piece == "machine":
        return "; ".join(f"{name} {value}" for name, value in found.machine.items()) + ".\n"
    shown = PIECES[piece]
    return summary(found, piece, shown.table, shown.about, OURS, OTHERS)


def publish(found: Results, plots: Path) -> list[Path]:
    """Keep the results for the documents, and write their plots; return what was written."""
    FILE.write_text(found.dump())
    return [FILE, *write_plots(found, plots)]


def write_plots(found: Results, folder: Path) -> list[Path]:
    """Write bench-<piece>.svg for each piece that has a plot."""
    made = []
    for name in found.pieces():
        if name in PIECES and PIECES[name].plot:
            file = folder / f"bench-{name}.svg"
            file.write_text(plot(found, name, PIECES[name].plot, PIECES[name].about))
            made.append(file)
    return made
