"""One ADK event on its way to drafts."""

from __future__ import annotations

from dataclasses import dataclass

from penstock.dialects.adk.decode.messages import Speaker
from penstock.dialects.adk.decode.redaction import redacted, speaks_of_credentials
from penstock.dialects.adk.decode.steps import Place
from penstock.dialects.base import Draft, Json, JsonObject, short
from penstock.dialects.json import loads, obj, string


@dataclass(slots=True)
class Event:
    """The event as it came, who says it where, and the drafts that it has given so far."""

    raw: JsonObject
    place: Place
    speaker: Speaker
    out: list[Draft]

    @property
    def id(self) -> str | None:
        """The upstream's id; from 2.6 on all frames of one answer share it."""
        return string(self.raw.get("id"))

    @property
    def actions(self) -> JsonObject:
        """What it does beside its content."""
        return obj(self.raw.get("actions"))

    def emit(self, event_type: str, data: JsonObject) -> None:
        """A draft of it."""
        self.out.append(self.speaker.draft(event_type, data))

    def custom(self, key: str, value: Json) -> None:
        """What the contract has no place for."""
        self.emit("custom.event", custom(key, value))


def custom(key: str, value: Json) -> JsonObject:
    """The data of a `custom.event`."""
    return {"protocol": "adk", "name": f"adk.{key}", "value": value}


def read(data: bytes) -> JsonObject | None:
    """A frame's JSON object without secrets; None where it is none, or nested beyond reason."""
    try:
        raw = loads(data)
    except ValueError:
        return None
    if not isinstance(raw, dict):
        return None
    return redacted(raw) if speaks_of_credentials(data) else raw


def place_of(raw: JsonObject) -> Place:
    """Where an event comes from."""
    node = raw.get("nodeInfo")
    path = node.get("path") if isinstance(node, dict) else None
    branch = string(raw.get("branch"))
    return Place(
        short(string(raw.get("author")) or ""),
        short(branch) if branch else None,
        short(path) if isinstance(path, str) else None,
    )
