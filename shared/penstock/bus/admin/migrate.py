"""Changes the ages, sizes and replicas of streams for the operator, while runs continue."""

from __future__ import annotations

from penstock.bus import streams
from penstock.bus.admin.configuration import (
    Difference,
    change_lease,
    configuration,
    declared,
    differences,
    expected,
    update,
)
from penstock.bus.admin.ensure import shards_of
from penstock.bus.state.kv import Buckets
from penstock.bus.streams import Retention


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
