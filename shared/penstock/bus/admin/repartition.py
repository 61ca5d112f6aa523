"""Changes the number of partitions into which RAW divides the runs, while runs continue.

Every shard of RAW has its own partitions, and its own group of leases (`shards.group_of`).
"""

from __future__ import annotations

import asyncio
import logging

from penstock.bus import streams, subjects
from penstock.bus.admin.configuration import (
    CHECK_S,
    Configuration,
    Difference,
    change_lease,
    expected,
    partitions_of,
    update,
    with_partitions,
)
from penstock.bus.admin.ensure import shards_of
from penstock.bus.connection.jetstream import HasJetStream
from penstock.bus.errors import BusError, BusUnavailable
from penstock.bus.read import leader
from penstock.bus.shards import group_of
from penstock.bus.state.kv import Buckets, Entry
from penstock.bus.state.leases import note_of

log = logging.getLogger(__name__)

# Seconds between the change of RAW's transform and the release of surplus partitions. In this time,
# a replica that does not know the new transform may still become the leader.
SETTLE_S = 2.0


async def partitions(bus: HasJetStream, shard: int = 0) -> int:
    return partitions_of(await expected(bus, streams.raw_of(shard)))


async def at_least(bus: Buckets, count: int, shard: int = 0) -> int:
    """Let the normalizers share at least `count` partitions; return how many they share."""
    bucket, key = bus.bucket("leases"), f"{group_of(shard)}.parts"
    while True:
        entry = await bucket.get(key)
        if entry is not None and int(entry.value) >= count:
            return int(entry.value)
        revision = entry.revision if entry is not None else 0
        await bucket.update(key, b"%d" % count, revision)


async def repartition(bus: Buckets, count: int, timeout_s: float = 30.0) -> None:
    """Divide the runs of each shard into another number of partitions, while the runs continue.

    There are three steps. First the normalizers take the new partitions. Then RAW's transform
    changes. Finally the partitions that get no more frames are released, once the normalizers have
    read these partitions to the end. With this order, a normalizer reads every partition that has
    frames. Each step may be repeated, also after a crash between two steps. The frames of one run
    may be in two partitions; the normalizer keeps the order of the frames.

    Raises:
        BusError: a step failed or took longer than `timeout_s`. Call this function again.
    """
    async with change_lease(bus) as lease:
        for shard in range((await shards_of(bus)).made):
            await at_least(bus, count, shard)
            await _all_know(bus, group_of(shard), timeout_s)
            found = await expected(bus, streams.raw_of(shard))
            former = partitions_of(found)
            if former != count:
                if not lease.is_held:
                    raise BusUnavailable("the lease on changes was lost; begin again")
                await change_partitions(bus, found, count)
                log.info("%s has %d partitions now, not %d", found["name"], count, former)
            await _release_surplus(bus, shard, count, timeout_s)


async def change_partitions(bus: HasJetStream, found: Configuration, count: int) -> None:
    transform = found["subject_transform"]
    wanted = with_partitions(transform, count)
    change = Difference(found["name"], "subject_transform", transform, wanted)
    await update(bus, found, [change], {})


async def _all_know(bus: Buckets, group: str, timeout_s: float) -> None:
    """Wait until every normalizer with a lease uses the recorded number of partitions.

    After `timeout_s`, one normalizer that uses this number suffices.
    """
    bucket = bus.bucket("leases")
    members: list[Entry] = []
    others: list[str] = []
    try:
        async with asyncio.timeout(timeout_s):
            while True:
                parts = await bucket.get(f"{group}.parts")
                wanted = parts.value.decode() if parts is not None else ""
                members = await bucket.entries(f"{group}.member.*")
                others = [member.key for member in members if note_of(member) != wanted]
                if not others:
                    return
                await asyncio.sleep(CHECK_S)
    except TimeoutError:
        if len(others) == len(members):
            raise BusError(
                f"no normalizer takes up the new partitions ({', '.join(others)}): "
                "are they of an older version? Upgrade them first"
            ) from None
        # The normalizers that know the new number divide all partitions among themselves. So every
        # partition has a normalizer even if other normalizers do not know the new number.
        log.warning("these normalizers do not know of the partitions yet: %s", ", ".join(others))


async def _release_surplus(bus: Buckets, shard: int, count: int, timeout_s: float) -> None:
    bucket, key = bus.bucket("leases"), f"{group_of(shard)}.parts"
    entry = await bucket.get(key)
    if entry is None or int(entry.value) <= count:
        return
    await asyncio.sleep(SETTLE_S)
    surplus = range(count, int(entry.value))
    try:
        async with asyncio.timeout(timeout_s):
            while not all([await _is_read(bus, shard, partition) for partition in surplus]):
                await asyncio.sleep(CHECK_S)
    except TimeoutError:
        raise BusError(
            f"{streams.raw_of(shard)} has {count} partitions, but those from {count} on are not "
            "read to their end yet, and stay with the normalizers"
        ) from None
    if await bucket.update(key, b"%d" % count, entry.revision) is not None:
        log.info("the partitions %d to %d are released", surplus[0], surplus[-1])


async def _is_read(bus: Buckets, shard: int, partition: int) -> bool:
    pattern = subjects.raw_of_partition(partition)
    last = await leader.tail(bus, streams.raw_of(shard), pattern)
    if last is None:
        return True
    checkpoint = await bus.bucket("checkpoints").get(f"{group_of(shard)}.{partition}")
    return checkpoint is not None and int(checkpoint.value) >= last.sequence
