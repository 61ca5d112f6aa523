"""Keeps a partition's earlier checkpoints, each with the last sequence that EVENTS had then. Pure.

A checkpoint is the position in RAW up to which all events are published. If a failure makes EVENTS
lose its last events, RAW must be read again from a frame before the lost events. So the history
keeps pairs `(raw, events)`: all events of the frames up to `raw` have stream sequences up to
`events`.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

import orjson

from penstock.bus import Loss

MAX_POINTS = 48


@dataclass(slots=True)
class CheckpointHistory:
    """Earlier checkpoints, the oldest first, and the losses that the partition has handled."""

    points: list[tuple[int, int]] = field(default_factory=list)  # sequences in RAW and in EVENTS
    settled: list[str] = field(default_factory=list)  # the handled losses, each as stream and time

    @classmethod
    def parse(cls, value: bytes) -> CheckpointHistory:
        """Return the history that `dump` has written. Raises ValueError, KeyError, TypeError."""
        fields = orjson.loads(value)
        return cls([(raw, events) for raw, events in fields["points"]], fields["settled"])

    def dump(self) -> bytes:
        """Return the history as JSON."""
        return orjson.dumps({"points": self.points, "settled": self.settled})

    def add(self, raw: int, events: int) -> None:
        """Add a checkpoint; if there are too many, remove every second checkpoint of the older
        half."""
        self.points.append((raw, events))
        if len(self.points) > MAX_POINTS:
            half = MAX_POINTS // 2
            self.points[:half] = self.points[:half:2]

    def unsettled(self, losses: Iterable[Loss]) -> list[Loss]:
        """Return the losses that the partition has not handled yet."""
        return [loss for loss in losses if _name(loss) not in self.settled]

    def record_losses(self, losses: Iterable[Loss]) -> None:
        """Record that the partition has handled these losses."""
        self.settled += [_name(loss) for loss in losses]

    def go_back(self, losses: Iterable[Loss]) -> int | None:
        """Return the position in RAW after which to read again; None if `losses` is empty.

        The losses must be losses of EVENTS. The checkpoints after this position are removed.
        """
        last_left = min((loss.last_left for loss in losses), default=None)
        if last_left is None:
            return None
        self.points = [point for point in self.points if point[1] <= last_left]
        return self.points[-1][0] if self.points else 0


def _name(loss: Loss) -> str:
    return f"{loss.stream} {loss.found_at}"
