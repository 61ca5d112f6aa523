"""The tool messages in a RunAgentInput, and the decisions that they mean. Pure."""

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

# Messages that are shown to the user; an agent server leaves them out of the conversation.
_SHOWN: Final = (ActivityMessage, ReasoningMessage)


def last_tool_messages(asked: RunAgentInput) -> list[ToolMessage]:
    """The tool messages that the conversation ends with: perhaps the answer to a pause."""
    messages = [each for each in asked.messages if not isinstance(each, _SHOWN)]
    ends = (
        at for at in range(len(messages), 0, -1) if not isinstance(messages[at - 1], ToolMessage)
    )
    return [each for each in messages[next(ends, 0) :] if isinstance(each, ToolMessage)]


def earlier_tool_messages(asked: RunAgentInput) -> list[ToolMessage]:
    """All other tool messages."""
    last = last_tool_messages(asked)
    return [each for each in asked.messages if isinstance(each, ToolMessage) and each not in last]


def decision_of(item: JsonObject, message: ToolMessage) -> JsonObject:
    """The decision on an item that a tool message means, as `pauses.decided` returns it.

    The result of a tool that an agent server executes is text. Every other answer is a value that
    the client has written as JSON.

    Raises:
        UnclearAnswer: a confirmation is answered neither yes nor no.
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
