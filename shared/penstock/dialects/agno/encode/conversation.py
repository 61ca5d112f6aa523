"""Makes a run's conversation in the form in which Agno stores it, with the user's message, calls,
results and answers.

Agno also stores the system prompt and the counters of each model. The result lacks both, because
canonical events do not contain them.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

import orjson

from penstock.dialects.agno.encode import pauses
from penstock.dialects.base import Json, JsonObject
from penstock.dialects.wire import epoch_s

_ALWAYS: Final = {"from_history": False, "stop_after_tool_call": False}


def messages_of(events: Iterable[JsonObject]) -> list[JsonObject]:
    """Return the messages of the outer run, in order.

    `events` are envelopes from the run's start.
    """
    messages: list[JsonObject] = []
    for event in events:
        if event.get("subrun"):
            continue
        name, data = event["event"], event["data"]
        match f"{name['category']}.{name['action']}":
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
    failed = data.get("outcome") not in ("ok", "partial")
    result = pauses.result_text(data.get("error") if failed else data.get("result"))
    return {
        **_message(event, "tool", result),
        "tool_call_id": data["tool_call_id"],
        "tool_name": data["tool"],
        "tool_call_error": failed,
    }
