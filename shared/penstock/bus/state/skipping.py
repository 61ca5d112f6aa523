"""Makes sequences of a stream unusable: fills the stream with empty messages and deletes them.

A sequence that a process remembers then still belongs to the same message, or to no message.
"""

from __future__ import annotations

import asyncio

from penstock.bus import streams, subjects
from penstock.bus.errors import FenceConflict
from penstock.bus.messages import Message
from penstock.bus.write.fence import Writes
from penstock.bus.write.publisher import MAX_BATCH

EXPECTED_LAST = "Nats-Expected-Last-Sequence"
# The run id in the subjects of fillers. This run id is no UUID, so no service takes a filler for a
# message of a run.
NOBODY = "skipped"
# For each kind of stream, two subjects of its fillers: the subject to publish to in shard 0, and
# the subject under which the stream stores the filler.
_FILLERS = {
    streams.RAW: (subjects.raw(NOBODY, "penstock"), subjects.raw_stored(NOBODY, "penstock")),
    streams.EVENTS: (subjects.event("system.skipped", NOBODY),) * 2,
    streams.COMMANDS: (subjects.command("penstock", "skipped", NOBODY),) * 2,
}


def _filler(stream: str) -> tuple[str, str]:
    """Return the subject to which a stream's fillers are published, and their stored subject."""
    kind, shard = streams.kind_and_shard(stream)
    subject, stored = _FILLERS[kind]
    return subjects.to_shard(shard, subject), stored


async def ends_at(bus: Writes, stream: str, last: int) -> bool:
    """Publish a first filler and return True if the stream ends at this sequence; else False."""
    subject, _ = _filler(stream)
    try:
        await bus.publisher.publish(Message(subject, b"", {EXPECTED_LAST: str(last)}))
    except FenceConflict:
        return False
    return True


async def skip(bus: Writes, stream: str, last: int, to: int) -> None:
    """Fill the stream from the sequence after `last` up to `to`, and delete the fillers."""
    subject, stored = _filler(stream)
    publisher = bus.publisher
    while last < to:
        batch = [Message(subject, b"", {}) for _ in range(min(MAX_BATCH, to - last))]
        if len(batch) == 1 or stream == streams.COMMANDS:  # a work queue takes no batches
            last = max(await asyncio.gather(*map(publisher.publish, batch)))
        else:
            last = await publisher.publish_batch(batch)
    await bus.jetstream.api(f"STREAM.PURGE.{stream}", {"filter": stored})
