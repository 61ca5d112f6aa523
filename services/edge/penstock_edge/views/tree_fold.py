"""Turns the events of a run tree into the events of one run, before a dialect encodes them
(decision 0205). Pure.

The resulting events have the root's run id, session id and leg, and are numbered from 1. An event
of a step's run has the id of this run in `subrun`. Some ids, for example message ids, are unique
only within their run. Such an id gets the id of its run as a prefix. Without the prefix, clients
would join texts of different runs.

The events `workflow.step_*` and `dispatch.*` and the root's own pauses report the start, the pauses
and the end of a step's run. So the lifecycle events of the step's run are left out, and every
`lifecycle.*` event is about the root. docs/workflow-events.md has the rules for users.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from penstock.bus import subjects
from penstock.dialects.base import type_of
from penstock.events.catalogue import TERMINAL
from penstock_edge.views.run_tree import (
    FINISHED,
    MAX_RUNS,
    STEP_STARTED,
    Child,
    Family,
    child_of,
)

Event = dict[str, Any]

WORKER: Final = "worker"
LEFT_OUT: Final = "children_left_out"

# The types of events after which an approval can no longer be decided.
_SETTLED: Final = frozenset({"approval.decided", "approval.expired", "approval.withdrawn"})
_STARTED: Final = "lifecycle.started"
_PAUSED: Final = "lifecycle.paused"
_RESUMED: Final = "lifecycle.resumed"
_OF_THE_ROOT_ALONE: Final = TERMINAL | {_STARTED, _PAUSED, _RESUMED}
_DISPATCHES: Final = frozenset({"dispatch.team", "dispatch.worker"})
# The fields of `data` whose values are ids that are unique only within the event's run.
_IDS: Final = (
    *("message_id", "parent_message_id", "reasoning_id", "tool_call_id", "parent_tool_call_id"),
    *("step_id", "parent_step_id"),
)
_INNER_RUNS: Final = ("subrun_id", "parent_subrun_id")
# The fields of `data.value` whose values are ids that are unique only within the event's run. Only
# events that come from an AG-UI server have `data.value`.
_AGUI_IDS: Final = ("messageId", "entityId")


@dataclass(slots=True)
class _Member:
    """A run of the tree, with its place in the tree."""

    run_id: str
    parent: _Member | None = None
    step: str | None = None  # the step of the parent that has started this run
    role: str = WORKER  # the `agent_type` of the run's agent in the tree
    team: str | None = None  # the name of the team in which the run's agent works
    name: str = ""  # the id of the run's agent
    paused: bool = False

    def qualified(self, part_id: Any) -> Any:
        if self.parent is None or not isinstance(part_id, str) or not part_id:
            return part_id
        return f"{self.run_id}/{part_id}"

    def inner_run(self, part_id: Any) -> Any:
        # A run id is unique in the tree already.
        return (
            part_id
            if isinstance(part_id, str) and subjects.is_run_id(part_id)
            else self.qualified(part_id)
        )

    def step_id(self, given: Any) -> Any:
        """If an event has no step id, take that of the parent's step which has started the run."""
        if self.parent is not None and given in (None, self.step):
            return self.parent.qualified(self.step)
        return self.qualified(given)

    def shown_source(self, source: Event | None) -> Event | None:
        """Keep the type `worker` of an agent inside the agent server; else show the tree's role."""
        if source is None or self.parent is None:
            return source
        inner = source.get("agent_type") == WORKER
        return {
            **source,
            "agent_type": WORKER if inner else self.role,
            "team_name": source.get("team_name") or self.team,
        }

    def subrun(self, own: Event | None = None) -> Event | None:
        """Return None for the root's own events. `own` is the inner run that the event names."""
        if self.parent is None:
            return own
        if own is not None:
            parent_id = self.inner_run(own.get("parent_id")) or self.run_id
            return {**own, "id": self.inner_run(own["id"]), "parent_id": parent_id}
        subrun: Event = {"id": self.run_id}
        if self.parent.parent is not None:
            subrun["parent_id"] = self.parent.run_id
        return {**subrun, "name": self.name} if self.name else subrun


@dataclass(slots=True)
class TreeFold:
    """Turns the events of one tree, in the stream's order, into events of one run.

    With `one_state`, clients know only the root's state, so `state.*` of the other runs becomes
    `state.child_*`. `known_children` are runs below the root whose event `workflow.step_started`
    may have expired, parents first. Once `answered` is set, the view leaves out a pause of the root
    that waits only for these approvals, which the reader has decided.
    """

    root: str
    one_state: bool = False
    known_children: Sequence[Child] = ()
    # whether the view shows a pause that has not ended
    is_paused: bool = field(default=False, init=False)
    # Whether the root is in a pause that the view leaves out.
    is_pause_hidden: bool = field(default=False, init=False)
    answered: Collection[str] = field(default=(), init=False)
    _family: Family = field(init=False)
    _members: dict[str, _Member] = field(default_factory=dict)
    _sequence: int = 0
    _leg: int = 1
    _session_id: str | None = None
    _latest: str = ""  # the greatest timestamp so far
    _is_full: bool = False  # whether a run was left out
    # ids of all approvals that were requested so far
    _requested: set[str] = field(default_factory=set)
    _open: set[str] = field(default_factory=set)  # ids of the approvals that have no decision yet

    def __post_init__(self) -> None:
        self._family = Family(self.root, self.known_children)
        self._members[self.root] = _Member(self.root)
        for child in self.known_children:
            parent = self._members.get(child.parent) or self._members[self.root]
            member = _Member(child.run_id, parent, child.step_id, name=child.agent)
            self._members[child.run_id] = member

    @property
    def leg(self) -> int:
        """1, plus one for each leg that has begun after a pause."""
        return self._leg

    def feed(self, run_id: str, event: Event) -> list[Event]:
        member = self._members.get(run_id)
        if member is None or not _names_parent(member, event):
            return []
        event_type = type_of(event)
        self._latest = max(self._latest, event["timestamp"])
        if event["event"]["category"] == "approval":
            self._approval(event_type, event["data"].get("approval_id", ""))
        if member.parent is None:
            shown = self._of_the_root(member, event_type, event)
        else:
            shown = list(self._of_child(member, event_type, event))
        shown += self._learn(member, event_type, event)
        return shown

    def _of_the_root(self, member: _Member, event_type: str, event: Event) -> list[Event]:
        self._session_id = event.get("session_id") or self._session_id
        if event_type == _PAUSED and self._is_answered(event["data"]):
            self.is_pause_hidden = True
            return []
        if event_type in TERMINAL:
            self.is_pause_hidden = False
        if event_type == _RESUMED and self.is_pause_hidden:
            # A leg begins here although the view leaves out the pause, because each stored
            # `lifecycle.resumed` counts as the beginning of a leg.
            self.is_pause_hidden = False
            self._leg += 1
            return []
        if event_type == _RESUMED:
            return [self._resumed(event["data"])] if self.is_paused else []
        self.is_paused = event_type == _PAUSED or (self.is_paused and event_type not in TERMINAL)
        return [self._shown(member, event, event["data"])]

    def _approval(self, event_type: str, approval_id: str) -> None:
        if event_type == "approval.requested":
            self._requested.add(approval_id)
            self._open.add(approval_id)
        elif event_type in _SETTLED:
            self._open.discard(approval_id)

    def _is_answered(self, paused: Event) -> bool:
        # A client may answer several approvals at once. The root then resumes after the first
        # decision, and pauses again until the second decision arrives. That pause needs no further
        # answer.
        return paused.get("approval_id") in self._requested and self._open <= set(self.answered)

    def _of_child(self, member: _Member, event_type: str, event: Event) -> Iterator[Event]:
        if event_type not in _OF_THE_ROOT_ALONE:
            if self.is_paused and not member.paused:
                yield self._resumed({})
            yield self._shown(member, event, _unique_data(member, event_type, event["data"]))
            return
        if event_type == _STARTED:
            member.name = event["data"].get("agent") or ""
        elif event_type in (_PAUSED, _RESUMED):
            member.paused = event_type == _PAUSED
        if event_type == _RESUMED and self.is_paused:
            yield self._resumed(event["data"])

    def _resumed(self, data: Event) -> Event:
        # The run of a step may continue before the workflow's run reports that it resumes, and
        # clients ignore events during a pause. So the first event of a run that continues ends the
        # view's pause.
        self.is_paused = False
        self._leg += 1
        self._sequence += 1
        resumed: Event = {
            "run_id": self.root,
            "timestamp": self._latest,
            "sequence": self._sequence,
            "source": None,
            "event": {"category": "lifecycle", "action": "resumed"},
            "data": data,
            "leg": self._leg,
        }
        return {**resumed, "session_id": self._session_id} if self._session_id else resumed

    def _shown(self, member: _Member, event: Event, data: Event) -> Event:
        self._sequence += 1
        shown = {**self._of_root(member, event), "data": data, "sequence": self._sequence}
        name = event["event"]
        if self.one_state and member.parent is not None and name["category"] == "state":
            shown["event"] = {"category": "state", "action": f"child_{name['action']}"}
        return shown

    def _of_root(self, member: _Member, event: Event) -> Event:
        shown = {
            **event,
            "run_id": self.root,
            "timestamp": self._latest,
            "source": member.shown_source(event.get("source")),
            "leg": self._leg,
        }
        if member.parent is None:
            return shown
        for name in ("parent_run_id", "workflow_depth"):
            shown.pop(name, None)
        if self._session_id is not None:
            shown["session_id"] = self._session_id
        shown["step_id"] = member.step_id(event.get("step_id"))
        shown["subrun"] = member.subrun(event.get("subrun"))
        return shown

    def _learn(self, member: _Member, event_type: str, event: Event) -> Iterator[Event]:
        """If a run is left out because the tree is full, yield one warning for the client."""
        data = event["data"]
        if event_type == STEP_STARTED and (child := child_of(member.run_id, data)) is not None:
            if self._family.add(child, member.run_id):
                role, team = data.get("role"), data.get("team_name")
                self._members[child] = _Member(
                    child,
                    member,
                    data.get("step_id"),
                    role if isinstance(role, str) else WORKER,
                    team if isinstance(team, str) else member.team,
                )
            elif self._family.is_full and not self._is_full:
                self._is_full = True
                yield self._left_out(event)
        elif event_type in TERMINAL:
            self._forget(self._family.end(member.run_id))
        elif event_type == FINISHED:
            self._forget(self._family.finish(data.get("subrun_id"), member.run_id))

    def _forget(self, runs: Sequence[str]) -> None:
        for run_id in runs:
            self._members.pop(run_id, None)

    def _left_out(self, event: Event) -> Event:
        self._sequence += 1
        text = f"the stream has the events of {MAX_RUNS} runs; further runs have their own streams"
        return {
            **self._of_root(self._members[self.root], event),
            "sequence": self._sequence,
            "source": None,
            "event": {"category": "system", "action": "warning"},
            "data": {"code": LEFT_OUT, "message": text},
        }


def _names_parent(member: _Member, event: Event) -> bool:
    # The normalizer writes the id of the parent that has started a run into each event of the run.
    # So a forged event `workflow.step_started` cannot add a run to a tree to which it does not
    # belong.
    return member.parent is None or event.get("parent_run_id") == member.parent.run_id


def _unique_data(member: _Member, event_type: str, data: Event) -> Event:
    """Make ids unique in the tree; decisions name item ids, so these stay."""
    unique: Event = {key: member.qualified(data[key]) for key in _IDS if key in data}
    unique |= {key: member.inner_run(data[key]) for key in _INNER_RUNS if key in data}
    shown = {**data, **unique}
    if event_type in _DISPATCHES and data.get("subrun_id") and not data.get("parent_subrun_id"):
        shown["parent_subrun_id"] = member.run_id
    if event_type == "approval.requested":
        shown["items"] = [_unique_item(member, item) for item in data.get("items") or ()]
    if data.get("protocol") == "agui" and isinstance(value := data.get("value"), dict):
        ids = {key: member.qualified(value[key]) for key in _AGUI_IDS if key in value}
        shown["value"] = {**value, **ids}
    return shown


def _unique_item(member: _Member, item: Event) -> Event:
    shown = {**item, "subrun": member.subrun(item.get("subrun"))}
    if item.get("tool_call_id"):
        shown["tool_call_id"] = member.qualified(item["tool_call_id"])
    return shown
