"""Reads the decisions from the tool messages in a RunAgentInput. Pure."""

from __future__ import annotations

from typing import Any, Final

import orjson

from penstock.dialects.agui.encode.pauses import decided
from penstock.dialects.agui.vocabulary import CLIENT_KINDS
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
    """Return the tool messages at the end of the conversation; these may answer a pause."""
    messages = [each for each in asked.messages if not isinstance(each, _SHOWN)]
    ends = (
        at for at in range(len(messages), 0, -1) if not isinstance(messages[at - 1], ToolMessage)
    )
    return [each for each in messages[next(ends, 0) :] if isinstance(each, ToolMessage)]


def earlier_tool_messages(asked: RunAgentInput) -> list[ToolMessage]:
    """Return the tool messages that are not at the end of the conversation."""
    last = last_tool_messages(asked)
    return [each for each in asked.messages if isinstance(each, ToolMessage) and each not in last]


def decision_of(item: JsonObject, message: ToolMessage) -> JsonObject:
    """Return the decision that a tool message makes on an item, in the form of `pauses.decided`.

    For an item of the kind `external`, the answer is the text of the message. For any other kind,
    the answer is the JSON value in the text, or the text itself if it is not JSON.

    Raises:
        UnclearAnswer: the answer to a confirmation is neither yes nor no.
    """
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
