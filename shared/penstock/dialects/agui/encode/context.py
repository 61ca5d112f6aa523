"""The data that all modules of the encoder use: the client, the current event, the open parts."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

from penstock.dialects.agui.encode.profiles import Profile
from penstock.dialects.agui.ids import Names
from penstock.dialects.agui.vocabulary import EventType
from penstock.dialects.base import JsonObject

# Keeps the open parts of an AG-UI run, which are messages, thoughts, calls, steps and subagents.
#
# A client rejects a stream if a run ends or begins before all open parts have ended.


@dataclass(slots=True)
class Message:
    """An open message. `text` is kept only in a profile of complete messages."""

    role: str
    subrun_id: str | None  # The subrun of the message.
    sent: bool = False  # Whether a piece of the text was sent.
    text: list[str] = field(default_factory=list)
    started: JsonObject = field(default_factory=dict)


@dataclass(slots=True)
class Call:
    """A tool call. A call is kept after its end, because the result repeats the arguments."""

    tool: str
    message_id: str
    subrun_id: str | None
    args: JsonObject = field(default_factory=dict)
    text: list[str] = field(default_factory=list)
    sent: bool = False


@dataclass(slots=True)
class Step:
    """A step. The name is unique among the open steps of the same subrun."""

    name: str
    subrun_id: str | None


@dataclass(slots=True)
class Subagent:
    """A subrun, with the fields of its start."""

    started: JsonObject


@dataclass(slots=True)
class Ledger:
    """Keeps the open parts by their canonical ids, in the order in which they began."""

    messages: dict[str, Message] = field(default_factory=dict)
    # maps a reasoning id to the subrun
    thoughts: dict[str, str | None] = field(default_factory=dict)
    calls: dict[str, Call] = field(default_factory=dict)
    steps: dict[str, Step] = field(default_factory=dict)
    subagents: dict[str, Subagent] = field(default_factory=dict)
    # the ids of subagents that were started in this AG-UI run
    known_subagents: set[str] = field(default_factory=set)
    # Maps the kind and id of each open or ended part to its subrun.
    subruns: dict[str, str | None] = field(default_factory=dict)

    def subrun_of(self, entity: str, subrun_id: str | None) -> str | None:
        """Return the subrun that first opened the part: only this one may continue it in AG-UI."""
        return self.subruns.setdefault(entity, subrun_id)

    def step_name(self, step_id: str, description: str, subrun_id: str | None) -> str:
        taken = {step.name for step in self.steps.values() if step.subrun_id == subrun_id}
        name = description or step_id
        while name in taken:
            name = f"{name} ({step_id})"
        return name


# The type and the fields of an AG-UI event, and further facts that a profile may add. A profile
# writes the event from these parts.
Emitted = tuple[EventType, JsonObject, JsonObject]
NO_FACTS: Final[JsonObject] = {}


@dataclass(slots=True)
class Context:
    """The context of one run. `current_type` and `current_subrun` are of the event being
    encoded."""

    profile: Profile
    modern: bool
    open: Ledger = field(default_factory=Ledger)
    names: Names = field(default_factory=Names)
    current_type: str = ""
    current_subrun: str | None = None

    @property
    def scope(self) -> str:
        return self.names.scope

    def custom(self, data: JsonObject) -> Emitted:
        """Return a CUSTOM event, with the canonical event's data, for a type that AG-UI lacks."""
        ids: JsonObject = {  # the ids under which the client knows the call and the message
            key: self.names.of(data[key])
            for key in ("tool_call_id", "message_id")
            if isinstance(data.get(key), str)
        }
        value = {**data, **ids} if ids else data
        return (
            EventType.CUSTOM,
            self.with_subrun({"name": f"penstock.{self.current_type}", "value": value}),
            NO_FACTS,
        )

    def with_subrun(self, fields: JsonObject) -> JsonObject:
        return self.tagged(fields, self.current_subrun)

    def tagged(self, fields: JsonObject, subrun_id: str | None) -> JsonObject:
        if subrun_id is not None and self.modern:
            fields["subagentRunId"] = subrun_id
        return fields
