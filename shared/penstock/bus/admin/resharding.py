"""Changes the number of shards of RAW and EVENTS, while runs continue.

A run's id contains its shard, so a run never moves, and a change of the number concerns only new
runs.
"""

from __future__ import annotations

import asyncio
import logging

from penstock.bus import shards, streams
from penstock.bus.admin.configuration import (
    CHECK_S,
    Configuration,
    change_lease,
    declared_shards,
    expected,
    partitions_of,
)
from penstock.bus.admin.ensure import ensure_all, mark_shards, shards_of
from penstock.bus.admin.repartition import at_least, change_partitions, partitions
from penstock.bus.errors import BusError, BusUnavailable
from penstock.bus.shards import Shards, group_of
from penstock.bus.state.kv import Buckets
from penstock.bus.streams import Retention

log = logging.getLogger(__name__)

# Seconds to wait before new runs use the new shards. Every process reads the record of shards every
# five seconds. So every edge knows of the shards before another edge starts a run there.
SETTLE_S = 12.0


async def reshard(
    bus: Buckets, count: int, timeout_s: float = 30.0, settle_s: float = SETTLE_S
) -> Shards:
    """Divide new runs among this number of shards; return the record of shards.

    The streams of new shards get the replicas, ages and sizes that RAW and EVENTS have now.

    There are three steps. First the streams of the new shards are made. Then the new shards are
    written into the record that all services read, and the normalizers take the new partitions.
    Finally new runs use the shards. Each step may be repeated, also after a crash between two
    steps. With a smaller number, new runs no longer use the last shards. The streams of these
    shards stay, and their runs continue.

    Raises:
        BusError: a step failed or took longer than `timeout_s`. Call this function again.
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
