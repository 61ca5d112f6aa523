"""The pieces of `make bench`, each a module with NAME, LEAD, COMPARED and `run`."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Final

from bench.pieces import edge, path
from bench.session import Session


@dataclass(frozen=True, slots=True)
class Piece:
    """A part of the benchmarks that can be run alone."""

    run: Callable[[Session], Awaitable[None]]
    lead: str  # its most important figure
    compared: Sequence[str]  # the systems to which it is compared


PIECES: Final = {each.NAME: Piece(each.run, each.LEAD, each.COMPARED) for each in (edge, path)}
