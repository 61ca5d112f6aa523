"""How much one request may read. After that it is answered with the events found so far."""

from __future__ import annotations

import time
from dataclasses import dataclass, field


@dataclass(slots=True)
class Allowance:
    """The events, bytes and seconds that are left. It is spent when one of the three is used up."""

    events: int
    size_bytes: int
    time_s: float
    _begun: float = field(default_factory=time.monotonic)

    def take(self, events: int, size_bytes: int) -> None:
        """Count what was read."""
        self.events -= events
        self.size_bytes -= size_bytes

    @property
    def spent(self) -> bool:
        """Whether the request must be answered now."""
        late = time.monotonic() - self._begun >= self.time_s
        return late or self.events <= 0 or self.size_bytes <= 0
