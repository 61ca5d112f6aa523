"""What is open in an AG-UI run: the client rejects a run that ends, or begins again, around it."""

from __future__ import annotations

from dataclasses import dataclass, field

from penstock.dialects.base import JsonObject


@dataclass(slots=True)
class Message:
    """A message under way. `text` is kept only where nothing streams."""

    role: str
    owner: str | None  # the inner run that speaks
    said: bool = False  # a piece of it was sent
    text: list[str] = field(default_factory=list)
    started: JsonObject = field(default_factory=dict)


@dataclass(slots=True)
class Call:
    """A tool call, kept after its end: the result repeats what was asked."""

    tool: str
    message_id: str
    owner: str | None
    args: JsonObject = field(default_factory=dict)
    text: list[str] = field(default_factory=list)
    said: bool = False


@dataclass(slots=True)
class Step:
    """A step; its name is unique among its owner's open ones."""

    name: str
    owner: str | None


@dataclass(slots=True)
class Subagent:
    """An inner run, with what its start said."""

    started: JsonObject


@dataclass(slots=True)
class Ledger:
    """What is open, by canonical id, in the order of opening."""

    messages: dict[str, Message] = field(default_factory=dict)
    thoughts: dict[str, str | None] = field(default_factory=dict)  # id to inner run
    calls: dict[str, Call] = field(default_factory=dict)
    steps: dict[str, Step] = field(default_factory=dict)
    subagents: dict[str, Subagent] = field(default_factory=dict)
    known_subagents: set[str] = field(default_factory=set)  # started in this AG-UI run
    owners: dict[str, str | None] = field(default_factory=dict)  # by kind and id, for good

    def owner_of(self, entity: str, owner: str | None) -> str | None:
        """Whose it is: who opened it first, since nobody else may continue it."""
        return self.owners.setdefault(entity, owner)

    def step_name(self, step_id: str, description: str, owner: str | None) -> str:
        """The description, told apart from that of another open step."""
        taken = {step.name for step in self.steps.values() if step.owner == owner}
        name = description or step_id
        while name in taken:
            name = f"{name} ({step_id})"
        return name
