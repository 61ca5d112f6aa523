"""One session of measurements: its options, its running systems, and its results."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from bench import peers
from bench.peers.served import NotHere, Served
from bench.results import Results, Sample

OURS = "penstock"


@dataclass(frozen=True, slots=True)
class Options:
    """The options of the command line."""

    rounds: int
    long: bool
    systems: frozenset[str]  # empty: all
    codes: dict[str, str]  # name and interpreter of each other version of Penstock
    workloads: frozenset[str]  # empty: all workloads of the piece


@dataclass
class Session:
    """The options, the results and the folder that a piece works with."""

    options: Options
    results: Results
    folder: Path
    _folders: int = field(default=0)

    def codes(self) -> dict[str, str]:
        """Return the measured versions of Penstock: name to interpreter."""
        every = {OURS: sys.executable, **self.options.codes}
        return {name: python for name, python in every.items() if self.takes(name)}

    def takes(self, system: str) -> bool:
        """Return whether the options select this system."""
        return not self.options.systems or system in self.options.systems

    def wants(self, workload: str) -> bool:
        """Return whether the options select this workload."""
        return not self.options.workloads or workload in self.options.workloads

    def new_folder(self, name: str) -> Path:
        """Make and return an empty folder."""
        self._folders += 1
        made = self.folder / f"{self._folders}-{name}"
        made.mkdir(parents=True)
        return made

    def add(self, piece: str, workload: str, system: str, **figures: float) -> None:
        """Store the figures of one round, and print them."""
        self.results.add(Sample(piece, workload, system, figures))
        shown = "  ".join(f"{name} {value:,.2f}" for name, value in figures.items())
        print(f"  {piece}.{workload:14} {system:10} {shown}", flush=True)

    def skip(self, system: str, error: NotHere) -> None:
        """Note and print that a peer is not measured."""
        if system not in self.results.skipped:
            print(f"  skipped: {system}: {error}", flush=True)
        self.results.skipped[system] = str(error)


Start = Callable[[Path], AbstractAsyncContextManager[Served]]


def edges(session: Session) -> dict[str, Start]:
    """Return the edges to measure, by name."""
    ours: dict[str, Start] = {
        name: partial(peers.penstock.edge, python=python)
        for name, python in session.codes().items()
    }
    return ours | {name: start for name, start in peers.EDGES.items() if session.takes(name)}


class Fleet:
    """Edges that start at their first use and then keep running."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self._starts = edges(session)
        self._up: dict[str, Served] = {}
        self._stack = AsyncExitStack()

    async def __aenter__(self) -> Fleet:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._stack.aclose()

    def names(self, turn: int) -> Sequence[str]:
        """Return the names in another order each turn.

        Otherwise, always the same system would follow the one with the heavy load.
        """
        names = list(self._starts)
        at = turn % len(names) if names else 0
        return names[at:] + names[:at]

    async def get(self, name: str) -> Served | None:
        """Return the running edge; None if it is not installed on this machine."""
        if name not in self._starts:
            return None
        if name not in self._up:
            try:
                self._up[name] = await self._stack.enter_async_context(self.start(name))
            except NotHere as error:
                self._session.skip(name, error)
                del self._starts[name]
                return None
        return self._up[name]

    def start(self, name: str) -> AbstractAsyncContextManager[Served]:
        """Return a new edge of this name. To enter it raises NotHere if it is not installed."""
        return self._starts[name](self._session.new_folder(name))
