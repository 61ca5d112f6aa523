"""Encodes steps and subruns.

Steps and subruns continue over a pause, but an AG-UI run ends at a pause.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

from penstock.dialects.agui.encode.context import NO_FACTS, Context, Emitted, Step, Subagent
from penstock.dialects.agui.vocabulary import INTERNAL_EVENTS, EventType
from penstock.dialects.base import JsonObject
from penstock.events import TERMINAL

PROFILE_STEP: Final = "\0step"  # the id of the profile's step; no canonical event has this step id

# The names of the steps in agent-runs-sse.md. A step of the agent server that has one of these
# names is sent unchanged.
CONTRACT_STEPS: Final = frozenset({"router", "worker"})

# The profile's step begins before the first event with content. The step never begins before an
# event whose type is in `_OUTSIDE`. The step begins before an event whose type is in `_ENDS` only
# if the AG-UI run has had no step.
_ENDS: Final = TERMINAL | {"lifecycle.paused"}
_OUTSIDE: Final = frozenset({"lifecycle.started", "lifecycle.resumed", "approval.requested"})

# The names of custom events about the run that an agent server may send before its first step
# begins.
_BEFORE_ITS_STEPS: Final = INTERNAL_EVENTS | {"RUN_STARTED"}

# Maps the canonical fields that name a subrun's origin to AG-UI's fields. Only AG-UI servers
# send these fields.
_PARENTS: Final = {
    "parent_tool_call_id": "parentToolCallId",
    "parent_message_id": "parentMessageId",
}


class Steps:
    """Encodes the steps and subruns of a run."""

    def __init__(self, context: Context) -> None:
        self._context = context
        self._open = context.open
        self._had_step = False  # whether this AG-UI run has had a step

    def step_started(self, data: JsonObject) -> Iterator[Emitted]:
        # A profile with a step of its own sends others than the contract's as CUSTOM.
        if self._context.profile.step and not self._is_contracts(data):
            yield self._context.custom(data)
        elif data["step_id"] not in self._open.steps:
            if ours := self._open.steps.pop(PROFILE_STEP, None):
                yield self._step(EventType.STEP_FINISHED, ours)
            subrun_id = self._context.current_subrun if self._context.modern else None
            if self._context.profile.step:
                name = data["description"]
            else:
                name = self._open.step_name(
                    data["step_id"], data.get("description") or "", subrun_id
                )
            step = self._open.steps[data["step_id"]] = Step(name, subrun_id)
            yield self._step(EventType.STEP_STARTED, step, data)

    def _is_contracts(self, data: JsonObject) -> bool:
        """Return whether it is one of agent-runs-sse.md, and none of this name is open."""
        name = data.get("description")
        others = (step for part_id, step in self._open.steps.items() if part_id != PROFILE_STEP)
        return name in CONTRACT_STEPS and all(step.name != name for step in others)

    def enter(self, data: JsonObject) -> Iterator[Emitted]:
        """Begin the profile's step unless a step is open, not before the first event with content,
        because the agent server may first begin one of its own."""
        name, event_type = self._context.profile.step, self._context.current_type
        if name is None or self._open.steps or event_type in _OUTSIDE:
            return
        if self._had_step and event_type in _ENDS:
            return
        if event_type == "workflow.step_started" and self._is_contracts(data):
            return
        if event_type == "custom.event" and data["name"] in _BEFORE_ITS_STEPS:
            return
        step = self._open.steps[PROFILE_STEP] = Step(name, None)
        yield self._step(EventType.STEP_STARTED, step)

    def step_ended(self, data: JsonObject) -> Iterator[Emitted]:
        step = self._open.steps.pop(data["step_id"], None)
        if step is None:
            yield self._context.custom(data)
        else:
            yield self._step(EventType.STEP_FINISHED, step, data)

    def begin(self) -> None:
        """In a new AG-UI run, the client knows only the subruns that continue."""
        self._had_step = False
        self._open.known_subagents.clear()
        self._open.known_subagents.update(self._open.subagents)

    def reopened(self) -> Iterator[Emitted]:
        again: set[str] = set()
        for part_id, subagent in self._open.subagents.items():
            fields = {"subagentRunId": part_id, **subagent.started}
            # If the parent has ended, the client does not know the parent in this AG-UI run. So the
            # field is left out.
            if fields.get("parentSubagentRunId") not in again:
                fields.pop("parentSubagentRunId", None)
            again.add(part_id)
            yield EventType.SUBAGENT_STARTED, fields, NO_FACTS
        for step in self._open.steps.values():
            yield self._step(EventType.STEP_STARTED, step)

    def close(self, error: str | None, suspended: Sequence[str] | None) -> Iterator[Emitted]:
        """End all steps and subruns. The ledger keeps them for the next AG-UI run of a run that
        waits."""
        for step in reversed(self._open.steps.values()):
            yield self._step(EventType.STEP_FINISHED, step)
        for part_id in reversed(self._open.subagents):
            fields: JsonObject = {"subagentRunId": part_id}
            if error is not None:
                yield EventType.SUBAGENT_ERROR, {**fields, "message": error}, NO_FACTS
                continue
            if suspended is not None:
                asked = {"interruptIds": list(suspended)} if suspended else {}
                fields["outcome"] = {"type": "suspended", **asked}
            yield EventType.SUBAGENT_FINISHED, fields, NO_FACTS

    def _step(self, event_type: EventType, step: Step, facts: JsonObject = NO_FACTS) -> Emitted:
        self._had_step = True
        return event_type, self._context.tagged({"stepName": step.name}, step.subrun_id), facts

    def team_dispatched(self, data: JsonObject) -> Iterator[Emitted]:
        if data.get("subrun_id"):
            yield from self._begin(data["team_name"], data)
        else:
            yield self._context.custom(data)

    def dispatched(self, data: JsonObject) -> Iterator[Emitted]:
        yield from self._begin(data["worker_name"], data)

    def _begin(self, name: str, data: JsonObject) -> Iterator[Emitted]:
        """Begin a subrun; as CUSTOM if the client knows the id already, which it accepts only once
        in an AG-UI run."""
        part_id = data["subrun_id"]
        if not self._context.modern or part_id in self._open.known_subagents:
            yield self._context.custom(data)
            return
        started: JsonObject = {"name": name}
        if data.get("task"):
            started["description"] = data["task"]
        if data.get("parent_subrun_id") in self._open.known_subagents:
            started["parentSubagentRunId"] = data["parent_subrun_id"]
        for field, theirs in _PARENTS.items():
            if isinstance(data.get(field), str):
                started[theirs] = self._context.names.of(data[field])
        self._open.subagents[part_id] = Subagent(started)
        self._open.known_subagents.add(part_id)
        yield EventType.SUBAGENT_STARTED, {"subagentRunId": part_id, **started}, data

    def finished(self, data: JsonObject) -> Iterator[Emitted]:
        part_id = data["subrun_id"]
        if self._open.subagents.pop(part_id, None) is None:
            yield self._context.custom(data)
            return
        fields: JsonObject = {"subagentRunId": part_id}
        status = data.get("status")
        if status in ("failed", "cancelled"):
            message = data.get("error") or f"The subrun was {status}."
            yield EventType.SUBAGENT_ERROR, {**fields, "message": message, "code": status}, data
            return
        if data.get("result") is not None:
            fields["result"] = data["result"]
        yield EventType.SUBAGENT_FINISHED, fields, data
