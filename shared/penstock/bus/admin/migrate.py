"""What the operator changes while runs continue: how long messages are kept, and replicas."""

from __future__ import annotations

from penstock.bus import streams
from penstock.bus.admin.configuration import (
    Difference,
    alone,
    configuration,
    declared,
    differences,
    expected,
    update,
)
from penstock.bus.connection.jetstream import HasJetStream
from penstock.bus.state.kv import Buckets
from penstock.bus.streams import Retention


async def plan(bus: HasJetStream, retention: Retention) -> list[Difference]:
    """The changes that `apply` would make: where the streams differ from these settings.

    Raises:
        BusError: the server cannot be asked.
    """
    return [
        difference
        for wanted in declared(retention)
        if (found := await configuration(bus, wanted["name"])) is not None
        for difference in differences(wanted, found, streams.RETENTION)
        if difference.wanted != -1  # without a limit in the settings, one set by hand stays
    ]


async def apply(bus: Buckets, retention: Retention) -> list[Difference]:
    """Give all streams the ages, sizes and replicas of these settings; returns the changes.

    Raises:
        BusError: the server refuses a change, or cannot be asked.
    """
    async with alone(bus):
        changes = await plan(bus, retention)
        for name in dict.fromkeys(change.stream for change in changes):
            found = await expected(bus, name)
            await update(bus, found, [each for each in changes if each.stream == name], {})
    return changes
