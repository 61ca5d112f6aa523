"""The runs of a run tree: a workflow's run, and the runs of its steps at any depth. Pure.

A step's run is in the shard of its workflow's run, and starts only when the workflow's event
`workflow.step_started` is stored. So the order of one stream EVENTS orders all events of the tree,
and a reader knows each run before the run's first event comes.
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
# The number of runs in one tree. A workflow has at most 1,000 runs of steps, but its steps may be
# workflows, too. The runs of further steps are left out of the tree.
MAX_RUNS: Final = 10_000


@dataclass(frozen=True, slots=True)
class Child:
    """A run below the root, its parent, and the parent's step that the run carries out."""

    run_id: str
    parent: str
    step_id: str | None = None


def child_of(parent: str, data: dict[str, Any]) -> str | None:
    """Return the id of the run that this `workflow.step_started` of `parent` names.

    The result is None if the event names no run, or a run of another shard, whose events have no
    common order with the events of `parent`.
    """
    child = data.get("child_run_id")
    if not isinstance(child, str) or not subjects.is_run_id(child):
        return None
    return child if subjects.shard_of(child) == subjects.shard_of(parent) else None


class Members:
    """The runs of a tree whose events are read now, at one position of the stream.

    The root is read to the end of the tree. Any other run is read from the `workflow.step_started`
    that names the run up to the run's terminal event. A reader must pass all events of the members
    to `learn`, in the stream's order.

    `known` are runs below the root whose `workflow.step_started` may have expired.
    """

    def __init__(self, root: str, known: Sequence[Child] = ()) -> None:
        self.root = root
        runs = (root, *(child.run_id for child in known))
        self._patterns = {run: subjects.events_of_run(run) for run in runs}
        self._seen = set(self._patterns)

    def __contains__(self, run_id: str) -> bool:
        """Return whether events of the run are in the tree at this position."""
        return run_id in self._patterns

    def runs(self) -> Collection[str]:
        """Return the runs whose events are read now."""
        return self._patterns.keys()

    def patterns(self) -> Collection[str]:
        """Return the patterns of the events that are read now."""
        return self._patterns.values()

    def learn(self, stored: Stored) -> str | None:
        """Take the next event of a member; return the run that is a member from now on, or no more.

        The result is None if the members stay the same.
        """
        type = type_of(stored)
        if type == STEP_STARTED:
            return self._begin(subjects.run_id_of(stored.subject), stored.payload)
        if type in TERMINAL:
            run_id = subjects.run_id_of(stored.subject)
            if run_id != self.root and self._patterns.pop(run_id, None) is not None:
                return run_id
        return None

    def _begin(self, parent: str, payload: bytes) -> str | None:
        try:
            child = child_of(parent, orjson.loads(payload)["data"])
        except (orjson.JSONDecodeError, KeyError, TypeError, AttributeError):
            return None  # the encoding reports an event that cannot be read
        if child is None or child in self._seen or len(self._seen) >= MAX_RUNS:
            return None
        self._seen.add(child)
        self._patterns[child] = subjects.events_of_run(child)
        return child
