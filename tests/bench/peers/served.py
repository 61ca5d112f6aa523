"""An edge that is up: where it serves streams, and how events get to it."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from math import inf

from bench.publisher import Plan


class NotHere(Exception):
    """A peer is not installed on this machine; the message says what is missing."""


@dataclass(frozen=True, slots=True)
class Served:
    """An edge, up until its context ends."""

    url: str
    pids: Sequence[int]
    path: Callable[[str, str], str]  # of a run in a dialect
    replay_path: Callable[[str, str], str]  # the same, from the run's start
    plan: Plan  # with the number of runs and the rate to be filled in
    headers: Mapping[str, str] = field(default_factory=dict)
    broker_pids: Sequence[int] = ()
    python: str = sys.executable  # what the publisher runs on
    dialects: frozenset[str] = frozenset({"canonical"})
    # What it can take: more would measure how it is overrun.
    max_events_per_s: float = inf
    max_connections: int = 100_000
