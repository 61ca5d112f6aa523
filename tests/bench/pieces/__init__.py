"""The pieces of `make bench`: modules with NAME, LEAD, COMPARED, PLOT, TABLE, ABOUT and `run`."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Final

from bench.pieces import (
    automations,
    checks,
    edge,
    growth,
    joins,
    normalizer,
    path,
    saturation,
    startup,
    workflows,
)
from bench.session import Session


@dataclass(frozen=True, slots=True)
class Piece:
    """A part of the benchmarks that can be run alone."""

    run: Callable[[Session], Awaitable[None]]
    lead: str  # the name of its most important figure
    compared: Sequence[str]  # the systems with which the piece is compared
    plot: Mapping[str, str]  # the figures of its plot, with their titles; empty: no plot
    table: Mapping[str, str]  # the figures of its table in the documents, with their titles
    about: Mapping[str, str]  # a description of each workload


PIECES: Final = {
    each.NAME: Piece(each.run, each.LEAD, each.COMPARED, each.PLOT, each.TABLE, each.ABOUT)
    for each in (edge, path, normalizer, saturation, growth, joins, startup, automations, workflows)
} | {name: Piece(partial(checks.run, name), "", (), {}, {}, {}) for name in checks.names()}


def by_default(long: bool) -> list[str]:
    """Return the names of the pieces that run if the user names none."""
    return [name for name in PIECES if long or name not in checks.LONG]
