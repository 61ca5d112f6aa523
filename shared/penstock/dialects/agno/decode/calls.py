"""Keeps the open tool calls. Each call gets an id that is unique in all legs of the run.

Calls of different members or legs may have the same upstream id. With some models, calls of the
same leg may also have the same upstream id. A call that waits for a decision appears both in the
pause and when the call runs.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import ClassVar, Final

from penstock.dialects.agno.decode.frames import Tool
from penstock.dialects.base import MAX_OPEN, Ids, Json, JsonObject, LimitReached, short
from penstock.dialects.json import obj, string
from penstock.dialects.snapshots import PART, Form, Snapshots, Table, each, of


@dataclass(slots=True)
class Call:
    """A call that has no result yet. `run` is the key of the call's run."""

    id: str
    run: str
    upstream_id: str
    tool: str
    args: JsonObject
    pending: bool
    kind: str | None = None  # the kind of the pause item that asks about the call
    decision: str | None = None
    value: Json = None  # the answer
    # The fields that a person fills in, with the values that the model gave.
    fields: JsonObject | None = None

    def approved_args(self) -> JsonObject:
        """Return the model's arguments, completed by the answer; Agno ignores its other fields."""
        if self.kind != "input":
            return self.args
        answer = obj(self.value)
        if self.fields is None:  # the answer is a part of `args` already
            return {**self.args, **answer}
        filled = {name: answer.get(name, value) for name, value in self.fields.items()}
        return {**self.args, **filled}


_FAILED: Final = Form(
    lambda failed: [*map(list, failed.elements())], lambda pairs: Counter(map(tuple, pairs))
)


@dataclass(slots=True)
class Calls(Snapshots):
    """Keeps the open calls of the outer run and of its inner runs."""

    STORED: ClassVar[Table] = {
        "open": ("open", each(of(Call))),
        "used": ("ids", PART),
        "failed": ("failed", _FAILED),
    }

    open: list[Call] = field(default_factory=list)
    ids: Ids = field(default_factory=Ids)
    # counts failures that Agno will report again, by run and upstream id
    failed: Counter[tuple[str, str]] = field(default_factory=Counter)

    def add(self, run: str, tool: Tool, *, pending: bool) -> Call:
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

    def find(self, run: str, tool: Tool, *, pending: bool | None = None) -> Call | None:
        """Return the open call to which a frame refers: of those with its id, the oldest with its
        tool and arguments, or else the oldest."""
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
            # the sort is stable, so calls that fit equally well stay in order of age
            same.sort(key=lambda call: (call.tool, call.args) != wanted)
        return same[0] if same else None

    def close(self, call: Call, *, failed: bool = False) -> None:
        """Remove a call that has its result. Agno reports a failure twice (`is_second_report`)."""
        self.open = [other for other in self.open if other is not call]
        if failed:
            self.failed[call.run, call.upstream_id] += 1

    def is_second_report(self, run: str, tool: Tool) -> bool:
        """Return True once for each failure."""
        failure = (run, call_id(tool))
        if not self.failed[failure]:
            return False
        self.failed[failure] -= 1
        return True


def tool_name(tool: Tool) -> str:
    return short(string(tool.get("tool_name")) or "unknown")


def tool_args(tool: Tool) -> JsonObject:
    args: JsonObject = obj(tool.get("tool_args"))
    return args


def call_id(tool: Tool) -> str:
    return string(tool.get("tool_call_id")) or "call"
