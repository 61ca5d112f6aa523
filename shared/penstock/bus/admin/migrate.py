"""Changes streams for the operator, while runs continue: ages, sizes, replicas, partitions, shards.

Every shard of RAW has its own partitions, and its own group of leases (`shards.group_of`). A run's
id contains its shard, so a run never moves, and another number of shards concerns only new runs.
"""

from __future__ import annotations

import asyncio
import logging

from penstock.bus import shards, streams, subjects
from penstock.bus.admin.configuration import (
    CHECK_S,
    Configuration,
    Difference,
    change_lease,
    configuration,
    declared,
    declared_shards,
    differences,
    expected,
    partitions_of,
    update,
    with_partitions,
)
from penstock.bus.admin.ensure import ensure_all, mark_shards, shards_of
from penstock.bus.connection.jetstream import HasJetStream
from penstock.bus.errors import BusError, BusUnavailable
from penstock.bus.read import leader
from penstock.bus.shards import Shards, group_of
from penstock.bus.state.kv import Buckets, Entry
from penstock.bus.state.leases import note_of
from penstock.bus.streams import Retention

log = logging.getLogger(__name__)

# Seconds between the change of RAW's transform and the release of surplus partitions. In this time,
# a replica that does not know the new transform may still become the leader.
RELEASE_S = 2.0
# Seconds to wait before new runs use the new shards. Every process reads the record of shards every
# five seconds. So every edge knows of the shards before another edge starts a run there.
SETTLE_S = 12.0


async def plan(bus: Buckets, retention: Retention) -> list[Difference]:
    """Return the changes that `apply` would make, where the streams differ from these settings."""
    return [
        difference
        for wanted in declared(retention, (await shards_of(bus)).made)
        if (found := await configuration(bus, wanted["name"])) is not None
        for difference in differences(wanted, found, streams.RETENTION)
        if difference.wanted != -1  # without a limit in the settings, the stream keeps its limit
    ]


async def apply(bus: Buckets, retention: Retention) -> list[Difference]:
    """Give all streams the ages, sizes and replicas of these settings; return the changes."""
    async with change_lease(bus):
        changes = await plan(bus, retention)
        for name in dict.fromkeys(change.stream for change in changes):
            found = await expected(bus, name)
            await update(bus, found, [each for each in changes if each.stream == name], {})
    return changes


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
    may be in two partitions; the normalizer keeps the order of the frames. Raises BusError if a
    step failed or took longer than `timeout_s`; then call this function again.
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
    """Wait until every normalizer with a lease uses the recorded number of partitions. After
    `timeout_s`, one normalizer that uses this number suffices."""
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
    await asyncio.sleep(RELEASE_S)
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


async def reshard(
    bus: Buckets, count: int, timeout_s: float = 30.0, settle_s: float = SETTLE_S
) -> Shards:
    """Divide new runs among this number of shards; return the record of shards.

    The streams of new shards get the replicas, ages and sizes that RAW and EVENTS have now.

    There are three steps. First the streams of the new shards are made. Then the new shards are
    written into the record that all services read, and the normalizers take the new partitions.
    Finally new runs use the shards. Each step may be repeated, also after a crash between two
    steps. With a smaller number, new runs no longer use the last shards. The streams of these
    shards stay, and their runs continue. Raises BusError if a step failed or took longer than
    `timeout_s`; then call this function again.
    """
    async with change_lease(bus) as lease:
        before = await shards_of(bus)
        count_of_parts = await partitions(bus)
        await ensure_all(bus, await _like_shard_0(bus, count))
        for shard in range(before.made, count):
            raw = await expected(bus, streams.raw_of(shard))
            if partitions_of(raw) != count_of_parts:
                await change_partitions(bus, raw, count_of_parts)
            await at_least(bus, count_of_parts, shard)
        if count > 1:
            await mark_shards(bus, count)
        if not lease.is_held:
            raise BusUnavailable("the lease on changes was lost; begin again")
        made = Shards(max(before.made, count), before.used)
        await _record(bus, made)
        if count > before.used:
            await _all_read(bus, count, timeout_s)
            await asyncio.sleep(settle_s)
        if not lease.is_held:
            raise BusUnavailable("the lease on changes was lost; begin again")
        after = Shards(made.made, count)
        await _record(bus, after)
        log.info("new runs are divided among %d shards now, not %d", count, before.used)
        return after


async def _like_shard_0(bus: Buckets, count: int) -> list[Configuration]:
    """Return the streams of these shards with the retention that shard 0 has.

    The caller's settings may differ from those of the services. With one replica instead of three,
    the loss of one server would lose the runs of the new shards.
    """
    wanted = []
    for config in declared_shards(Retention(), count):
        kind, _ = streams.kind_and_shard(config["name"])
        found = await expected(bus, kind)
        wanted.append({**config, **{field: found[field] for field in streams.RETENTION}})
    return wanted


async def _record(bus: Buckets, wanted: Shards) -> None:
    bucket = bus.bucket(shards.BUCKET)
    entry = await bucket.get(shards.KEY)
    if entry is None and wanted == shards.ONE:
        return
    if entry is None or entry.value != wanted.dump():
        revision = entry.revision if entry is not None else 0
        if await bucket.update(shards.KEY, wanted.dump(), revision) is None:
            raise BusUnavailable("another process has changed the record of shards; begin again")


async def _all_read(bus: Buckets, count: int, timeout_s: float) -> None:
    """Wait until every normalizer with a lease takes part in reading each of these shards.

    After `timeout_s` one normalizer for each shard suffices. If no normalizer runs, the frames of
    the new shards wait until a normalizer starts.
    """
    lacking: dict[int, set[str]] = {}
    running: set[str] = set()
    try:
        async with asyncio.timeout(timeout_s):
            while True:
                members = [await _members(bus, shard) for shard in range(count)]
                running = members[0]
                lacking = {
                    shard: absent
                    for shard, present in enumerate(members)
                    if (absent := running - present)
                }
                if not lacking:
                    return
                await asyncio.sleep(CHECK_S)
    except TimeoutError:
        if any(absent == running for absent in lacking.values()):
            raise BusError(
                "no normalizer reads the new shards. Are the services of an older version? Upgrade "
                "them. Do the NATS users lack the permissions? Make accounts.conf with `python -m "
                f"penstock.bus.admin.permissions --shards {count}`. Then run this command again"
            ) from None
        log.warning("some normalizers do not read all shards yet: %s", lacking)


async def _members(bus: Buckets, shard: int) -> set[str]:
    prefix = f"{group_of(shard)}.member."
    entries = await bus.bucket("leases").entries(f"{prefix}*")
    return {entry.key.removeprefix(prefix) for entry in entries}
