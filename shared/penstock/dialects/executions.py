"""Encodes canonical events into the frames of executions-sse.md.

The frames of the twelve documented actions have exactly the documented keys, at the top and in
`data`. If a tool call failed or was rejected, its `result` is an object (`{outcome, error}`). The
frames of all other actions have the same six keys at the top. In these frames, `data` is the
complete data of the event, so that a client can, for example, show a pause.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from penstock.dialects.base import ClientDialect, Json, JsonObject, frame, has_failed, type_of
from penstock.sse import Frame

# Maps a canonical type to the documented keys of its `data`. Each key has a default for events that
# lack the key.
DOCUMENTED: Final[Mapping[str, JsonObject]] = {
    "lifecycle.started": {},
    "lifecycle.completed": {"summary": ""},
    "lifecycle.failed": {"error": ""},
    "lifecycle.cancelled": {},
    "llm.stream": {"content": ""},
    "llm.reasoning": {"thought": ""},
    "llm.tool_call": {"tool": "", "args": {}},
    "llm.tool_result": {"tool": "", "result": None},
    "dispatch.team": {"team_name": "", "task": ""},
    "dispatch.worker": {"worker_name": "", "task": ""},
    "system.warning": {"message": ""},
    "system.error": {"message": "", "code": ""},
}
SOURCELESS: Final = frozenset({"lifecycle.started", "lifecycle.cancelled"})
SOURCE_KEYS: Final = ("agent_id", "agent_type", "agent_name", "team_name")


@dataclass(slots=True)
class ExecutionsEncoder:
    """Encodes each event into one frame. Keeps no state."""

    def feed(self, event: JsonObject) -> Sequence[Frame]:
        name = event["event"]
        event_type = type_of(event)
        body = {
            "run_id": event["run_id"],
            "timestamp": event["timestamp"],
            "sequence": event["sequence"],
            "source": None if event_type in SOURCELESS else _source(event.get("source")),
            "event": {"category": name["category"], "action": name["action"]},
            "data": _data(event_type, event["data"]),
        }
        return (frame(body, event_type),)


def _source(source: JsonObject | None) -> JsonObject | None:
    return source and {key: source.get(key) for key in SOURCE_KEYS}


def _data(event_type: str, data: JsonObject) -> Json:
    documented = DOCUMENTED.get(event_type)
    if documented is None:
        return data
    documented_data = {key: data.get(key, default) for key, default in documented.items()}
    if event_type == "llm.tool_result" and has_failed(data):
        documented_data["result"] = _failure(data)
    return documented_data


def _failure(data: JsonObject) -> JsonObject:
    """Return `{outcome, error, result}`: executions-sse.md has no field for a failure, and a client
    could not distinguish a rejected call from one that returned nothing."""
    outcome = data["outcome"]
    failure: JsonObject = {"outcome": outcome, "error": data.get("error") or outcome}
    if data.get("result") is not None:
        failure["result"] = data["result"]
    return failure


DIALECT: Final = ClientDialect(ExecutionsEncoder)
