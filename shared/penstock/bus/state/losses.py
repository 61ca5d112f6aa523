"""Defines the data about the ends of streams and about messages lost there. Does no I/O.

KV `checkpoints` holds these values: `marks` (the last known sequence of each stream),
`lost.<stream>` (the losses of a stream) and `normalizer.<partition>` (how far a partition of RAW is
processed).
"""

from __future__ import annotations

import logging
from dataclasses import dataclass, field

import orjson

from penstock.bus import shards, streams
from penstock.bus.shards import ONE, Shards
from penstock.bus.state.kv import Entry

log = logging.getLogger(__name__)

BUCKET = "checkpoints"
MARKS, LOST = "marks", "lost."
# By stream: the number of sequences after the last known sequence that a repair makes unusable. The
# number is at least the number of messages that can be stored between two writes of the marks.
MARGIN = {streams.RAW: 10_000, streams.EVENTS: 10_000, streams.COMMANDS: 200}
_OTHERS = (
    *("KV_runs", "KV_sessions", "KV_claims", "KV_sent", "KV_pauses", "KV_approvals"),
    streams.AUDIT,
    streams.JOURNAL,
    streams.KEYS,
)


def is_numbered(stream: str) -> bool:
    return streams.kind_and_shard(stream)[0] in MARGIN


def repair_margin(stream: str) -> int:
    """Return how many sequences become unusable in a repair of a numbered stream."""
    return MARGIN[streams.kind_and_shard(stream)[0]]


def numbered_streams(count: int) -> tuple[str, ...]:
    """Return the streams in which no sequence may be used twice, for this number of shards."""
    sharded = ((streams.raw_of(shard), streams.events_of(shard)) for shard in range(1, count))
    return (*MARGIN, *(stream for pair in sharded for stream in pair))


def watched_streams(count: int) -> tuple[str, ...]:
    """Return the streams and buckets whose ends are recorded, for this number of shards."""
    return (*numbered_streams(count), *_OTHERS)


@dataclass(frozen=True, slots=True)
class Loss:
    """One loss of messages at the end of a stream, described by stream sequences."""

    stream: str
    last_left: int  # the last message that is left
    last_known: int  # the highest sequence that is known to have existed
    skipped_to: int  # no sequence after `last_left` up to `skipped_to` is used any more
    found_at: str  # RFC 3339, by NATS's clock

    def covers(self, sequence: int) -> bool:
        return self.last_left < sequence <= max(self.last_known, self.skipped_to)

    def __str__(self) -> str:
        return (
            f"{self.stream} came back with the messages up to {self.last_left} only, of at least "
            f"{self.last_known} (found at {self.found_at[:19]}Z)"
        )


@dataclass
class Snapshot:
    """The ends of the streams and the content of KV `checkpoints` at one moment. `own` has the
    sequences that this process knew before it read the streams' ends."""

    own: dict[str, int]  # the highest sequence that this process knows, by stream
    # the last sequence of each stream that answered
    last: dict[str, int] = field(default_factory=dict)
    now: str = ""  # NATS's time, RFC 3339
    marks: dict[str, int] = field(default_factory=dict)
    revision: int = 0  # the revision of the entry `marks`
    shards: Shards = ONE
    losses: dict[str, list[Loss]] = field(default_factory=dict)
    # the revision of each stream's list of losses
    revisions: dict[str, int] = field(default_factory=dict)

    def take(self, entry: Entry) -> None:
        """Add an entry of the bucket `checkpoints` to this snapshot.

        An entry that cannot be read is logged and ignored, and the next write replaces the entry.
        If the error were raised, every process that compares the streams would stop.
        """
        try:
            self._take(entry)
        except (LookupError, ValueError, TypeError, AttributeError) as error:
            log.error("KV %s, %s: cannot be read, ignored: %s", BUCKET, entry.key, error)

    def _take(self, entry: Entry) -> None:
        if entry.key == MARKS:
            self.revision = entry.revision
            for stream, last in orjson.loads(entry.value).items():
                self.mark(stream, int(last))
        elif entry.key.startswith(LOST):
            stream = entry.key.removeprefix(LOST)
            self.revisions[stream] = entry.revision
            self.losses[stream] = [
                Loss(
                    **{name: each[name] for name in Loss.__slots__}
                )  # not a later version's fields
                for each in orjson.loads(entry.value)
            ]
        elif entry.key == shards.KEY:
            self.shards = Shards.parse(entry.value)
        elif entry.value.isdigit():
            shard = shards.shard_of_group(entry.key.partition(".")[0])
            if shard is not None:
                self.mark(streams.raw_of(shard), int(entry.value))

    def mark(self, stream: str, sequence: int) -> None:
        self.marks[stream] = max(self.marks.get(stream, 0), sequence)

    def highest_known_sequence(self, stream: str) -> int:
        """Return the highest sequence of the stream that has existed or was skipped; 0 if none."""
        known = self.marks.get(stream, 0)
        if is_numbered(stream):
            known = max(known, self.own.get(stream, 0))
            # A process that ended during a repair may have skipped only a part of the sequences.
            known = max(known, *(loss.skipped_to for loss in self.losses.get(stream, ())), 0)
        return known

    @property
    def known_ends_of_short_streams(self) -> dict[str, int]:
        return {
            stream: known
            for stream, last in self.last.items()
            if (known := self.highest_known_sequence(stream)) > last
        }

    def new_marks(self) -> dict[str, int]:
        """Return all marks, updated to the streams' present ends; `self.marks` if none changed."""
        marks = {
            stream: max(last, self.marks.get(stream, 0)) if is_numbered(stream) else last
            for stream, last in self.last.items()
        }
        if all(self.marks.get(stream) == last for stream, last in marks.items()):
            return self.marks
        return {**self.marks, **marks}
