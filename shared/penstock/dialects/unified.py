"""Encodes canonical events into the frames of unified-events.md.

The name of a frame is the unified type, and the data of a frame is the root object of
unified-events.md. A payload has exactly the documented keys, and in addition `run_id`, because a
session has many runs. In every payload, even in `workflow_*`, `run_id` is the id of the canonical
run. A field that the canonical event lacks is null. `tool_call_result` also has `is_error`.

A message id begins with the run's id. The reason is that unified message ids must be unique in the
session, but agent servers number their messages from 1 in every run.
"""

from __future__ import annotations

import uuid
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

import orjson

from penstock.dialects.base import (
    ClientDialect,
    Json,
    JsonObject,
    append_text,
    frame,
    has_failed,
    omitted_types,
    type_of,
)
from penstock.sse import Frame

_TYPES: Final[Mapping[str, tuple[str, ...]]] = {
    "session": ("session_started", "session_ended"),
    "agent_messages": ("agent_message_start", "agent_message_delta", "agent_message_end"),
    "tools": ("tool_call_started", "tool_call_delta", "tool_call_result"),
    "workflows": (
        "workflow_started",
        "workflow_step_started",
        "workflow_step_completed",
        "workflow_transition",
        "workflow_completed",
    ),
    "reasoning": ("agent_thought",),
    "errors": ("run_error", "run_retry", "run_interrupted"),
    "rag": ("retrieval_started", "retrieval_result"),
    "n8n": ("automation_triggered", "automation_completed"),
    "infrastructure": ("metrics_update",),
}

# Maps each unified type to its category. The names of the categories come from the summary table in
# unified-events.md, in snake_case.
CATEGORY_OF: Final[Mapping[str, str]] = {
    event_type: category for category, types in _TYPES.items() for event_type in types
}


def selected_types(categories: Collection[str] = (), types: Collection[str] = ()) -> frozenset[str]:
    """Return the types that are in one of the categories and also among the types; none means all.
    Raise ValueError for an unknown one."""
    known = set(CATEGORY_OF.values())
    if unknown := sorted({*categories} - known):
        raise ValueError(
            f"no such category: {', '.join(unknown)} (categories: {', '.join(sorted(known))})"
        )
    if unknown := sorted({*types} - CATEGORY_OF.keys()):
        raise ValueError(f"no such type: {', '.join(unknown)} (types: {', '.join(CATEGORY_OF)})")
    return frozenset(
        event_type
        for event_type, category in CATEGORY_OF.items()
        if (not categories or category in categories) and (not types or event_type in types)
    )


# The UUID namespace from which event ids are made. With a fixed namespace, the ids are
# reproducible: an encoder that is fed again from the run's start gives each frame the same id as
# before.
_NAMESPACE: Final = uuid.UUID("0b9c33a4-6c1a-5c8e-9a53-0d4c6f2b7e91")

Payload = tuple[str, JsonObject]
# A function that makes one field of a payload from the event and the id of the event's agent.
Field = Callable[[JsonObject, str], Json]


@dataclass(slots=True)
class _Message:
    """A message that has begun and has not ended."""

    id: str
    # False if an earlier part of the message was closed, so that this is only the rest of the
    # message.
    is_whole: bool = True
    text: list[str] = field(default_factory=list)


@dataclass(slots=True)
class UnifiedEncoder:
    """Encodes the events of one run (see `penstock.dialects.base.Encoder`)."""

    _agent: str = ""  # The run's agent, as the agent of events without a source.
    # Whether the run is a workflow of Penstock.
    _is_workflow: bool = False
    # the names of the workflow's steps whose errors were sent
    _failed_steps: set[str] = field(default_factory=set)
    # Maps a canonical message id to the open message.
    _open: dict[str, _Message] = field(default_factory=dict)
    # Maps a canonical message id to the number of messages that have begun under this id.
    _begun: Counter[str] = field(default_factory=Counter)
    # the warnings that wait until no message is open
    _warnings: list[Payload] = field(default_factory=list)

    def feed(self, event: JsonObject) -> Sequence[Frame]:
        event_type = type_of(event)
        source = event.get("source")
        agent = source["agent_id"] if source else self._agent
        handle = _HANDLERS.get(event_type)
        if handle is not None:
            payloads = list(handle(self, event, agent))
        elif event_type in _FIELDS:
            unified, fields = _FIELDS[event_type]
            payloads = [(unified, {key: read(event, agent) for key, read in fields.items()})]
        else:
            payloads = []
        if self._warnings and not self._open:
            payloads += self._warnings
            self._warnings = []
        return [_framed(event, index, *payload) for index, payload in enumerate(payloads)]

    def _started(self, event: JsonObject, _agent: str) -> Iterator[Payload]:
        data = event["data"]
        self._agent = data.get("agent", "")
        self._is_workflow = bool(data.get("workflow"))
        metadata = {
            "user_id": data.get("user_id"),
            # If the event names no workflow, the run's agent is used as the name.
            "workflow": data.get("workflow", self._agent),
        }
        session_id = event.get("session_id", "")
        started = {"session_id": session_id, "agent": self._agent, "metadata": metadata}
        yield "session_started", started

    def _completed(self, event: JsonObject, agent: str) -> Iterator[Payload]:
        yield from self._close(event, agent)
        yield _ended(event, "completed", event["data"].get("summary", ""))

    def _failed(self, event: JsonObject, agent: str) -> Iterator[Payload]:
        yield from self._erred(event, agent)
        yield _ended(event, "failed", event["data"].get("error", ""))

    def _cancelled(self, event: JsonObject, agent: str) -> Iterator[Payload]:
        yield from self._interrupted(event, agent)
        yield _ended(event, "cancelled", event["data"].get("reason", "user_stop"))

    def _interrupted(self, event: JsonObject, agent: str) -> Iterator[Payload]:
        yield from self._close(event, agent)
        default = "approval_required" if event["event"]["action"] == "paused" else "user_stop"
        data = event["data"]
        step = data.get("step", event.get("step_id"))
        yield "run_interrupted", {"reason": data.get("reason", default), "step": step}

    def _erred(self, event: JsonObject, agent: str) -> Iterator[Payload]:
        """End open messages, and then encode an error. A workflow's step that fails makes one
        error: the workflow fails because of the step, and a loop because of one of its items, so
        these repeat it."""
        yield from self._close(event, agent)
        data = event["data"]
        error = data.get("error")
        reported = error if isinstance(error, dict) else data
        detail = data.get("detail")  # the step, if the error was a custom event named `run_error`
        inside: JsonObject = detail if isinstance(detail, dict) else {}
        step, speaker = (
            value if isinstance(value := inside.get(key), str) and value else None
            for key in ("step", "agent")
        )
        message = reported.get("message", reported.get("error", ""))
        step = data.get("step") or data.get("step_id") or event.get("step_id") or step
        if self._is_workflow and step:
            # unified-events.md has the step's id in `workflow_step_*`, and the name of the step, as
            # the definition has it, in errors.
            step = step.removeprefix("step_")
            name, _, item = step.partition(".")
            if not item and name in self._failed_steps:
                return
            self._failed_steps.add(name)
        yield (
            "run_error",
            {
                "error_type": reported.get("error_type") or reported.get("code") or "error",
                "message": message,
                "agent": speaker or agent,
                "step": step,
            },
        )

    def _warned(self, event: JsonObject, agent: str) -> Iterator[Payload]:
        """Keep a warning until no message is open: it becomes `run_error`, at which messages
        end."""
        data = event["data"]
        payload = {
            "error_type": data.get("code") or "warning",
            "message": data.get("message", ""),
            "agent": agent,
            "step": event.get("step_id"),
        }
        self._warnings.append(("run_error", payload))
        yield from ()

    def _message_started(self, event: JsonObject, agent: str) -> Iterator[Payload]:
        if event["data"]["message_id"] not in self._open:
            yield self._begin(event, agent)

    def _streamed(self, event: JsonObject, agent: str) -> Iterator[Payload]:
        data = event["data"]
        if data["message_id"] not in self._open:
            yield self._begin(event, agent)
        message = self._open[data["message_id"]]
        append_text(message.text, data["content"])
        yield "agent_message_delta", {"message_id": message.id, "delta": data["content"]}

    def _message_completed(self, event: JsonObject, agent: str) -> Iterator[Payload]:
        """If no piece of the content was sent, as with structured output, it becomes one delta."""
        data = event["data"]
        if data["message_id"] not in self._open:
            yield self._begin(event, agent)
        message = self._open.pop(data["message_id"])
        content = data["content"] if message.is_whole else "".join(message.text)
        if content and not message.text:
            yield "agent_message_delta", {"message_id": message.id, "delta": content}
        yield "agent_message_end", {"message_id": message.id, "content": content}

    def _begin(self, event: JsonObject, agent: str) -> Payload:
        canonical_id = event["data"]["message_id"]
        self._begun[canonical_id] += 1
        times = self._begun[canonical_id]
        message_id = f"{event['run_id']}/{canonical_id}"
        if times > 1:
            message_id += f"#{times}"
        self._open[canonical_id] = _Message(message_id, is_whole=times == 1)
        speaker = _speaker(event, agent)
        return "agent_message_start", {"agent": speaker, "message_id": message_id}

    def _close(self, _event: JsonObject, _agent: str) -> Iterator[Payload]:
        for message in self._open.values():
            content = "".join(message.text)
            yield "agent_message_end", {"message_id": message.id, "content": content}
        self._open.clear()

    def _thought(self, event: JsonObject, agent: str) -> Iterator[Payload]:
        # An empty thought only ends the thoughts, and makes no frame.
        data = event["data"]
        if data["thought"]:
            debug = data.get("debug") is True
            speaker = _speaker(event, agent)
            yield "agent_thought", {"agent": speaker, "content": data["thought"], "debug": debug}

    def _tool_progressed(self, event: JsonObject, _agent: str) -> Iterator[Payload]:
        data = event["data"]
        if data.get("delta"):
            yield "tool_call_delta", {"tool_call_id": data["tool_call_id"], "delta": data["delta"]}


Handler = Callable[[UnifiedEncoder, JsonObject, str], Iterator[Payload]]

# Maps a type to its handler. The table has the types whose frames depend on earlier events, and the
# types that may make several frames or none.
_HANDLERS: Final[Mapping[str, Handler]] = {
    "lifecycle.started": UnifiedEncoder._started,
    "lifecycle.paused": UnifiedEncoder._interrupted,
    "lifecycle.completed": UnifiedEncoder._completed,
    "lifecycle.failed": UnifiedEncoder._failed,
    "lifecycle.cancelled": UnifiedEncoder._cancelled,
    "system.error": UnifiedEncoder._erred,
    "system.warning": UnifiedEncoder._warned,
    "workflow.step_failed": UnifiedEncoder._erred,
    "llm.message_started": UnifiedEncoder._message_started,
    "llm.stream": UnifiedEncoder._streamed,
    "llm.message_completed": UnifiedEncoder._message_completed,
    "llm.reasoning": UnifiedEncoder._thought,
    "llm.tool_progress": UnifiedEncoder._tool_progressed,
}


def _data(key: str) -> Field:
    return lambda event, _agent: event["data"].get(key)


def _speaker(event: JsonObject, agent: str) -> Json:
    """Prefer the agent that the event's data names to that of its source."""
    named = event["data"].get("agent")
    return named if isinstance(named, str) and named else agent


def _is_error(event: JsonObject, _agent: str) -> Json:
    return has_failed(event["data"])


def _result(event: JsonObject, _agent: str) -> Json:
    """unified-events.md requires an object with a `summary`."""
    result = event["data"].get("result")
    if isinstance(result, dict) and isinstance(result.get("summary"), str):
        return result
    if isinstance(result, str):
        return {"summary": result}
    summary = "" if result is None else orjson.dumps(result).decode()
    return {"summary": summary, "value": result}


def _documents(event: JsonObject, _agent: str) -> Json:
    keys = ("id", "score", "content")
    return [{key: each.get(key) for key in keys} for each in event["data"].get("documents", ())]


def _failure(event: JsonObject, _agent: str) -> Json:
    """Begin with "failed": unified-events.md has only `automation_completed`."""
    return f"failed: {event['data'].get('result', '')}"


def _same(*keys: str) -> Mapping[str, Field]:
    return {key: _data(key) for key in keys}


_NAMED_CALL: Final = {**_same("tool_call_id"), "tool_name": _data("tool")}

# Maps each canonical type that makes exactly one frame to its unified type and to the functions
# that make the fields of the payload.
_FIELDS: Final[Mapping[str, tuple[str, Mapping[str, Field]]]] = {
    "lifecycle.retrying": ("run_retry", _same("retry_count", "max_retries", "reason")),
    "llm.tool_call": ("tool_call_started", {**_NAMED_CALL, "agent": _speaker, **_same("args")}),
    "llm.tool_result": (
        "tool_call_result",
        {**_NAMED_CALL, **_same("result"), "is_error": _is_error},
    ),
    "workflow.started": ("workflow_started", _same("workflow")),
    "workflow.step_started": ("workflow_step_started", _same("step_id", "description")),
    "workflow.step_completed": ("workflow_step_completed", _same("step_id", "output")),
    "workflow.transition": ("workflow_transition", _same("from_step", "to_step", "reason")),
    "workflow.completed": ("workflow_completed", {"result": _result}),
    "retrieval.started": ("retrieval_started", {**_same("query"), "agent": _speaker}),
    "retrieval.result": ("retrieval_result", {"documents": _documents}),
    "automation.triggered": ("automation_triggered", _same("workflow", "trigger")),
    "automation.completed": ("automation_completed", _same("workflow", "result")),
    "automation.failed": ("automation_completed", {**_same("workflow"), "result": _failure}),
    "system.metrics": (
        "metrics_update",
        _same("cpu", "memory_used", "disk_free", "containers_running"),
    ),
}


def _ended(event: JsonObject, reason: str, summary: str) -> Payload:
    session_id = event.get("session_id", "")
    return "session_ended", {"session_id": session_id, "reason": reason, "summary": summary}


def _framed(event: JsonObject, index: int, event_type: str, payload: JsonObject) -> Frame:
    run_id = event["run_id"]
    body = {
        "event_id": str(uuid.uuid5(_NAMESPACE, f"{run_id}/{event['sequence']}/{index}")),
        "session_id": event.get("session_id", ""),
        "timestamp": event["timestamp"],
        "type": event_type,
        "payload": {"run_id": run_id, **payload},
    }
    return frame(body, event_type)


# Where a client sees the content of canonical types that have no unified type.
_INSTEAD: Final[Mapping[str, str]] = {
    "lifecycle.resumed": "what follows shows that the run goes on",
    "llm.tool_args": "tool_call_started has the arguments whole",
    "llm.usage": "no type of the document has tokens",
    "dispatch.team": "the team's own messages and calls name it as their agent",
    "dispatch.worker": "the worker's own messages and calls name it as their agent",
    "dispatch.transfer": "what follows names the new agent",
    "dispatch.finished": "the worker's messages and results have ended",
    "workflow.step_progress": "no field of the document could carry it",
    "workflow.failed": "run_error of the run that failed with it",
    "approval.requested": "run_interrupted, where a person must decide",
    "approval.decided": "the run goes on; a refused call has a result with is_error",
    "approval.expired": "the run goes on or ends",
    "approval.withdrawn": "session_ended came before",
}
OMITTED: Final = omitted_types(
    _HANDLERS.keys() | _FIELDS.keys(), _INSTEAD, "no type of the document"
)
DIALECT: Final = ClientDialect(
    UnifiedEncoder, omitted=OMITTED, stateful=True, select_types=selected_types
)
