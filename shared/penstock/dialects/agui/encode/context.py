"""What the parts of an encoder share: who the client is, whose event it is, what is open."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

from penstock.dialects.agui.encode.ledger import Ledger
from penstock.dialects.agui.encode.profiles import Profile
from penstock.dialects.agui.ids import Names
from penstock.dialects.agui.vocabulary import EventType
from penstock.dialects.base import JsonObject

# What one canonical event makes: a type, its fields, and the facts that a profile may add.
Emitted = tuple[EventType, JsonObject, JsonObject]
NO_FACTS: Final[JsonObject] = {}


@dataclass(slots=True)
class Context:
    """Of one run. `type` and `owner`, the inner run that speaks, are the current event's."""

    profile: Profile
    modern: bool
    open: Ledger = field(default_factory=Ledger)
    names: Names = field(default_factory=Names)
    type: str = ""
    owner: str | None = None

    @property
    def scope(self) -> str:
        """What the ids of this run begin with."""
        return self.names.scope

    def custom(self, data: JsonObject) -> Emitted:
        """What the protocol has no type for: the current event, its data as the value."""
        ids: JsonObject = {  # as the client knows them
            key: self.names.of(data[key])
            for key in ("tool_call_id", "message_id")
            if isinstance(data.get(key), str)
        }
        value = {**data, **ids} if ids else data
        return (
            EventType.CUSTOM,
            self.mine({"name": f"penstock.{self.type}", "value": value}),
            NO_FACTS,
        )

    def mine(self, fields: JsonObject) -> JsonObject:
        """The fields, with the inner run of the current event."""
        return self.tagged(fields, self.owner)

    def tagged(self, fields: JsonObject, owner: str | None) -> JsonObject:
        """The fields, with the inner run that they come from, for a client that knows of such."""
        if owner is not None and self.modern:
            fields["subagentRunId"] = owner
        return fields
