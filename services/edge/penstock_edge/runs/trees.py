"""Finds out whether a run is the run of a workflow, and where its next leg begins."""

from __future__ import annotations

from dataclasses import dataclass

from penstock.bus import Bus
from penstock.bus.messages import FIRST
from penstock.bus.read.direct import read
from penstock.bus.records import RunRecord
from penstock.bus.streams import events_for
from penstock.bus.subjects import event, shard_of
from penstock_edge.sources.locate import StartPosition, lifecycle_of, start_of_new_run


def is_workflow(record: RunRecord) -> bool:
    """Return whether the run is of a workflow, whose steps may have runs of their own."""
    return record.target == "workflows"


@dataclass(frozen=True, slots=True)
class NextLeg:
    """The leg of a workflow's run that a decision begins.

    `position` is that of the run's first event. The leg has the events after the stream sequence
    `after`. `number` counts the legs from 1.
    """

    position: StartPosition
    after: int
    number: int


async def next_leg_of(bus: Bus, root: str) -> NextLeg:
    """Return the leg that follows the newest pause of a workflow's run.

    Raises:
        BusError: the streams cannot be read now.
    """
    lifecycle = await lifecycle_of(bus, root)
    if lifecycle is None:
        position = await start_of_new_run(bus, shard_of(root))
        return NextLeg(position, position.start - 1, 2)
    first = int(lifecycle.headers.get(FIRST, lifecycle.sequence))
    resumed = event("lifecycle.resumed", root)
    found, pending = await read(bus, events_for(root), resumed, first, 1)
    return NextLeg(StartPosition(first, first), lifecycle.sequence, len(found) + pending + 2)
