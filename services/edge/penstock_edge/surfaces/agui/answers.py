"""Reads decisions from the messages of a frontend's tools."""

from __future__ import annotations

from typing import Any, Final

import orjson

from penstock.dialects.agui.vocabulary import CLIENT_KINDS
from penstock.dialects.answers import decided
from penstock.web.bodies import has_many_values, is_deep
from penstock_edge.surfaces.agui.request import (
    ActivityMessage,
    ReasoningMessage,
    RunAgentInput,
    ToolMessage,
    text_of_content,
)

JsonObject = dict[str, Any]

# The types of messages that only the user sees. They are not part of the conversation with the
# agent.
_SHOWN: Final = (ActivityMessage, ReasoningMessage)


def last_tool_messages(asked: RunAgentInput) -> list[ToolMessage]:
    messages = [each for each in asked.messages if not isinstance(each, _SHOWN)]
    ends = (
        at for at in range(len(messages), 0, -1) if not isinstance(messages[at - 1], ToolMessage)
    )
    return [each for each in messages[next(ends, 0) :] if isinstance(each, ToolMessage)]


def earlier_tool_messages(asked: RunAgentInput) -> list[ToolMessage]:
    last = last_tool_messages(asked)
    return [each for each in asked.messages if isinstance(each, ToolMessage) and each not in last]


def decision_of(item: JsonObject, message: ToolMessage) -> JsonObject:
    """Return a decision as `answers.decided` does. For the kind `external`, the answer is the text
    of the message, for any other kind the JSON value in the text, or the text itself if it is not
    JSON. Raise `UnclearAnswer` for an answer to a confirmation that is neither yes nor no."""
    text = text_of_content(message.content)
    payload = text if item["kind"] == "external" else _value(text)
    if item["kind"] in CLIENT_KINDS and message.error and not text:
        payload = message.error
    return decided(item, {"status": "resolved", "payload": payload})


def _value(text: str) -> Any:
    if has_many_values(text.encode()):
        return text
    try:
        value = orjson.loads(text)
    except orjson.JSONDecodeError:
        return text
    return text if is_deep(value) else value
