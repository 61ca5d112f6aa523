"""Defines the two field profiles of AG-UI's events: the strict profile `agui`, and `agui+runs`.

In `agui`, an event has exactly the fields that AG-UI describes. Penstock's own fields are under
`metadata.penstock`. In `agui+runs`, an event has the fields of agent-runs-sse.md. At the top level,
the event also has the fields that an AG-UI client needs. Messages and arguments are sent when they
are complete.

In agent-runs-sse.md, some counters are internal (`COUNTERS`). So `agui+runs` removes these counters
from metrics and from the frames of agent servers. Arguments, results, state and `ui_schema` are the
agent's own data. This data stays unchanged, even if some of its keys have the names of counters.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final, NamedTuple

from penstock.dialects.agui.vocabulary import OWN_EVENTS, EventType
from penstock.dialects.base import Json, JsonObject


class EventIds(NamedTuple):
    """The ids of an event's thread and run, and the event's time."""

    thread_id: str
    run_id: str  # the AG-UI run's id
    timestamp_ms: int | None


@dataclass(frozen=True, slots=True)
class Profile:
    """Describes a field profile. `body` writes an event from its type, its fields and its facts.

    With `complete`, messages and arguments are not sent in deltas. `step` is the name of the step
    that a run gets if the agent server sends none of agent-runs-sse.md's. `id_first` sets the order
    of lines in a frame (see `penstock.sse.encode`).
    """

    name: str
    body: Callable[[EventType, JsonObject, JsonObject, EventIds], JsonObject]
    complete: bool = False
    step: str | None = None
    id_first: bool = False


# The strict profile.

# Maps a type to the facts that the strict profile writes to `metadata.penstock`.
_KEPT: Final[Mapping[EventType, tuple[str, ...]]] = {
    EventType.RUN_STARTED: ("run_id", "leg", "agent"),
    EventType.RUN_FINISHED: ("approval_id", "reason", "by"),
    EventType.RUN_ERROR: ("error_type", "step", "status_code", "retryable", "detail", "by"),
    EventType.STEP_STARTED: ("step_id", "description", "kind", "iteration", "branch"),
    EventType.STEP_FINISHED: ("step_id", "output", "error"),
    EventType.TEXT_MESSAGE_END: (
        "value",
        "content_type",
        "citations",
        "parts",
        "status",
        "result_type",
        "key_points",
        "suggested_actions",
        "ui_schema",
        "error",
    ),
    EventType.TOOL_CALL_END: ("pending", "execution"),
    EventType.TOOL_CALL_RESULT: ("outcome", "error", "duration_s"),
    EventType.REASONING_MESSAGE_CONTENT: ("title", "debug"),
    EventType.SUBAGENT_FINISHED: ("status",),
}


def _strict(
    event_type: EventType, fields: JsonObject, facts: JsonObject, event_ids: EventIds
) -> JsonObject:
    body: JsonObject = {"type": event_type._value_, **fields}
    if event_ids.timestamp_ms is not None:
        body["timestamp"] = event_ids.timestamp_ms
    if facts:
        metadata = facts.get("metadata")  # the metadata from an AG-UI server
        metadata = dict(metadata) if isinstance(metadata, dict) else {}
        kept = {
            name: facts[name] for name in _KEPT.get(event_type, ()) if facts.get(name) is not None
        }
        if kept:
            metadata["penstock"] = kept
        if metadata:
            body["metadata"] = metadata
    return body


# The profile agui+runs.

STAGE: Final = "worker"
COUNTERS: Final = frozenset(
    {
        "inputTokens",
        "outputTokens",
        "cost",
        "latencyMs",
        "model",
        # the names of the same counters in the frames of agent servers
        "input_tokens",
        "output_tokens",
        "latency_ms",
    }
)
# The protocols whose custom events contain whole frames of a framework.
_FRAMED: Final = frozenset({"agno", "adk"})
_MESSAGE_STATUS: Final = frozenset({"success", "partial_success", "failed"})
_RESULT_TYPES: Final = frozenset({"execution_report", "clarification", "error_report", "unknown"})
_CALL_STATUS: Final = {"ok": "success", "partial": "partial"}

# The first keys of the events TOOL_CALL_START, TOOL_CALL_ARGS and TOOL_CALL_END.
_CALL: Final = ("messageId", "toolCallId", "toolCallName")
# Maps each type in agent-runs-sse.md to the top-level keys of its events. First come the document's
# keys in the document's order, then the keys that an AG-UI client needs (delta, toolCallId,
# content, outcome). Events of other types keep all their keys.
_KEYS: Final[Mapping[EventType, tuple[str, ...]]] = {
    EventType.RUN_STARTED: (),
    EventType.RUN_FINISHED: ("outcome",),
    EventType.RUN_ERROR: ("message", "code"),
    EventType.STEP_STARTED: ("stepName",),
    EventType.STEP_FINISHED: ("stepName",),
    EventType.TOOL_CALL_START: (*_CALL, "stage"),
    EventType.TOOL_CALL_ARGS: (*_CALL, "args", "stage", "delta"),
    EventType.TOOL_CALL_END: (*_CALL, "stage"),
    EventType.TOOL_CALL_RESULT: (
        "messageId",
        "role",
        "stage",
        "tool_name",
        "tool_call_id",
        "tool_call_args",
        "status",
        "result",
        "error",
        "toolCallId",
        "content",
    ),
    EventType.TEXT_MESSAGE_END: (
        "messageId",
        "role",
        "stage",
        "status",
        "answer",
        "key_points",
        "result_type",
        "suggested_actions",
        "error",
        "ui_schema",
    ),
}


def _runs(
    event_type: EventType, fields: JsonObject, facts: JsonObject, event_ids: EventIds
) -> JsonObject:
    head = {"type": event_type.value, "threadId": event_ids.thread_id, "runId": event_ids.run_id}
    document = _DOCUMENTED.get(event_type)
    documented = {**fields, **document(fields, facts)} if document else fields
    keys = _KEYS.get(event_type, documented)
    return head | {name: documented[name] for name in keys if name in documented}


def _call(fields: JsonObject, facts: JsonObject) -> JsonObject:
    return {
        "messageId": facts["message_id"],
        "toolCallName": facts["tool"],
        "args": facts["args"],
        "stage": STAGE,
    }


def _result(fields: JsonObject, facts: JsonObject) -> JsonObject:
    outcome = facts["outcome"]
    failed = outcome not in _CALL_STATUS
    return {
        "stage": STAGE,
        "tool_name": facts["tool"],
        "tool_call_id": fields["toolCallId"],
        "tool_call_args": facts["args"],
        "status": _CALL_STATUS.get(outcome, "failure"),
        "result": facts["text"],
        "error": facts.get("error") or outcome if failed else None,
    }


def _answer(fields: JsonObject, facts: JsonObject) -> JsonObject:
    error = facts.get("error")
    status = facts.get("status")
    if status not in _MESSAGE_STATUS:
        status = "failed" if error else "success"
    result_type = facts.get("result_type")
    if result_type not in _RESULT_TYPES:
        result_type = "error_report" if status == "failed" else "unknown"
    return {
        "role": facts["role"],
        "stage": STAGE,
        "status": status,
        "answer": facts["content"],
        "key_points": facts.get("key_points") or [],
        "result_type": result_type,
        "suggested_actions": facts.get("suggested_actions") or [],
        "error": error,
        "ui_schema": facts.get("ui_schema") or {},
    }


_DOCUMENTED: Final[Mapping[EventType, Callable[[JsonObject, JsonObject], JsonObject]]] = {
    EventType.TOOL_CALL_START: _call,
    EventType.TOOL_CALL_ARGS: _call,
    EventType.TOOL_CALL_END: _call,
    EventType.TOOL_CALL_RESULT: _result,
    EventType.TEXT_MESSAGE_END: _answer,
    EventType.RAW: lambda fields, facts: {"event": _without_counters(fields["event"])},
    EventType.CUSTOM: lambda fields, facts: {"value": _custom_value(fields)},
}


def _custom_value(fields: JsonObject) -> Json:
    """Leave out the counters of metrics and of servers' frames. Events that the author of an agent
    defined keep all their keys."""
    name, value = fields["name"], fields["value"]
    if name == "penstock.system.metrics":
        return _without_counters(value)
    if name != "penstock.custom.event" or value["protocol"] not in _FRAMED:
        return value
    if value["name"] in OWN_EVENTS:
        return value
    return {**value, "value": _without_counters(value["value"])}


def _without_counters(value: Json) -> Json:
    if isinstance(value, dict):
        return {
            name: _without_counters(item) for name, item in value.items() if name not in COUNTERS
        }
    if isinstance(value, list):
        return [_without_counters(item) for item in value]
    return value


STRICT: Final = Profile("agui", _strict)
RUNS: Final = Profile("agui+runs", _runs, complete=True, step=STAGE, id_first=True)
PROFILES: Final[Mapping[str, Profile]] = {each.name: each for each in (STRICT, RUNS)}
