"""Finds the unfinished runs below a workflow's run, and the start of the workflow's next leg."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final, get_args

from penstock.bus import Bus
from penstock.bus.messages import FIRST, SEQUENCE
from penstock.bus.read.direct import read
from penstock.bus.records import ENDED, RunRecord, RunStatus
from penstock.bus.streams import events_for
from penstock.bus.subjects import event, events_of_run, shard_of
from penstock_edge.sources.locate import StartPosition, lifecycle_of, start_of_new_run
from penstock_edge.sources.run_list import RunList
from penstock_edge.views.run_tree import MAX_RUNS, Child

_UNFINISHED: Final = tuple(status for status in get_args(RunStatus) if status not in ENDED)


def is_workflow(record: RunRecord) -> bool:
    """Return whether the run is a workflow's run, whose steps may have started further runs."""
    return record.target == "workflows"


async def unfinished_descendants(runs: RunList, root: RunRecord) -> tuple[Child, ...]:
    """Return the unfinished runs below a workflow's run, parents first.

    A reader of events cannot find such a run if the event `workflow.step_started` that names the
    run has expired. So this function reads the list of runs.
    """
    found: list[dict[str, Any]] = []
    for status in _UNFINISHED:
        page, _ = await runs.page([root.user_id], _any, {"status": status}, None, MAX_RUNS)
        found += page
    below, known = [], {root.run_id}
    for record in sorted(found, key=lambda each: each.get("workflow_depth") or 0):
        parent = record.get("parent_run_id")
        if record.get("workflow_depth") and parent in known:
            known.add(record["run_id"])
            step = record.get("step_id")
            below.append(Child(record["run_id"], parent, step, record.get("agent") or ""))
    return tuple(below)


def _any(owner: str) -> bool:
    return True


@dataclass(frozen=True, slots=True)
class NextLeg:
    """The leg of a workflow's run that a decision begins.

    `position` is the position of the run's first event. The leg has the events after the stream
    sequence `after`. `number` counts the legs from 1. If the first events of the workflow's run
    have expired, `known` has the unfinished runs below the workflow's run; `known` is otherwise
    empty.
    """

    position: StartPosition
    after: int
    number: int
    known: tuple[Child, ...] = ()


async def next_leg_of(bus: Bus, runs: RunList, root: RunRecord) -> NextLeg:
    """Return the leg that follows the newest pause of a workflow's run."""
    stream, run_id = events_for(root.run_id), root.run_id
    lifecycle = await lifecycle_of(bus, run_id)
    if lifecycle is None:
        position = await start_of_new_run(bus, shard_of(run_id))
        known = await unfinished_descendants(runs, root)
        return NextLeg(position, position.start - 1, 2, known)
    first = int(lifecycle.headers.get(FIRST, lifecycle.sequence))
    resumed, pending = await read(bus, stream, event("lifecycle.resumed", run_id), first, 1)
    begun, _ = await read(bus, stream, events_of_run(run_id), first, 1)
    is_whole = bool(begun) and begun[0].headers[SEQUENCE] == "1"
    known = () if is_whole else await unfinished_descendants(runs, root)
    number = len(resumed) + pending + 2
    return NextLeg(StartPosition(first, first), lifecycle.sequence, number, known)
