"""Keeps the open parts of an AG-UI run, which are messages, thoughts, calls, steps and subagents.

A client rejects a stream if a run ends or begins before all open parts have ended.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from penstock.dialects.base import JsonObject


@dataclass(slots=True)
class Message:
    """An open message. `text` is kept only in a profile of complete messages."""

    role: str
    owner: str | None  # The inner run of the message.
    sent: bool = False  # Whether a piece of the text was sent.
    text: list[str] = field(default_factory=list)
    started: JsonObject = field(default_factory=dict)


@dataclass(slots=True)
class Call:
    """A tool call. A call is kept after its end, because the result repeats the arguments."""

    tool: str
    message_id: str
    owner: str | None
    args: JsonObject = field(default_factory=dict)
    text: list[str] = field(default_factory=list)
    sent: bool = False


@dataclass(slots=True)
class Step:
    """A step. The name is unique among the open steps of the same owner."""

    name: str
    owner: str | None


@dataclass(slots=True)
class Subagent:
    """An inner run, with the fields of its start."""

    started: JsonObject


@dataclass(slots=True)
class Ledger:
    """Keeps the open parts by their canonical ids, in the order in which they began."""

    messages: dict[str, Message] = field(default_factory=dict)
    # maps a reasoning id to the inner run
    thoughts: dict[str, str | None] = field(default_factory=dict)
    calls: dict[str, Call] = field(default_factory=dict)
    steps: dict[str, Step] = field(default_factory=dict)
    subagents: dict[str, Subagent] = field(default_factory=dict)
    # the ids of subagents that were started in this AG-UI run
    known_subagents: set[str] = field(default_factory=set)
    # Maps the kind and id of each open or ended part to its inner run.
    owners: dict[str, str | None] = field(default_factory=dict)

    def owner_of(self, entity: str, owner: str | None) -> str | None:
        """Return the inner run that first opened the part, or `owner` if the part is new.

        In AG-UI, only the inner run that opened a part may continue the part.
        """
        return self.owners.setdefault(entity, owner)

    def step_name(self, step_id: str, description: str, owner: str | None) -> str:
        """Return a name for a step, which is the description, made unique among the open steps of
        the owner."""
        taken = {step.name for step in self.steps.values() if step.owner == owner}
        name = description or step_id
        while name in taken:
            name = f"{name} ({step_id})"
        return name
