"""The open parts of an AG-UI run.

A client rejects a run that ends, or begins again, before they end.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from penstock.dialects.base import JsonObject


@dataclass(slots=True)
class Message:
    """An open message. `text` is kept only in profiles of complete messages."""

    role: str
    owner: str | None  # the inner run of the message
    sent: bool = False  # a piece of its text was sent
    text: list[str] = field(default_factory=list)
    started: JsonObject = field(default_factory=dict)


@dataclass(slots=True)
class Call:
    """A tool call. It is kept after its end, since the result repeats its arguments."""

    tool: str
    message_id: str
    owner: str | None
    args: JsonObject = field(default_factory=dict)
    text: list[str] = field(default_factory=list)
    sent: bool = False


@dataclass(slots=True)
class Step:
    """A step. Its name is unique among the open steps of its owner."""

    name: str
    owner: str | None


@dataclass(slots=True)
class Subagent:
    """An inner run, with the fields of its start."""

    started: JsonObject


@dataclass(slots=True)
class Ledger:
    """The open parts by canonical id, in the order of opening."""

    messages: dict[str, Message] = field(default_factory=dict)
    thoughts: dict[str, str | None] = field(default_factory=dict)  # id to inner run
    calls: dict[str, Call] = field(default_factory=dict)
    steps: dict[str, Step] = field(default_factory=dict)
    subagents: dict[str, Subagent] = field(default_factory=dict)
    known_subagents: set[str] = field(default_factory=set)  # started in this AG-UI run
    # by kind and id, also of ended parts
    owners: dict[str, str | None] = field(default_factory=dict)

    def owner_of(self, entity: str, owner: str | None) -> str | None:
        """The inner run that opened the part first, since AG-UI lets no other continue it."""
        return self.owners.setdefault(entity, owner)

    def step_name(self, step_id: str, description: str, owner: str | None) -> str:
        """The description, made unique among the open steps of the owner."""
        taken = {step.name for step in self.steps.values() if step.owner == owner}
        name = description or step_id
        while name in taken:
            name = f"{name} ({step_id})"
        return name
