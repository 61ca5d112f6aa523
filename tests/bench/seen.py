"""What clients do, and what they observe. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class Clients:
    """Connections that read streams."""

    url: str
    # connection i reads path i; the paths repeat if there are more connections
    paths: Sequence[str]
    connections: int
    headers: Mapping[str, str] = field(default_factory=dict)
    method: str = "GET"
    body: str = ""
    per_second: int = 2000  # connections to open in a second
    max_connect_s: float = 60.0


@dataclass(frozen=True, slots=True)
class Window:
    """When to measure: for `duration_s`, after `warmup_s` with all connections open.

    `fresh`: measure from the first connection until `duration_s` after all are open; the latency is
    that of events sent after a client's request. `stop_after`: measure from the first connection
    until each connection has this many events.
    """

    duration_s: float = 3.0
    warmup_s: float = 1.0
    fresh: bool = False
    stop_after: int = 0


@dataclass(frozen=True, slots=True)
class Seen:
    """What the clients observed in the window, and what the watched processes used for it."""

    connected: int
    events: int
    window_s: float
    gaps: int
    repeats: int
    errors: int
    closed: int
    p50_ms: float
    p99_ms: float
    events_per_read: float
    cpu_s: dict[str, float]
    connect_s: float  # time until all connections were open
    connect_events: int  # events that were delivered until then
    connect_cpu_s: dict[str, float]
    rss_kib_first: dict[str, int]  # before the first connection
    rss_kib: dict[str, int]  # at the window's end

    def us_per_event(self, name: str) -> float:
        """Return the CPU time in µs of a watched process for each delivered event."""
        return self.cpu_s[name] * 1e6 / max(self.events, 1)

    def faults(self) -> dict[str, float]:
        """Return the numbers of gaps, repeats, errors and closed streams that are not 0."""
        found = {
            "gaps": self.gaps,
            "repeats": self.repeats,
            "errors": self.errors,
            "closed": self.closed,
        }
        return {name: value for name, value in found.items() if value}
