"""Reads one ADK event, and collects the drafts that the decoder makes from the event."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from penstock.dialects.adk.decode.frames import Actions, AdkEvent, NodeInfo
from penstock.dialects.adk.decode.messages import Speaker
from penstock.dialects.adk.decode.redaction import may_contain_credentials, redacted
from penstock.dialects.adk.decode.steps import Place
from penstock.dialects.base import Draft, Json, JsonObject, short
from penstock.dialects.json import loads, obj, string


@dataclass(slots=True)
class Event:
    """A received event, its place and speaker, and the drafts that are made from it."""

    raw: AdkEvent
    place: Place
    speaker: Speaker
    out: list[Draft]

    @property
    def id(self) -> str | None:
        """From ADK 2.6 on, all frames of one answer have the same id."""
        return string(self.raw.get("id"))

    @property
    def actions(self) -> Actions:
        actions: Actions = obj(self.raw.get("actions"))
        return actions

    def emit(self, event_type: str, data: JsonObject) -> None:
        self.out.append(self.speaker.draft(event_type, data))

    def custom(self, key: str, value: Json) -> None:
        self.emit("custom.event", custom(key, value))


def custom(key: str, value: Json) -> JsonObject:
    return {"protocol": "adk", "name": f"adk.{key}", "value": value}


def read(data: bytes) -> Any:
    """Return None if the frame contains no object."""
    try:
        raw = loads(data)
    except ValueError:
        return None
    if not isinstance(raw, dict):
        return None
    return redacted(raw) if may_contain_credentials(data) else raw


def place_of(raw: AdkEvent) -> Place:
    node: NodeInfo = obj(raw.get("nodeInfo"))
    path = node.get("path")
    branch = string(raw.get("branch"))
    return Place(
        short(string(raw.get("author")) or ""),
        short(branch) if branch else None,
        short(path) if isinstance(path, str) else None,
    )
