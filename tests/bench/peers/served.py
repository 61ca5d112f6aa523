"""A running edge: where it serves streams, and how it gets events."""

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
    """An edge that runs until its context ends."""

    url: str
    pids: Sequence[int]
    path: Callable[[str, str], str]  # run id and dialect to the path of the run's stream
    replay_path: Callable[[str, str], str]  # the same for the stream from the run's start
    plan: Plan  # the number of runs and the rate are to be filled in
    headers: Mapping[str, str] = field(default_factory=dict)
    broker_pids: Sequence[int] = ()
    python: str = sys.executable  # the interpreter of the publisher
    dialects: frozenset[str] = frozenset({"canonical"})
    # The most events a second that the edge can take; more would measure an overloaded edge.
    max_events_per_s: float = inf
    max_connections: int = 100_000
