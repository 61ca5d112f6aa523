"""How far a partition is done, and how far EVENTS reached then.

The checkpoint says up to which frame of RAW everything is done. Should EVENTS come back without its
end, some of that is undone, and the partition must be read again from where EVENTS still had
everything. So some earlier checkpoints are kept, each with the last sequence of EVENTS at that
time: every event of the frames up to `raw` stands in EVENTS at or before `events`.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

import orjson

from penstock.bus import Loss
from penstock.bus.streams import EVENTS

MAX_POINTS = 48


@dataclass(slots=True)
class Past:
    """Earlier checkpoints of a partition, the oldest first; and which losses it has dealt with."""

    points: list[tuple[int, int]] = field(default_factory=list)  # in RAW, in EVENTS
    settled: list[str] = field(default_factory=list)  # losses, by stream and time

    @classmethod
    def parse(cls, value: bytes) -> Past:
        """Of what `dump` gave."""
        fields = orjson.loads(value)
        return cls([(raw, events) for raw, events in fields["points"]], fields["settled"])

    def dump(self) -> bytes:
        """As JSON."""
        return orjson.dumps({"points": self.points, "settled": self.settled})

    def add(self, raw: int, events: int) -> None:
        """One more. Of the older half every second one goes when there are too many."""
        self.points.append((raw, events))
        if len(self.points) > MAX_POINTS:
            half = MAX_POINTS // 2
            self.points[:half] = self.points[:half:2]

    def unsettled(self, losses: Iterable[Loss]) -> list[Loss]:
        """Those of the losses that the partition has not dealt with."""
        return [loss for loss in losses if _name(loss) not in self.settled]

    def settle(self, losses: Iterable[Loss]) -> None:
        """They are dealt with."""
        self.settled += [_name(loss) for loss in losses]

    def go_back(self, losses: Iterable[Loss]) -> int | None:
        """The frame of RAW after which to read again; None where no event was lost."""
        stands = min((loss.stands for loss in losses if loss.stream == EVENTS), default=None)
        if stands is None:
            return None
        self.points = [point for point in self.points if point[1] <= stands]
        return self.points[-1][0] if self.points else 0


def _name(loss: Loss) -> str:
    return f"{loss.stream} {loss.found_at}"
