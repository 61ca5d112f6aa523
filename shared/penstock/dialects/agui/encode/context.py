"""Holds the data that all modules of the encoder use: the client, the current event, and the open
parts."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

from penstock.dialects.agui.encode.ledger import Ledger
from penstock.dialects.agui.encode.profiles import Profile
from penstock.dialects.agui.ids import Names
from penstock.dialects.agui.vocabulary import EventType
from penstock.dialects.base import JsonObject

# The type and the fields of an AG-UI event, and further facts that a profile may add. A profile
# writes the event from these parts.
Emitted = tuple[EventType, JsonObject, JsonObject]
NO_FACTS: Final[JsonObject] = {}


@dataclass(slots=True)
class Context:
    """The context of one run.

    `type` and `owner` are the type and the inner run of the current event.
    """

    profile: Profile
    modern: bool
    open: Ledger = field(default_factory=Ledger)
    names: Names = field(default_factory=Names)
    type: str = ""
    owner: str | None = None

    @property
    def scope(self) -> str:
        """The qualifier at the beginning of this run's ids (see `ids`)."""
        return self.names.scope

    def custom(self, data: JsonObject) -> Emitted:
        """Return a CUSTOM event for a type that AG-UI lacks.

        The value of the CUSTOM event is the canonical event's data.
        """
        ids: JsonObject = {  # the ids under which the client knows the call and the message
            key: self.names.of(data[key])
            for key in ("tool_call_id", "message_id")
            if isinstance(data.get(key), str)
        }
        value = {**data, **ids} if ids else data
        return (
            EventType.CUSTOM,
            self.with_inner_run({"name": f"penstock.{self.type}", "value": value}),
            NO_FACTS,
        )

    def with_inner_run(self, fields: JsonObject) -> JsonObject:
        """Add the inner run of the current event to the fields, if the client knows subagents."""
        return self.tagged(fields, self.owner)

    def tagged(self, fields: JsonObject, owner: str | None) -> JsonObject:
        """Add the inner run `owner` to the fields, if the client knows subagents."""
        if owner is not None and self.modern:
            fields["subagentRunId"] = owner
        return fields
