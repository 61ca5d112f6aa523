"""Stores a partition's checkpoint: the position in RAW up to which all events are published."""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Iterable
from dataclasses import dataclass, field

import orjson

from penstock.bus import Bus, BusError, BusUnavailable, Entry, Loss, streams
from penstock.bus.shards import group_of

MAX_POINTS = 48
# A checkpoint that is fewer than NEAR frames behind is written after OLD times the usual interval.
NEAR, OLD = 500, 5


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
        return orjson.dumps({"points": self.points, "settled": self.settled})

    def add(self, raw: int, events: int) -> None:
        """Add a checkpoint; if there are too many, remove every second one of the older half."""
        self.points.append((raw, events))
        if len(self.points) > MAX_POINTS:
            half = MAX_POINTS // 2
            self.points[:half] = self.points[:half:2]

    def unsettled(self, losses: Iterable[Loss]) -> list[Loss]:
        return [loss for loss in losses if _name(loss) not in self.settled]

    def record_losses(self, losses: Iterable[Loss]) -> None:
        self.settled += [_name(loss) for loss in losses]

    def go_back(self, losses: Iterable[Loss]) -> int | None:
        """Return the position in RAW after which to read again, None without losses of EVENTS. The
        checkpoints after this position are removed."""
        last_left = min((loss.last_left for loss in losses), default=None)
        if last_left is None:
            return None
        self.points = [point for point in self.points if point[1] <= last_left]
        return self.points[-1][0] if self.points else 0


def _name(loss: Loss) -> str:
    return f"{loss.stream} {loss.found_at}"


log = logging.getLogger(__name__)

REMEMBER_S = 10.0  # seconds between two additions to the history


class Checkpoint:
    """A partition's checkpoint and its history, in KV `checkpoints`.

    A normalizer that has lost the partition may still write, until it notices the loss. So each
    write is a compare-and-set, which prevents such a normalizer from moving the checkpoint back.
    """

    def __init__(self, bus: Bus, shard: int, partition: int) -> None:
        self._bus = bus
        self._bucket = bus.bucket("checkpoints")
        self._partition = partition
        self._events = streams.events_of(shard)
        self._key = f"{group_of(shard)}.{partition}"
        self._history_key = f"{self._key}.past"
        self._revision = 0
        self._history = CheckpointHistory()
        self._history_revision = 0
        self._remembered_at = 0.0
        self._written_at = -math.inf
        self.position = 0  # the stored checkpoint: all frames of RAW up to this position are done

    async def read(self) -> None:
        """Read the stored checkpoint. A record that is not a number counts as 0. RAW is then read
        from its start, and the fence of EVENTS refuses events that are published already."""
        entry = await self._bucket.get(self._key)
        if entry is None:
            return
        self._revision = entry.revision
        try:
            self.position = int(entry.value)
        except ValueError:
            log.error(
                "partition %d: its checkpoint is no number, so RAW is read from the start",
                self._partition,
            )
            self.position = 0

    async def go_back(self) -> list[Loss]:
        """If EVENTS has lost events, move the checkpoint back to a frame before these events.
        Returns the losses, of all streams, that the partition has not handled yet."""
        entry = await self._bucket.get(self._history_key)
        if entry is not None:
            self._take_history(entry)
        elif not self.position:
            # No normalizer has worked on this partition before. So the known losses have not hit
            # the partition, and are recorded as handled.
            self._history.record_losses(self._bus.continuity.all)
        losses = self._history.unsettled(self._bus.continuity.all)
        back = self._history.go_back(loss for loss in losses if loss.stream == self._events)
        if back is not None and back < self.position:
            log.warning(
                "partition %d: EVENTS has lost events of later frames: RAW is read again from %d, "
                "and not from %d",
                self._partition,
                back + 1,
                self.position + 1,
            )
            value = str(back).encode()
            revision = await self._bucket.update(self._key, value, self._revision)
            if revision is None:
                raise BusUnavailable("another normalizer works on the partition, too")
            self.position, self._revision = back, revision
        return losses

    async def record_losses(self, losses: list[Loss], done_up_to: int) -> None:
        self._history.record_losses(losses)
        await self._remember(done_up_to)

    async def write_if_far(self, done_up_to: int, every_s: float) -> None:
        """Write the checkpoint, unless it is near and young. Few frames are soon read again, and a
        slow run would otherwise pay for a write of each partition with every few frames."""
        now = time.monotonic()
        is_near = done_up_to < self.position + NEAR and now < self._written_at + OLD * every_s
        if done_up_to > self.position and not is_near:
            self._written_at = now
            await self.write(done_up_to)

    async def write(self, done_up_to: int) -> None:
        """Record that all frames up to `done_up_to` are done, unless a later position is stored."""
        if done_up_to <= self.position:
            return
        try:
            value = str(done_up_to).encode()
            revision = await self._bucket.update(self._key, value, self._revision)
            if revision is None:
                await self.read()  # another normalizer has written the checkpoint
            else:
                self.position, self._revision = done_up_to, revision
        except BusError as error:
            log.warning("partition %d: its checkpoint is not written: %s", self._partition, error)

    async def remember_periodically(self, done_up_to: int) -> None:
        """Add the checkpoint to the history if it lacks it, at most every `REMEMBER_S` seconds."""
        if time.monotonic() < self._remembered_at + REMEMBER_S:
            return
        if self._history.points and self._history.points[-1][0] >= done_up_to:
            return
        try:
            await self._remember(done_up_to)
        except BusError as error:
            log.debug("partition %d: its history is not written: %s", self._partition, error)

    async def _remember(self, done_up_to: int) -> None:
        self._remembered_at = time.monotonic()
        # `done_up_to` was read before this request. So at this time, EVENTS has the events of all
        # frames up to `done_up_to`, unless it has lost its end and nobody has noticed this yet.
        state = (await self._bus.api(f"STREAM.INFO.{self._events}"))["state"]
        if state["last_seq"] >= self._bus.continuity.highest(self._events):
            self._history.add(done_up_to, state["last_seq"])
        value = self._history.dump()
        revision = await self._bucket.update(self._history_key, value, self._history_revision)
        if revision is not None:
            self._history_revision = revision
            return
        # another normalizer has written the history
        entry = await self._bucket.get(self._history_key)
        if entry is not None:
            self._take_history(entry)

    def _take_history(self, entry: Entry) -> None:
        """Use the stored history; if it cannot be read, use an empty one. After a loss in EVENTS,
        an empty history makes the partition read all of RAW again."""
        self._history_revision = entry.revision
        try:
            self._history = CheckpointHistory.parse(entry.value)
        except (KeyError, TypeError, ValueError):
            log.error(
                "partition %d: its history of checkpoints cannot be read, and is replaced",
                self._partition,
            )
            self._history = CheckpointHistory()
