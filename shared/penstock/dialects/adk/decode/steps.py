"""Finds the steps of a workflow. ADK has no event for the start of a step.

Two kinds of runs have steps:

- **graph** (Workflow of ADK 2.x): each node is a step, and the node's path (`wf@1/classify@1`) is
  the step's id. A step begins with the first event at the node's path. An output of the node
  completes the step. An output of the root completes the workflow. If a node chose a route, a
  transition is emitted when the next node begins.
- **tree** (Sequential, Parallel, Loop): each child agent is a step, and the child's name is the
  step's id. A step begins with the child's first event that has content. The step is completed when
  a second child sends content, if the two children cannot run at the same time. Otherwise the step
  is completed at the end of the run. If a child whose step is completed sends content again, a new
  step begins (`writer#2`, iteration 2).

A run is a graph if an event has an output for a node. A run is also a graph if an event has a path
of several levels whose root is the event's author. With `kind: workflow`, any author suffices. A
run of 2.x is a tree if the paths of its events are empty. A run of 1.x is a tree if an event has a
branch, or if a second author appears and no transfer to this author was made. When the second
author appears, the events of the first child are already decoded, so the first child has no step.
With `kind: workflow`, a run of 1.x is a tree from its first event on, so the first child has a
step, too. An agent that transfers control to sub agents has no steps. Instead, `dispatch.transfer`
shows how control moves between the agents.
"""

from __future__ import annotations

from dataclasses import dataclass
from operator import itemgetter
from typing import ClassVar, Final, NamedTuple

from penstock.dialects.base import MAX_OPEN, Draft, Json, JsonObject, LimitReached, Source
from penstock.dialects.snapshots import AS_IS, DICT, SET, TUPLES, Form, Snapshots, Table, by, of

# The greatest number of levels in a node's path. Each level of a path is a step whose id is the
# path up to this level. So the total length of the ids grows with the square of the number of
# levels.
_MAX_LEVELS = 100


class Place(NamedTuple):
    """The place from which an event comes. `path` is None before ADK 2.x, and "" in a tree."""

    author: str
    branch: str | None
    path: str | None

    @property
    def root(self) -> str | None:
        outermost = self.path.split("/", 1)[0] if self.path else ""
        return (outermost or (self.branch or "").split(".", 1)[0]).split("@", 1)[0] or None

    def may_run_beside(self, other: Place) -> bool:
        """Return whether both have a path, or both a branch, and neither contains the other."""
        return _apart(self.path, other.path, "/") or _apart(self.branch, other.branch, ".")


def _apart(one: str | None, other: str | None, separator: str) -> bool:
    if not one or not other:
        return False
    return not (f"{one}{separator}").startswith(f"{other}{separator}") and not (
        f"{other}{separator}"
    ).startswith(f"{one}{separator}")


@dataclass(slots=True)
class Step:
    """A step that has begun."""

    id: str
    place: Place
    source: Source
    output: str | None = None  # the text of the last message in the step


_PLACE: Final = Form(list, lambda place: Place(*place))


def _around(step: Step) -> str:
    """Return "" in a tree, whose steps do not nest."""
    return step.id.rpartition("/")[0] if step.place.path else ""


class Steps(Snapshots):
    """Finds the steps of a run from the places of its events, and keeps the open steps."""

    STORED: ClassVar[Table] = {
        "graph": ("graph", AS_IS),
        "run_id": ("run_id", AS_IS),
        "tree": ("_tree", AS_IS),
        "first": ("_first", AS_IS),
        "transferred": ("_transferred", SET),
        "turns": ("_turns", DICT),
        "seen": ("_seen", SET),
        "routes": ("_routes", TUPLES),
        "last": ("_last", DICT),
        "told": ("_is_announced", AS_IS),
        "open": ("_open", by(itemgetter("id"), of(Step, place=_PLACE))),
    }

    def __init__(self, is_workflow: bool) -> None:
        self._is_workflow = is_workflow
        self.graph = False
        self.run_id = ""  # the id of the first invocation
        self._tree = False
        self._first: str | None = None  # the first author
        self._transferred: set[str] = set()
        self._turns: dict[str, int] = {}
        self._seen: set[str] = set()  # The paths of the nodes whose steps have begun.
        # Pairs of a step and the label of the route that the step chose, until the next node
        # begins.
        self._routes: list[tuple[str, str]] = []
        self._open: dict[str, Step] = {}
        self._last: dict[str, str] = {}  # Maps a step to the inner step that ended last.
        self._is_announced = False  # Whether workflow.started was emitted.

    def transferred(self, author: str) -> None:
        """Note that not a workflow moved control to this agent."""
        self._transferred.add(author)

    def notice(self, place: Place) -> None:
        """Note a place that may show that the run is a graph."""
        if not self.graph and place.path and "/" in place.path:
            self.graph = self._is_workflow or place.author == place.root

    def enter(self, place: Place, source: Source, out: list[Draft], *, speaks: bool) -> str | None:
        """Begin a step that is new; return the id of the step at this place, if it has one.
        `speaks` says whether the event has content."""
        if place.path:
            return self._enter_node(place, source, out) if self.graph else None
        if speaks and self._in_tree(place):
            return self._enter_child(place, source, out)
        step = self._at(place)
        return step.id if step else None

    def _in_tree(self, place: Place) -> bool:
        if not self._tree:
            newcomer = self._first is not None and place.author not in (
                self._first,
                *self._transferred,
            )
            self._tree = bool(
                place.path is not None or place.branch or self._is_workflow or newcomer
            )
            if self._tree and self._first is not None:
                self._turns[self._first] = 1
            self._first = self._first or place.author
        return self._tree

    def _at(self, place: Place) -> Step | None:
        for step in self._open.values():
            if step.place.branch == place.branch and step.place.author == place.author:
                return step
        return None

    def _enter_child(self, place: Place, source: Source, out: list[Draft]) -> str | None:
        step = self._at(place)
        if step:
            return step.id
        # If an agent got control by a transfer, the agent's events belong to the step that made the
        # transfer.
        if place.author in self._transferred:
            around = [step for step in self._open.values() if step.place.branch == place.branch]
            return around[-1].id if around else None
        for other in [step for step in self._open.values() if not step.place.may_run_beside(place)]:
            self._complete(other, other.output, out)
        turn = self._turns.get(place.author, 0) + 1
        self._turns[place.author] = turn
        step_id = place.author if turn == 1 else f"{place.author}#{turn}"
        data: JsonObject = {"description": place.author, "kind": "agent"}
        if turn > 1:
            data["iteration"] = turn
        if place.branch:
            data["branch"] = place.branch
        self._begin(Step(step_id, place, source), data, out)
        return step_id

    def _enter_node(self, place: Place, source: Source, out: list[Draft]) -> str | None:
        names = (place.path or "").split("/")
        LimitReached.check(len(names), _MAX_LEVELS, "nested steps")
        parent: str | None = None
        for depth in range(2, len(names) + 1):
            path = "/".join(names[:depth])
            if path not in self._seen:
                self._seen.add(path)
                self._begin_node(Step(path, place, source), parent, out)
            parent = path
        return parent

    def _begin_node(self, step: Step, parent: str | None, out: list[Draft]) -> None:
        for chooser, label in self._routes:
            data = {
                "run_id": self.run_id,
                "from_step": chooser,
                "to_step": step.id,
                "reason": label,
            }
            out.append(Draft("workflow.transition", data, step.source, None, chooser))
        if self._routes:
            # If a route was chosen, the route's transition replaces the transition of the sequence.
            self._last.pop(_around(step), None)
        self._routes = []
        described: JsonObject = {
            "description": step.id.rsplit("/", 1)[-1].split("@", 1)[0],
            "kind": "node",
        }
        if step.place.branch:
            described["branch"] = step.place.branch
        if parent:
            described["parent_step_id"] = parent
        self._begin(step, described, out)

    def _begin(self, step: Step, described: JsonObject, out: list[Draft]) -> None:
        if self.graph:
            self._announce(step.place.root, step.source, out)
        self._open[step.id] = step
        LimitReached.check(len(self._open), MAX_OPEN, "open steps")
        before = self._last.pop(_around(step), None)
        # Steps with a branch run at the same time and begin in any order, so a transition between
        # them would be wrong.
        if before is not None and not step.place.branch:
            data = {
                "run_id": self.run_id,
                "from_step": before,
                "to_step": step.id,
                "reason": "sequence",
            }
            out.append(Draft("workflow.transition", data, step.source, None, before))
        data = {"run_id": self.run_id, "step_id": step.id, **described}
        out.append(Draft("workflow.step_started", data, step.source, None, step.id))

    def message_completed(self, step_id: str | None, content: str) -> None:
        """Keep the text as the step's output, until the next message."""
        if step_id in self._open:
            self._open[step_id].output = content

    def output(
        self,
        place: Place,
        paths: list[str],
        value: Json,
        source: Source,
        out: list[Draft],
    ) -> bool:
        """Complete the steps of the nodes at these paths; return whether this is the run's output,
        too."""
        is_result = False
        for path in paths:
            if "/" not in path:
                is_result = True
            elif path not in self._seen:
                self.graph = True
                self._enter_node(place._replace(path=path), source, out)
            if path in self._open:
                self._complete(self._open[path], value, out)
        if is_result and self.graph:
            self._announce(place.root, source, out)
            # A node that only waited for a person's answer has no output, so the node's step is
            # still open.
            self.complete_all(out)
            data = {"run_id": self.run_id, "result": value}
            out.append(Draft("workflow.completed", data, source))
        return is_result

    def chose(self, step_id: str, label: str) -> None:
        """Keep the route that a node chose, for a transition to the next node to begin."""
        self._routes.append((step_id, label))

    def left(self, place: Place, out: list[Draft]) -> None:
        """Complete the step of an agent that has ended (`endOfAgent`)."""
        step = self._at(place)
        if step and not self.graph:
            self._complete(step, step.output, out)

    def fail(self, step_id: str | None, error: JsonObject, out: list[Draft]) -> None:
        step = self._open.pop(step_id, None) if step_id else None
        if step:
            data = {"run_id": self.run_id, "step_id": step.id, "error": error}
            out.append(Draft("workflow.step_failed", data, step.source, None, step.id))

    def fail_workflow(self, error: JsonObject, source: Source, out: list[Draft]) -> None:
        if self.graph:
            self._announce(None, source, out)
            data = {"run_id": self.run_id, "error": error}
            out.append(Draft("workflow.failed", data, source))

    def _announce(self, workflow: str | None, source: Source, out: list[Draft]) -> None:
        """Emit `workflow.started`, once, before all other events of the workflow."""
        if not self._is_announced:
            self._is_announced = True
            data = {"workflow": workflow or source["agent_name"], "run_id": self.run_id}
            out.append(Draft("workflow.started", data, source))

    def complete_all(self, out: list[Draft]) -> None:
        for step in list(self._open.values()):
            self._complete(step, step.output, out)

    def _complete(self, step: Step, output: Json, out: list[Draft]) -> None:
        del self._open[step.id]
        if not step.place.branch:
            self._last[_around(step)] = step.id
        data = {"run_id": self.run_id, "step_id": step.id, "output": output}
        out.append(Draft("workflow.step_completed", data, step.source, None, step.id))
