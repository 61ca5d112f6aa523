"""The complete response of a run without a stream (`stream=false`), Agno's RunOutput."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final

import orjson

from penstock.dialects.agno.encode.conversation import messages_of
from penstock.dialects.agno.encode.encoder import AgnoEncoder
from penstock.dialects.base import JsonObject

# The status of a run, by the name of its last frame without a team's or workflow's prefix.
_STATUS: Final = {
    "RunCompleted": "COMPLETED",
    "RunPaused": "PAUSED",
    "RunError": "ERROR",
    "RunCancelled": "CANCELLED",
}

# Keys that belong to a single frame, or that the object has elsewhere.
_NOT_OF_THE_RUN: Final = frozenset({"event", "created_at", "reason", "error"})


def run_output(events: Iterable[JsonObject], encoder: AgnoEncoder | None = None) -> JsonObject:
    """The run as one object: COMPLETED, PAUSED, ERROR or CANCELLED, or RUNNING while it continues.

    `events` are envelopes from the run's start, to its end or to a pause. `encoder` is a new one
    with the surface's kind and names. As in Agno, an error's text is the content. `input` is the
    user's message, and `messages` is the conversation, which a workflow does not have.
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
    if (message := _message(events)) is not None:
        is_workflow = encoder.kind == "workflow"
        output["input"] = message if is_workflow else {"input_content": message}
    if encoder.kind != "workflow":
        output["messages"] = messages_of(events)
    return output


def _message(events: Sequence[JsonObject]) -> str | None:
    """The user's message, if the start of the run is among the events."""
    for event in events[:1]:
        message = event["data"].get("message")
        if event["sequence"] == 1 and isinstance(message, str):
            return message
    return None
