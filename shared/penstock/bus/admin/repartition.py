"""Changes the number of partitions into which RAW divides the runs, while runs continue."""

from __future__ import annotations

import asyncio
import logging

from penstock.bus import streams, subjects
from penstock.bus.admin.configuration import (
    LOOK_S,
    Difference,
    alone,
    expected,
    partitions_of,
    update,
    with_partitions,
)
from penstock.bus.connection.jetstream import HasJetStream
from penstock.bus.errors import BusError, BusUnavailable
from penstock.bus.read import leader
from penstock.bus.state.kv import Buckets, Entry
from penstock.bus.state.leases import note_of

log = logging.getLogger(__name__)

GROUP = "normalizer"  # the group whose members divide the partitions
# Seconds to wait after the change of RAW's transform: a replica that does not know the new
# transform may still become the leader.
SETTLE_S = 2.0


async def partitions(bus: HasJetStream) -> int:
    """Return the number of partitions into which RAW divides the runs now.

    Raises:
        BusError: the stream RAW does not exist, or the server does not answer.
    """
    return partitions_of(await expected(bus, streams.RAW))


async def at_least(bus: Buckets, count: int) -> int:
    """Let the normalizers divide `count` partitions or more; return the number that they divide.

    Raises:
        BusError: the bucket of leases cannot be read or written.
    """
    bucket = bus.bucket("leases")
    while True:
        entry = await bucket.get(f"{GROUP}.parts")
        if entry is not None and int(entry.value) >= count:
            return int(entry.value)
        revision = entry.revision if entry is not None else 0
        await bucket.update(f"{GROUP}.parts", b"%d" % count, revision)


async def repartition(bus: Buckets, count: int, timeout_s: float = 30.0) -> None:
    """Divide the runs into another number of partitions, while the runs continue.

    There are three steps. First the normalizers take the new partitions. Then RAW's transform
    changes. Finally the partitions that get no more frames are released, once the normalizers have
    read these partitions to the end. With this order, a normalizer reads every partition that has
    frames. Each step may be repeated, also after a crash between two steps. The frames of one run
    may be in two partitions; the normalizer keeps the order of the frames.

    Raises:
        BusError: a step failed or took longer than `timeout_s`. Call this function again.
    """
    async with alone(bus) as lease:
        await at_least(bus, count)
        await _all_know(bus, timeout_s)
        found = await expected(bus, streams.RAW)
        former = partitions_of(found)
        if former != count:
            transform = found["subject_transform"]
            wanted = with_partitions(transform, count)
            change = Difference(streams.RAW, "subject_transform", transform, wanted)
            if not lease.held:
                raise BusUnavailable("the lease on changes was lost; begin again")
            await update(bus, found, [change], {})
            log.info("RAW has %d partitions now, not %d", count, former)
        await _release_surplus(bus, count, timeout_s)


async def _all_know(bus: Buckets, timeout_s: float) -> None:
    """Wait until every normalizer with a lease divides the recorded number of partitions.

    After `timeout_s` it suffices that one normalizer does.
    """
    bucket = bus.bucket("leases")
    members: list[Entry] = []
    others: list[str] = []
    try:
        async with asyncio.timeout(timeout_s):
            while True:
                parts = await bucket.get(f"{GROUP}.parts")
                wanted = parts.value.decode() if parts is not None else ""
                members = await bucket.entries(f"{GROUP}.member.*")
                others = [member.key for member in members if note_of(member) != wanted]
                if not others:
                    return
                await asyncio.sleep(LOOK_S)
    except TimeoutError:
        if len(others) == len(members):
            raise BusError(
                f"no normalizer takes up the new partitions ({', '.join(others)}): "
                "are they of an older version? Upgrade them first"
            ) from None
        # The normalizers that know the new number divide all partitions among themselves. So every
        # partition has a normalizer even if other normalizers do not know the new number.
        log.warning("these normalizers do not know of the partitions yet: %s", ", ".join(others))


async def _release_surplus(bus: Buckets, count: int, timeout_s: float) -> None:
    bucket = bus.bucket("leases")
    entry = await bucket.get(f"{GROUP}.parts")
    if entry is None or int(entry.value) <= count:
        return
    await asyncio.sleep(SETTLE_S)
    surplus = range(count, int(entry.value))
    try:
        async with asyncio.timeout(timeout_s):
            while not all([await _is_read(bus, partition) for partition in surplus]):
                await asyncio.sleep(LOOK_S)
    except TimeoutError:
        raise BusError(
            f"RAW has {count} partitions, but those from {count} on are not read to their end "
            "yet, and stay with the normalizers"
        ) from None
    if await bucket.update(f"{GROUP}.parts", b"%d" % count, entry.revision) is not None:
        log.info("the partitions %d to %d are released", surplus[0], surplus[-1])


async def _is_read(bus: Buckets, partition: int) -> bool:
    last = await leader.tail(bus, streams.RAW, subjects.raw_of_partition(partition))
    if last is None:
        return True
    checkpoint = await bus.bucket("checkpoints").get(f"{GROUP}.{partition}")
    return checkpoint is not None and int(checkpoint.value) >= last.sequence
