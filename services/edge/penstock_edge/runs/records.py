"""Finds runs: the run that a request names, and the unfinished runs below a workflow's run."""

from __future__ import annotations

from typing import Any, Final, get_args

from penstock.bus import Bus
from penstock.bus.records.runs import ENDED, RunRecord, RunStatus
from penstock.web.auth import Identity, check_run
from penstock.web.problems import Problem
from penstock_edge.sources.locate import record_of
from penstock_edge.sources.run_list import RunList
from penstock_edge.views.run_tree import MAX_RUNS, Child

_UNFINISHED: Final = tuple(status for status in get_args(RunStatus) if status not in ENDED)


async def run_of(
    bus: Bus,
    who: Identity,
    run_id: str,
    unknown: Problem | None = None,
    agent: str | None = None,
) -> RunRecord:
    """Return the record of a run that the caller may see, on a surface that names an agent of this
    agent; else the Problem of `check_run`, or 404. `unknown` replaces the 404, on a surface with
    texts of its own."""
    try:
        record = await record_of(bus, run_id)
        check_run(who, record.user_id, record.run_id, record.session_id)
        if agent not in (None, record.agent):
            raise Problem(404, f"there is no run {run_id[:64]} of the agent {agent}")
    except Problem as problem:
        if unknown is None or problem.status != 404:
            raise
        raise unknown from problem
    return record


def is_workflow(record: RunRecord) -> bool:
    return record.target == "workflows"


async def unfinished_descendants(runs: RunList, root: RunRecord) -> tuple[Child, ...]:
    """Return the unfinished runs below a workflow's run, parents first, from the list of runs: the
    event `workflow.step_started` that names a run may have expired."""
    found: list[dict[str, Any]] = []
    for status in _UNFINISHED:
        wanted, owners = {"status": status}, [root.user_id]
        page, _ = await runs.page(owners, lambda owner: True, wanted, None, MAX_RUNS)
        found += page
    below, known = [], {root.run_id}
    for record in sorted(found, key=lambda each: each.get("workflow_depth") or 0):
        parent = record.get("parent_run_id")
        if record.get("workflow_depth") and parent in known:
            known.add(record["run_id"])
            step = record.get("step_id")
            below.append(Child(record["run_id"], parent, step, record.get("agent") or ""))
    return tuple(below)
