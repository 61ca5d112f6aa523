"""The pieces of `make bench`, each a module with NAME, LEAD, COMPARED and `run`; and the tests."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Final

from bench.pieces import checks, edge, growth, joins, normalizer, path, saturation, startup
from bench.session import Session


@dataclass(frozen=True, slots=True)
class Piece:
    """A part of the benchmarks that can be run alone."""

    run: Callable[[Session], Awaitable[None]]
    lead: str  # its most important figure
    compared: Sequence[str]  # the systems to which it is compared


PIECES: Final = {
    each.NAME: Piece(each.run, each.LEAD, each.COMPARED)
    for each in (edge, path, normalizer, saturation, growth, joins, startup)
} | {name: Piece(partial(checks.run, name), "", ()) for name in checks.names()}


def by_default(long: bool) -> list[str]:
    """The pieces that run when none is named."""
    return [name for name in PIECES if long or name not in checks.LONG]
