"""Knows the runs of a run tree: a workflow's run, and the runs that its steps start (decision
0205). Pure.

A step may start a workflow's run, so a tree may have any depth. The run of a step is in the shard
of the workflow's run. A step's run starts only after the workflow's event `workflow.step_started`
is stored. So all events of the tree are in the order of one stream EVENTS, and a reader knows each
run before the run's first event comes.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any, Final

import orjson

from penstock.bus import Stored, subjects
from penstock.events.catalogue import TERMINAL
from penstock_edge.views.items import type_of

STEP_STARTED: Final = "workflow.step_started"
FINISHED: Final = "dispatch.finished"
# The greatest number of runs in one tree. A workflow has at most 1,000 runs of steps, but its steps
# may be workflows, too. If a tree is full, the runs of further steps are left out.
MAX_RUNS: Final = 10_000


@dataclass(frozen=True, slots=True)
class Child:
    """A run below the root, with its parent, its agent, and the step that has started it."""

    run_id: str
    parent: str
    step_id: str | None = None
    agent: str = ""


def child_of(parent: str, data: dict[str, Any]) -> str | None:
    """Return the run that an event `workflow.step_started` of `parent` names, unless it is of
    another shard, whose events have no common order with those of `parent`."""
    child = data.get("child_run_id")
    if not isinstance(child, str) or not subjects.is_run_id(child):
        return None
    return child if subjects.shard_of(child) == subjects.shard_of(parent) else None


class Family:
    """Knows the runs of a tree after the events read so far, with their parents. A run leaves, with
    all below it, at its terminal event, or when its parent reports it as finished."""

    def __init__(self, root: str, known: Sequence[Child] = ()) -> None:
        self.root = root
        self._parents = {child.run_id: child.parent for child in known}
        self._children: dict[str, list[str]] = {}
        for child in known:
            self._children.setdefault(child.parent, []).append(child.run_id)
        self._seen = {root, *self._parents}

    @property
    def is_full(self) -> bool:
        return len(self._seen) >= MAX_RUNS

    def add(self, child: str, parent: str) -> bool:
        if child in self._seen or self.is_full:
            return False
        self._seen.add(child)
        self._parents[child] = parent
        self._children.setdefault(parent, []).append(child)
        return True

    def finish(self, child: Any, parent: str) -> list[str]:
        """Return all removed runs. Only a run's parent can remove it: an agent server chooses the
        ids of its inner runs freely, and could otherwise remove other runs by naming them."""
        return self.end(child) if self._parents.get(child) == parent else []

    def end(self, run_id: str) -> list[str]:
        """Return the removed runs, a run and those below it, never the root."""
        if self._parents.pop(run_id, None) is None:
            return []
        removed = [run_id]
        for child in self._children.pop(run_id, ()):
            removed += self.end(child)
        return removed


class Members:
    """Knows which runs are in a tree at a position of the stream. A reader must pass each event of
    these runs to `learn`, in order. `known` are runs below the root whose event
    `workflow.step_started` may have expired."""

    def __init__(self, root: str, known: Sequence[Child] = ()) -> None:
        self.root = root
        self._family = Family(root, known)
        runs = (root, *(child.run_id for child in known))
        self._patterns = {run: subjects.events_of_run(run) for run in runs}

    def __contains__(self, run_id: str) -> bool:
        return run_id in self._patterns

    def runs(self) -> Collection[str]:
        return self._patterns.keys()

    def patterns(self) -> Collection[str]:
        return self._patterns.values()

    def learn(self, stored: Stored) -> Sequence[str]:
        """Return the runs that this event adds or removes."""
        event_type = type_of(stored)
        run_id = subjects.run_id_of(stored.subject)
        if event_type in TERMINAL:
            return self._without(self._family.end(run_id))
        if event_type not in (STEP_STARTED, FINISHED):
            return ()
        try:
            data = orjson.loads(stored.payload)["data"]
            if event_type == FINISHED:
                return self._without(self._family.finish(data.get("subrun_id"), run_id))
            child = child_of(run_id, data)
        except (orjson.JSONDecodeError, KeyError, TypeError, AttributeError):
            return ()  # the encoding reports the event that cannot be read
        if child is None or not self._family.add(child, run_id):
            return ()
        self._patterns[child] = subjects.events_of_run(child)
        return (child,)

    def _without(self, runs: Sequence[str]) -> Sequence[str]:
        for run in runs:
            self._patterns.pop(run, None)
        return runs
