"""Converts pauses and calls into the shapes of Agno's frames (agno-events.md, agno 3.1)."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any, Final

from penstock.dialects.agno.vocabulary import TOKENS, is_answered_by_decision
from penstock.dialects.base import Json, JsonObject
from penstock.dialects.json import obj, objects, string

# Maps a type of JSON Schema to the type of an Agno field.
_FIELD_TYPES: Final = {
    "string": "str",
    "integer": "int",
    "number": "float",
    "boolean": "bool",
    "array": "list",
    "object": "dict",
}

CONFIRM: Final = "I have tools to execute, but I need confirmation."
_INPUT: Final = "I have tools to execute, but I need user input."
_EXTERNAL: Final = "I have tools to execute, but it needs external execution."

# Maps the kind of a pause's first item to the text of the pause.
PAUSE_TEXTS: Final[Mapping[str, str]] = {
    "input": _INPUT,
    "credential": _INPUT,
    "feedback": _INPUT,
    "selection": _INPUT,
    "external": _EXTERNAL,
    "long_running": _EXTERNAL,
}

# Maps the kind of a question to the built-in tool with which Agno asks this question.
_ASKING_TOOLS: Final[Mapping[str, str]] = {
    "input": "get_user_input",
    "feedback": "ask_user",
    "selection": "ask_user",
}


def tool(call_id: str, name: str, args: Json) -> JsonObject:
    """All keys are always present."""
    return {
        "tool_call_id": call_id,
        "tool_name": name,
        "tool_args": obj(args),
        "tool_call_error": None,
        "result": None,
        "metrics": None,
        "stop_after_tool_call": False,
        "requires_confirmation": None,
        "confirmed": None,
        "confirmation_note": None,
        "requires_user_input": None,
        "user_input_schema": None,
        "user_feedback_schema": None,
        "answered": None,
        "external_execution_required": None,
        "approval_id": None,
    }


def waiting_tool(item: JsonObject, approval_id: Json) -> JsonObject:
    """Return the tool object that a client fills in. `tool_call_id` is that of the later
    ToolCallStarted, or the item's id if the item has no call."""
    kind = item["kind"]
    name = item.get("tool") or _ASKING_TOOLS.get(kind, kind)
    waiting = tool(item.get("tool_call_id") or item["item_id"], name, item.get("args"))
    waiting["approval_id"] = approval_id
    match kind:
        case "external" | "long_running":
            waiting["external_execution_required"] = True
        case "input" | "credential":
            waiting["requires_user_input"] = True
            waiting["user_input_schema"] = _fields(item.get("input_schema"))
        case "feedback" | "selection":
            waiting["requires_user_input"] = True
            waiting["user_feedback_schema"] = _questions(item)
        case _:
            waiting["requires_confirmation"] = True
    return waiting


def requirement(item: JsonObject, waiting: JsonObject, at: str) -> JsonObject:
    """Name the member of an inner run."""
    member = item.get("subrun")
    whose: JsonObject = {}
    if member:
        name = member.get("name")
        whose = {
            "member_agent_id": name,
            "member_agent_name": name,
            "member_run_id": member["id"],
        }
    return {
        "id": item["item_id"],
        "confirmation": None,
        "confirmation_note": None,
        "tool_execution": waiting,
        "created_at": datetime.fromisoformat(at).astimezone(UTC).isoformat(),
        **whose,
    }


def step_requirement(item: JsonObject, waiting: JsonObject, at: str) -> JsonObject:
    # The item is a gate or a call of a step's agent.
    if item.get("tool_call_id"):
        member = obj(item.get("subrun"))
        return {
            "step_id": item["item_id"],
            "step_name": member.get("name") or item.get("tool"),
            "requires_executor_input": True,
            "executor_run_id": member.get("id"),
            "executor_name": member.get("name"),
            "executor_requirements": [requirement(item, waiting, at)],
        }
    message = item.get("description") or item["item_id"]
    step: JsonObject = {"step_id": item["item_id"], "step_name": message}
    match item["kind"]:
        case "selection":
            choices = {"available_choices": item.get("options"), "selected_choices": None}
            return {
                **step,
                **choices,
                "requires_route_selection": True,
                "user_input_message": message,
            }
        case "input":
            fields = {"user_input_schema": _fields(item.get("input_schema")), "user_input": None}
            return {**step, **fields, "requires_user_input": True, "user_input_message": message}
        case "review":
            review = {"requires_output_review": True, "output_review_message": message}
            return {**step, **review, "confirmed": None}
        case _:
            gate = {"requires_confirmation": True, "confirmation_message": message}
            return {**step, **gate, "confirmed": None}


def is_silent(item: JsonObject | None, name: str) -> bool:
    """Return whether the item's answer is the call's result, for which Agno sends no event."""
    if item is None:
        return False
    return is_answered_by_decision(item["kind"], name) or item["kind"] in (
        "selection",
        "long_running",
    )


def result_text(result: Json) -> str | None:
    """Use `str(value)` as Agno does: an object is a Python literal."""
    return result if result is None or isinstance(result, str) else str(result)


def completion_text(done: JsonObject, duration_s: float | None) -> str:
    """Return `content` of ToolCallCompleted."""
    args = ", ".join(f"{name}={value}" for name, value in done["tool_args"].items())
    time = "" if duration_s is None else f" in {duration_s:.4f}s"
    return f"{done['tool_name']}({args}) completed{time}. "


def citations(cited: Json) -> JsonObject:
    """Return the three lists of agno-events.md; other frameworks' URLs go to `urls`."""
    given = obj(cited)
    urls = [
        {"url": each["uri"], "title": each.get("title")}
        for each in objects(given.get("citations"))
        if string(each.get("uri"))
    ]
    known = {key: value for key, value in given.items() if key != "citations"}
    return {"documents": [], "raw": [], "urls": urls, **known}


def metrics(data: JsonObject, duration_s: float, first_token_s: float | None) -> JsonObject:
    """Compute durations that the agent server has not sent from the events' times."""
    measured: JsonObject = {"duration": duration_s}
    if first_token_s is not None:
        measured["time_to_first_token"] = first_token_s
    usage = obj(data.get("usage"))
    tokens = {theirs: usage[ours] for ours, theirs in TOKENS.items() if ours in usage}
    return {**tokens, **measured, **obj(data.get("metrics"))}


def _fields(schema: Json) -> list[JsonObject]:
    # A schema without properties becomes one field, `value`.
    given = obj(schema)
    properties = obj(given.get("properties")) or {"value": given}
    return [_field(name, obj(spec)) for name, spec in properties.items()]


def _field(name: str, spec: JsonObject) -> JsonObject:
    field: dict[str, Any] = {
        "name": name,
        "field_type": _FIELD_TYPES.get(str(spec.get("type")), "str"),
        "description": spec.get("description"),
        "value": spec.get("default"),
    }
    return {**field, "allowed_values": spec["enum"]} if "enum" in spec else field


def _questions(item: JsonObject) -> list[JsonObject]:
    """Return Agno's questions unchanged, of another framework's options one question."""
    options = item.get("options") or []
    if item["kind"] == "feedback" and objects(options):
        return objects(options)
    question = item.get("description") or item.get("tool") or item["kind"]
    labels = [{"label": each if isinstance(each, str) else str(each)} for each in options]
    return [
        {
            "question": question,
            "header": None,
            "multi_select": False,
            "selected_options": None,
            "options": labels,
        }
    ]
