"""Makes the response to a request without a stream (`stream=false`), which Agno calls RunOutput."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final

import orjson

from penstock.dialects.agno.encode import pauses
from penstock.dialects.agno.encode.encoder import AgnoEncoder
from penstock.dialects.base import Json, JsonObject, epoch_s, has_failed, type_of

# Maps the name of a run's last frame to the status of the run. The table has the names of an
# agent's frames. So `RunCompleted` also stands for `TeamRunCompleted` and `WorkflowCompleted`.
_STATUS: Final = {
    "RunCompleted": "COMPLETED",
    "RunPaused": "PAUSED",
    "RunError": "ERROR",
    "RunCancelled": "CANCELLED",
}

# The keys of a frame that the RunOutput does not have. These keys describe only the frame, or the
# RunOutput has the same content under another key.
_NOT_OF_THE_RUN: Final = frozenset({"event", "created_at", "reason", "error"})


def run_output(events: Iterable[JsonObject], encoder: AgnoEncoder | None = None) -> JsonObject:
    """Return the run as one object. `events` are its envelopes from its start to its end or a
    pause, `encoder` a new encoder with the surface's kind and names.

    `status` is COMPLETED, PAUSED, ERROR, CANCELLED or, before the end, RUNNING. As in Agno, the
    `content` of a failed run is the text of the error. `input` is the user's message, `messages`
    the conversation, which a workflow lacks.
    """
    events = list(events)
    encoder = encoder or AgnoEncoder()
    output: JsonObject = {}
    tools: dict[str, JsonObject] = {}
    text_pieces: list[str] = []
    for event in events:
        user_id = event["data"].get("user_id")
        if user_id and event["sequence"] == 1:
            output["user_id"] = user_id
        for frame in encoder.feed(event):
            body = orjson.loads(frame.data)
            for tool in (body.get("tool"), *body.get("tools", ())):
                if tool:
                    tools[tool["tool_call_id"]] = tool
            if body["run_id"] != event["run_id"]:
                continue  # a frame of an inner run
            name = body["event"].removeprefix("Team").replace("Workflow", "Run")
            if name == "RunContent":
                text_pieces += [body["content"]] if isinstance(body.get("content"), str) else ()
            elif name in ("RunStarted", "RunContinued", "StepContinued", *_STATUS):
                output.setdefault("created_at", body["created_at"])
                output |= {key: body[key] for key in body.keys() - _NOT_OF_THE_RUN}
                output["status"] = _STATUS.get(name, "RUNNING")
    output.setdefault("content", "".join(text_pieces))
    output.setdefault("content_type", "str")
    if tools:
        output["tools"] = list(tools.values())
    if (message := _input(events)) is not None:
        is_workflow = encoder.kind == "workflow"
        output["input"] = message if is_workflow else {"input_content": message}
    if encoder.kind != "workflow":
        output["messages"] = messages_of(events)
    return output


def _input(events: Sequence[JsonObject]) -> str | None:
    """Return None if the events do not begin with the run's start."""
    for event in events[:1]:
        message = event["data"].get("message")
        if event["sequence"] == 1 and isinstance(message, str):
            return message
    return None


# Makes a run's conversation in the form in which Agno stores it, with the user's message, calls,
# results and answers.
#
# Agno also stores the system prompt and the counters of each model. The result lacks both, because
# canonical events do not contain them.

_ALWAYS: Final = {"from_history": False, "stop_after_tool_call": False}


def messages_of(events: Iterable[JsonObject]) -> list[JsonObject]:
    messages: list[JsonObject] = []
    for event in events:
        if event.get("subrun"):
            continue
        data = event["data"]
        match type_of(event):
            case "lifecycle.started" if data.get("message"):
                messages.append(_message(event, "user", data["message"]))
            case "llm.message_completed" if data.get("value") is not None or data["content"]:
                value = data.get("value")
                content = data["content"] if value is None else orjson.dumps(value).decode()
                messages.append(_message(event, "assistant", content))
            case "llm.tool_call":
                if not messages or messages[-1]["role"] != "assistant":
                    messages.append(_message(event, "assistant", ""))
                messages[-1].setdefault("tool_calls", []).append(_call(data))
            case "llm.tool_result":
                messages.append(_result(event))
    return messages


def _message(event: JsonObject, role: str, content: Json) -> JsonObject:
    return {"content": content, **_ALWAYS, "role": role, "created_at": int(epoch_s(event))}


def _call(data: JsonObject) -> JsonObject:
    arguments = orjson.dumps(data.get("args") or {}).decode()
    function = {"name": data["tool"], "arguments": arguments}
    return {"id": data["tool_call_id"], "type": "function", "function": function}


def _result(event: JsonObject) -> JsonObject:
    data = event["data"]
    failed = has_failed(data)
    result = pauses.result_text(data.get("error") if failed else data.get("result"))
    return {
        **_message(event, "tool", result),
        "tool_call_id": data["tool_call_id"],
        "tool_name": data["tool"],
        "tool_call_error": failed,
    }
