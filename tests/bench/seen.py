"""What clients do, and what they have seen. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class Clients:
    """Connections that read streams."""

    url: str
    paths: Sequence[str]  # connection i reads path i, and so on from the first
    connections: int
    headers: Mapping[str, str] = field(default_factory=dict)
    method: str = "GET"
    body: str = ""
    per_second: int = 2000  # connections that are opened
    max_connect_s: float = 60.0


@dataclass(frozen=True, slots=True)
class Window:
    """When it is measured: for `duration_s`, after `warmup_s` with all connections open.

    `fresh`: from the first connection on, until `duration_s` after all are open; the latency is
    that of events sent since a client's request. `stop_after`: from the first connection on, until
    each has so many events.
    """

    duration_s: float = 3.0
    warmup_s: float = 1.0
    fresh: bool = False
    stop_after: int = 0


@dataclass(frozen=True, slots=True)
class Seen:
    """What the clients have seen in the window, and what the watched processes took for it."""

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
    connect_s: float  # until all connections were open
    connect_events: int  # delivered until then
    connect_cpu_s: dict[str, float]
    rss_kib_first: dict[str, int]  # before the first connection
    rss_kib: dict[str, int]  # at the window's end

    def us_per_event(self, name: str) -> float:
        """CPU of a watched process for each event that was delivered."""
        return self.cpu_s[name] * 1e6 / max(self.events, 1)

    def faults(self) -> dict[str, float]:
        """Gaps, repeats, errors and streams that were closed, where there were some."""
        found = {
            "gaps": self.gaps,
            "repeats": self.repeats,
            "errors": self.errors,
            "closed": self.closed,
        }
        return {name: value for name, value in found.items() if value}
