"""Stores redactions in a running Penstock."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from penstock.bus import Bus
from penstock.redactions.document import CurrentRedactions
from penstock.service import Service
from penstock_edge.service import EdgeService
from support.drive.waiting import eventually


async def put_in_force(
    bus: Bus, services: Sequence[Service], *rules: dict[str, Any]
) -> CurrentRedactions:
    """Replace the redactions, and wait until the edges of these services have them."""
    stored = CurrentRedactions(bus)
    await stored.load()
    version = stored.current.version + 1
    await stored.apply({"version": version, "redact": [*rules]}, "root")
    edges = [each for each in services if isinstance(each, EdgeService)]

    async def in_force() -> bool:
        found = [await each._edge.starter.redactions.in_force() for each in edges]
        return all(each.version >= version for each in found)

    await eventually(in_force, what="the redactions in all edges")
    return stored
