"""Collects events that are folded and not published yet."""

from __future__ import annotations

from dataclasses import dataclass, field

from penstock.tracing.spans import Span
from penstock_normalizer.fold.envelope import CanonicalEvent

# If this number of events or bytes is reached, the folded events are published before more frames
# are folded. While one run folds, all other runs of the process wait; folding 500 events takes
# about 20 ms.
MAX_EVENTS = 500
MAX_BYTES = 4 * 1024 * 1024


@dataclass(slots=True)
class ReadyEvents:
    """Folded events, each with the sequence of its frame in RAW."""

    events: list[tuple[CanonicalEvent, int]] = field(default_factory=list)
    # the times at which the events' frames were received
    received: list[str] = field(default_factory=list)
    size_bytes: int = 0
    # the spans of the tool calls that end with these events; none while tracing is off
    spans: tuple[Span, ...] = ()

    @property
    def is_full(self) -> bool:
        """Whether these events should be published before more frames are folded."""
        return len(self.events) >= MAX_EVENTS or self.size_bytes >= MAX_BYTES

    @property
    def ends_in_request(self) -> bool:
        """Whether the run waits for a decision after the last of these events."""
        return bool(self.events) and self.events[-1][0].type == "approval.requested"

    @property
    def last_raw_sequence(self) -> int:
        """The sequence in RAW of the last event's frame; 0 if there are no events."""
        return self.events[-1][1] if self.events else 0

    def add(self, event: CanonicalEvent, raw_sequence: int) -> None:
        """Add an event."""
        self.events.append((event, raw_sequence))
        self.size_bytes += len(event.body)

    def clear(self) -> None:
        """Remove all events, because they have been published."""
        self.events.clear()
        self.received.clear()
        self.size_bytes = 0
        self.spans = ()
