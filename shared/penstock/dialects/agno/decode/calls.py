"""Tool calls under way: each gets one id that is unique in the run, over all legs.

Agno's ids repeat (another member, another leg, some models), and a call that awaits a decision
is heard of twice: at the pause, and when it runs.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import asdict, dataclass, field

from penstock.dialects.base import MAX_OPEN, Ids, Json, JsonObject, LimitReached, short
from penstock.dialects.json import obj, string


@dataclass(slots=True)
class Call:
    """One call that has no result yet. `run` is the key of the run that it belongs to."""

    id: str
    run: str
    upstream_id: str
    tool: str
    args: JsonObject
    pending: bool
    kind: str | None = None  # of the pause item that it waits for
    decision: str | None = None
    value: Json = None  # what was answered
    fields: JsonObject | None = None  # what it asks a person to fill in, and what already is

    def approved_args(self) -> JsonObject:
        """Its arguments as they were approved: those of the model, completed by the answer.

        Agno takes of an answer only what it has asked for.
        """
        if self.kind != "input":
            return self.args
        answer = obj(self.value)
        if self.fields is None:  # a snapshot of before does not know them
            return {**self.args, **answer}
        filled = {name: answer.get(name, value) for name, value in self.fields.items()}
        return {**self.args, **filled}


@dataclass(slots=True)
class Calls:
    """The calls of a run and of the runs inside it."""

    open: list[Call] = field(default_factory=list)
    ids: Ids = field(default_factory=Ids)
    failed: Counter[tuple[str, str]] = field(default_factory=Counter)  # run, upstream id

    def add(self, run: str, tool: JsonObject, *, pending: bool) -> Call:
        """A call that was not heard of before."""
        upstream_id = call_id(tool)
        call = Call(
            self.ids.unique(upstream_id),
            run,
            upstream_id,
            tool_name(tool),
            tool_args(tool),
            pending,
        )
        self.open.append(call)
        LimitReached.check(len(self.open), MAX_OPEN, "calls without a result")
        return call

    def find(self, run: str, tool: JsonObject, *, pending: bool | None = None) -> Call | None:
        """The open call that the frame is about: of one id the same tool and arguments first."""
        upstream_id = call_id(tool)
        same = [
            call
            for call in self.open
            if call.run == run
            and call.upstream_id == upstream_id
            and (pending is None or call.pending is pending)
        ]
        if len(same) > 1:
            wanted = tool_name(tool), tool_args(tool)
            same.sort(key=lambda call: (call.tool, call.args) != wanted)  # stable: else the oldest
        return same[0] if same else None

    def close(self, call: Call, *, failed: bool = False) -> None:
        """The call has its result. A failure is told twice, and the second time means nothing."""
        self.open = [other for other in self.open if other is not call]
        if failed:
            self.failed[call.run, call.upstream_id] += 1

    def told_already(self, run: str, tool: JsonObject) -> bool:
        """True, once, for the second half of ToolCallCompleted and ToolCallError."""
        told = (run, call_id(tool))
        if not self.failed[told]:
            return False
        self.failed[told] -= 1
        return True

    def dump(self) -> JsonObject:
        """As JSON, between legs."""
        return {
            # apart: releases before this one read calls without them
            "open": [_without_fields(call) for call in self.open],
            "fields": {call.id: call.fields for call in self.open if call.fields is not None},
            "used": dict(self.ids.used),
            "failed": [list(told) for told in self.failed.elements()],
        }

    @classmethod
    def load(cls, state: JsonObject) -> Calls:
        """The opposite of `dump`."""
        fields = state.get("fields", {})
        return cls(
            [Call(**call, fields=fields.get(call["id"])) for call in state["open"]],
            Ids(state["used"]),
            Counter((run, upstream_id) for run, upstream_id in state["failed"]),
        )


def _without_fields(call: Call) -> JsonObject:
    dumped = asdict(call)
    del dumped["fields"]
    return dumped


def tool_name(tool: JsonObject) -> str:
    """The tool's name; a call without one is still told."""
    return short(string(tool.get("tool_name")) or "unknown")


def tool_args(tool: JsonObject) -> JsonObject:
    """The arguments, an object."""
    return obj(tool.get("tool_args"))


def call_id(tool: JsonObject) -> str:
    """The upstream's id of the call; one without is still told."""
    return string(tool.get("tool_call_id")) or "call"
