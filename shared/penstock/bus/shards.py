"""Defines the record of the shards of RAW and EVENTS, and makes the ids of runs.

A run's id contains the run's shard (`subjects.shard_of`). So every process finds a run's streams
without a lookup, a run stays in its shard whatever the number of shards becomes, and two processes
can never choose different shards for one run.
"""

from __future__ import annotations

import asyncio
import secrets
import uuid
from collections.abc import AsyncIterator
from dataclasses import asdict, dataclass
from typing import Protocol, Self

import orjson
import uuid_utils

from penstock.bus.streams import MAX_SHARDS

# the bucket and the key of the record; without a record, there is one shard
BUCKET, KEY = "checkpoints", "shards"
NEW_SHARDS_S = 1.0  # seconds between two checks for new shards


@dataclass(frozen=True, slots=True)
class Shards:
    """The number of shards.

    `made` shards have streams, and all services read them. New runs are divided among the first
    `used` shards. `used` is smaller than `made` during a migration, and after the number of shards
    was reduced.
    """

    made: int = 1
    used: int = 1

    @classmethod
    def parse(cls, value: bytes) -> Self:
        """Parse a record that `dump` wrote; raise ValueError if it is not valid."""
        fields = orjson.loads(value)
        try:
            made, used = fields["made"], fields["used"]
            if not 1 <= used <= made <= MAX_SHARDS:
                raise ValueError(f"{used} used of {made} shards")
        except (KeyError, TypeError) as error:
            raise ValueError(f"not a record of shards: {error!r}") from error
        return cls(made, used)

    def dump(self) -> bytes:
        return orjson.dumps(asdict(self))


ONE = Shards()


class KnowsShards(Protocol):
    """The interface of `Bus` that `each_shard` needs."""

    @property
    def shards(self) -> Shards: ...


async def each_shard(bus: KnowsShards, first: int = 0) -> AsyncIterator[int]:
    """Yield the number of each shard from `first` on; wait for shards that are made later."""
    shard = first
    while True:
        while shard < bus.shards.made:
            yield shard
            shard += 1
        await asyncio.sleep(NEW_SHARDS_S)


def group_of(shard: int) -> str:
    """Return the group whose leases and checkpoints divide the partitions of a shard's RAW."""
    return f"normalizer-{shard}" if shard else "normalizer"


def shard_of_group(group: str) -> int | None:
    """Return the shard whose partitions this group divides; None for any other group."""
    name, _, shard = group.partition("-")
    if name != "normalizer" or (shard and not shard.isdigit()):
        return None
    return int(shard or 0)


def made_at_ms(run_id: str) -> int:
    """Return when an id from `new_run_id` was made, in milliseconds since 1970."""
    return uuid.UUID(run_id).int >> 80


def new_run_id(shard: int, unix_s: float) -> str:
    """Return a new id for a run that this shard will store. `unix_s` is the time by NATS's clock.

    The id of a run in shard 0 is a UUIDv7. Any other id is a UUIDv8 with the same time in
    milliseconds, the shard in 12 bits, and 62 random bits.
    """
    if shard == 0:
        return str(uuid_utils.uuid7(nanoseconds=round(unix_s * 1e9)))
    bits = (round(unix_s * 1000) << 80) | (8 << 76) | (shard << 64) | (2 << 62)
    return str(uuid.UUID(int=bits | secrets.randbits(62)))
