"""Expands *_CHUNK events into the START, CONTENT and END events for which they stand.

The module follows the rules of AG-UI's reference client. A chunk without an id continues the
message or call of the previous chunk. Any other event of the same agent or subagent ends the open
message or call, except for a few types (`_BESIDE`) that may come between chunks.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from penstock.dialects.base import JsonObject
from penstock.dialects.json import string


@dataclass(frozen=True, slots=True)
class _Kind:
    """A kind of chunk, with the prefix and the content word of its event types, and the key of its
    id."""

    prefix: str
    content: str
    id_key: str


_CHUNKS: Mapping[str, _Kind] = {
    "TEXT_MESSAGE_CHUNK": _Kind("TEXT_MESSAGE", "CONTENT", "messageId"),
    "REASONING_MESSAGE_CHUNK": _Kind("REASONING_MESSAGE", "CONTENT", "messageId"),
    "TOOL_CALL_CHUNK": _Kind("TOOL_CALL", "ARGS", "toolCallId"),
}
_BESIDE = frozenset({"RAW", "ACTIVITY_SNAPSHOT", "ACTIVITY_DELTA", "REASONING_ENCRYPTED_VALUE"})
_ENDS = frozenset({"RUN_FINISHED", "RUN_ERROR"})


class Chunks:
    """Expands chunks, and keeps the open message or call of the agent and of each subagent."""

    def __init__(self) -> None:
        self._lanes: dict[str | None, tuple[_Kind, str]] = {}

    def expand(self, body: Any) -> list[Any]:
        """Return the start, content and end events for which a chunk stands. Any other event is
        returned unchanged, after the end of an open message or call that it ends, and so is a chunk
        without an id if there is no message or call to continue."""
        event_type = string(body.get("type"))
        kind = _CHUNKS.get(event_type) if event_type else None
        if kind is not None:
            return self._chunk(kind, body)
        if event_type in _BESIDE or not self._lanes:
            return [body]
        subagent_ids = (
            list(self._lanes) if event_type in _ENDS else [string(body.get("subagentRunId"))]
        )
        return [*(end for subagent_id in subagent_ids for end in self._close(subagent_id)), body]

    def _chunk(self, kind: _Kind, body: JsonObject) -> list[JsonObject]:
        subagent_id = string(body.get("subagentRunId"))
        open_kind, open_id = self._lanes.get(subagent_id, (None, None))
        part_id = string(body.get(kind.id_key)) or (open_id if open_kind is kind else None)
        events: list[JsonObject] = []
        if (open_kind, open_id) != (kind, part_id):
            events += self._close(subagent_id)
            if part_id is None:
                return [*events, body]
            self._lanes[subagent_id] = kind, part_id
            start = {key: value for key, value in body.items() if key != "delta"}
            events.append({**start, "type": f"{kind.prefix}_START"})
        if string(body.get("delta")):
            content = _event(f"{kind.prefix}_{kind.content}", kind, part_id, subagent_id)
            events.append({**content, "delta": body["delta"]})
        return events

    def _close(self, subagent_id: str | None) -> list[JsonObject]:
        kind, part_id = self._lanes.pop(subagent_id, (None, None))
        return [] if kind is None else [_event(f"{kind.prefix}_END", kind, part_id, subagent_id)]


def _event(
    event_type: str, kind: _Kind, part_id: str | None, subagent_id: str | None
) -> JsonObject:
    event: JsonObject = {"type": event_type, kind.id_key: part_id}
    return {**event, "subagentRunId": subagent_id} if subagent_id else event
