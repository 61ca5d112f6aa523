"""Limits how much one request may read.

When the limit is reached, the response contains only the events that were found until then.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, field


@dataclass(slots=True)
class Allowance:
    """Knows how many events and bytes a request may still read, and how long the request may take.

    The allowance is spent when no events or no bytes are left, or `time_s` seconds after the
    request began.
    """

    events: int
    size_bytes: int
    time_s: float
    _begun: float = field(default_factory=time.monotonic)

    def spend(self, events: int, size_bytes: int) -> None:
        """Subtract the events and bytes that were read."""
        self.events -= events
        self.size_bytes -= size_bytes

    @property
    def is_spent(self) -> bool:
        """Whether the allowance is spent, so that the request must be answered now."""
        late = time.monotonic() - self._begun >= self.time_s
        return late or self.events <= 0 or self.size_bytes <= 0
