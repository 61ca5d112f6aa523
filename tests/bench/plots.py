"""Plot the results: one file a piece, one panel a workload, one bar a system. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from bench.results import Results
from support.drive.plot import Bar, bars

COLOURS: Final = {
    "penstock": "#1f77b4",
    "before": "#9ec5e8",
    "nchan": "#2ca02c",
    "centrifugo": "#9467bd",
    "naive": "#d62728",
    "proxy": "#ff7f0e",
}


def plot(results: Results, piece: str, figures: Mapping[str, str], about: Mapping[str, str]) -> str:
    """Return the SVG of `figures`, a map of names to titles; `about` describes each workload."""
    panels = {}
    for workload in dict.fromkeys(workload for workload, _ in results.rows(piece)):
        for figure, title in figures.items():
            found = [
                Bar(system, value.median, value.low, value.high)
                for each, system in results.rows(piece)
                if each == workload
                and (value := results.value(piece, workload, system, figure)) is not None
            ]
            if found:
                panels[", ".join(filter(None, [workload, about.get(workload), title]))] = found
    return bars(panels, COLOURS)
