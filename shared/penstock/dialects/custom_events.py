"""Makes canonical drafts from an agent server's custom events that have the name of a canonical
event.

So an agent of any framework can emit nearly every canonical type. For example, a custom event named
`retrieval.result` becomes this type, and a custom event named `metrics_update` (the name in
unified-events.md) becomes `system.metrics`. If a custom event fits no canonical type, the caller
turns it into a `custom.event`.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable

from penstock.dialects.base import Draft, Json, JsonObject
from penstock.events import CATALOGUE, InvalidEvent, typed_data

# The prefixes of the canonical types that a custom event cannot become. The author of an agent's
# tools decides what custom events contain. So a custom event must never end or pause a run, or
# report a decision. Only the agent server's own frames and Penstock's services may do this. Nor may
# it say that content was erased.
FORBIDDEN = ("lifecycle.", "approval.", "system.erased")


def from_custom(name: str, value: Json) -> Draft | None:
    """Return the canonical draft (without source) for a custom event named `category.action`, or by
    one of the 22 unified names; None if it fits no canonical type: `value` must be an object with
    its required fields, each of the right type. Further fields are kept, and required ones that the
    payloads of unified-events.md and executions-sse.md lack are added.

    Security: the result is None for `lifecycle.*`, `approval.*` and `system.erased`, and for the
    unified names of lifecycle events (session_started, session_ended, run_retry, run_interrupted).
    `run_error` becomes `system.error`, which does not end the run.
    """
    if not isinstance(value, dict):
        return None
    event_type, translate = _UNIFIED.get(name) or (name, _EXECUTIONS.get(name))
    data = translate(value) if translate else value
    if event_type not in CATALOGUE or event_type.startswith(FORBIDDEN):
        return None
    try:
        typed_data(event_type, data)
    except InvalidEvent:
        return None
    return Draft(event_type, data)


Translate = Callable[[JsonObject], JsonObject]


def _fields(names: dict[str, str], **defaults: Json) -> Translate:
    def translate(value: JsonObject) -> JsonObject:
        return {**defaults, **{names.get(name, name): item for name, item in value.items()}}

    return translate


def _identified(key: str, by: str, translate: Translate) -> Translate:
    """Add the id that a canonical type requires: a digest of the field `by`."""

    def translated(value: JsonObject) -> JsonObject:
        digest = zlib.crc32(str(value.get(by)).encode("utf-8", "replace"))
        return {key: f"custom-{digest:08x}", **translate(value)}

    return translated


def _system_error(value: JsonObject) -> JsonObject:
    data = {"message": value.get("message"), "code": value.get("error_type", "run_error")}
    detail = {key: item for key, item in value.items() if key not in ("message", "error_type")}
    return {**data, "detail": detail} if detail else data


def _message_started(value: JsonObject) -> JsonObject:
    """Keep `agent` for the unified dialect; AG-UI clients read the speaker's name in `name`."""
    named = {"name": value["agent"]} if "agent" in value else {}
    return {"role": "assistant", **named, **value}


def _automation(value: JsonObject) -> JsonObject:
    return {"automation": value.get("workflow"), **value}


# Maps a canonical type to a function. The function adds the fields that the type requires and that
# the payload of executions-sse.md lacks.
_EXECUTIONS: dict[str, Translate] = {
    "dispatch.worker": _identified("subrun_id", "worker_name", _fields({})),
    "system.warning": _fields({}, code="warning"),
}

_UNIFIED: dict[str, tuple[str, Translate]] = {
    "session_started": ("lifecycle.started", _fields({})),
    "session_ended": ("lifecycle.completed", _fields({})),
    "run_retry": ("lifecycle.retrying", _fields({})),
    "run_interrupted": ("lifecycle.cancelled", _fields({})),
    "run_error": ("system.error", _system_error),
    "agent_message_start": ("llm.message_started", _message_started),
    "agent_message_delta": ("llm.stream", _fields({"delta": "content"})),
    "agent_message_end": ("llm.message_completed", _fields({}, role="assistant")),
    "tool_call_started": ("llm.tool_call", _fields({"tool_name": "tool"}, args={})),
    "tool_call_delta": ("llm.tool_progress", _fields({})),
    "tool_call_result": ("llm.tool_result", _fields({"tool_name": "tool"}, outcome="ok")),
    "workflow_started": ("workflow.started", _fields({})),
    "workflow_step_started": ("workflow.step_started", _fields({})),
    "workflow_step_completed": ("workflow.step_completed", _fields({})),
    "workflow_transition": ("workflow.transition", _fields({})),
    "workflow_completed": ("workflow.completed", _fields({})),
    "agent_thought": (
        "llm.reasoning",
        _identified("reasoning_id", "content", _fields({"content": "thought"})),
    ),
    "retrieval_started": ("retrieval.started", _identified("retrieval_id", "query", _fields({}))),
    "retrieval_result": ("retrieval.result", _fields({})),
    "automation_triggered": (
        "automation.triggered",
        _identified("delivery_id", "workflow", _automation),
    ),
    "automation_completed": (
        "automation.completed",
        _identified(
            "delivery_id",
            "workflow",
            lambda value: {"attempts": 1, "duration_s": 0.0} | _automation(value),
        ),
    ),
    "metrics_update": ("system.metrics", _fields({})),
}
