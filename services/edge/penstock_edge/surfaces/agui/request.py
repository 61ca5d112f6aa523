"""The body of POST /agui/{agent}: RunAgentInput, of AG-UI 1.0 and before. Pure.

Fields that are described are checked, and null counts as absent. What may go on to an AG-UI
upstream is in `penstock.starts`.
"""

from __future__ import annotations

from typing import Annotated, Any, Final, Literal

import orjson
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from penstock.dialects.agui.encode.pauses import decided
from penstock.dialects.agui.vocabulary import CLIENT_KINDS
from penstock.web.bodies import has_many_values, is_deep
from penstock_edge.surfaces.errors import InvalidBody, body_error, invalid, invalid_body

JsonObject = dict[str, Any]

MAX_ID: Final = 512


class _Described(BaseModel):
    model_config = ConfigDict(extra="allow", strict=True)


Id = Annotated[str, Field(min_length=1, max_length=MAX_ID)]


class Part(_Described):
    """A piece of a message's content."""

    type: str
    text: str | None = None


class Function(_Described):
    """What a tool call calls; `arguments` is JSON as text."""

    name: str
    arguments: str


class ToolCall(_Described):
    """One call of an assistant's message."""

    id: str
    type: Literal["function"]
    function: Function


class Instruction(_Described):
    """What steers the agent."""

    id: str
    role: Literal["developer", "system"]
    content: str


class AssistantMessage(_Described):
    """What the agent has said and asked for."""

    id: str
    role: Literal["assistant"]
    content: str | None = None
    tool_calls: list[ToolCall] | None = Field(None, alias="toolCalls")


class UserMessage(_Described):
    """What the person says."""

    id: str
    role: Literal["user"]
    content: str | list[Part]


class ToolMessage(_Described):
    """A tool's result."""

    id: str
    role: Literal["tool"]
    tool_call_id: str = Field(alias="toolCallId")
    content: str | list[Part]
    error: str | None = None


class ActivityMessage(_Described):
    """Something shown that is no speech."""

    id: str
    role: Literal["activity"]
    activity_type: str = Field(alias="activityType")
    content: JsonObject


class ReasoningMessage(_Described):
    """A thought."""

    id: str
    role: Literal["reasoning"]
    content: str


Message = Annotated[
    Instruction | AssistantMessage | UserMessage | ToolMessage | ActivityMessage | ReasoningMessage,
    Field(discriminator="role"),
]


_SHOWN: Final = (ActivityMessage, ReasoningMessage)


class Tool(_Described):
    """A tool that the client runs."""

    name: str
    description: str
    parameters: Any = None


class ContextEntry(_Described):
    """Something that the agent should know."""

    description: str
    value: str


class ResumeEntry(_Described):
    """The answer to one interrupt."""

    interrupt_id: Id = Field(alias="interruptId")
    status: Literal["resolved", "cancelled"]
    payload: Any = None


class RunAgentInput(_Described):
    """What a client posts. `protocol_version` is absent from clients before 1.0."""

    thread_id: Id = Field(alias="threadId")
    run_id: Id = Field(alias="runId")
    messages: list[Message]
    protocol_version: str | None = Field(None, alias="protocolVersion")
    parent_run_id: str | None = Field(None, alias="parentRunId")
    state: Any = None
    tools: list[Tool] | None = None
    context: list[ContextEntry] | None = None
    forwarded_props: Any = Field(None, alias="forwardedProps")
    resume: list[ResumeEntry] | None = None


def parse(body: bytes) -> RunAgentInput:
    """Raises InvalidBody that names the fields."""
    try:
        document = orjson.loads(body)
    except orjson.JSONDecodeError as cause:
        raise invalid("json_invalid", (), f"the body is not JSON: {cause}") from cause
    if is_deep(document):
        raise invalid("too_deep", (), "the body is nested too deeply")
    try:
        return RunAgentInput.model_validate(document)
    except ValidationError as cause:
        raise invalid_body(cause) from cause


def text_of(asked: RunAgentInput) -> str:
    """The text of the last message of the user; empty when there is none."""
    said = [message for message in asked.messages if isinstance(message, UserMessage)]
    return _text(said[-1].content) if said else ""


def require_portable(asked: RunAgentInput) -> None:
    """Raises InvalidBody for what only an AG-UI agent can be given: it would be lost.

    Any other agent is given the words of the user, which must be the last message.
    """
    last = asked.messages[-1] if asked.messages else None
    where = ("messages", max(len(asked.messages) - 1, 0))
    if not isinstance(last, UserMessage):
        raise invalid("no_user_message", where, "the last message must be the user's")
    if isinstance(last.content, list):
        errors = [
            body_error(
                "not_portable",
                (*where, "content", index),
                f"an agent that is no AG-UI agent takes no {part.type[:MAX_ID]}",
            )
            for index, part in enumerate(last.content)
            if part.text is None
        ]
        if errors:
            raise InvalidBody(errors)
    if not _text(last.content).strip():
        raise invalid("blank", (*where, "content"), "must not be empty or only white space")


def tool_messages(asked: RunAgentInput) -> list[ToolMessage]:
    """Those that the conversation ends with: perhaps what a pause waits for.

    What is only shown does not count: an agent server leaves it out.
    """
    said = [each for each in asked.messages if not isinstance(each, _SHOWN)]
    ends = (at for at in range(len(said), 0, -1) if not isinstance(said[at - 1], ToolMessage))
    return [each for each in said[next(ends, 0) :] if isinstance(each, ToolMessage)]


def earlier_tool_messages(asked: RunAgentInput) -> list[ToolMessage]:
    """All others."""
    last = tool_messages(asked)
    return [each for each in asked.messages if isinstance(each, ToolMessage) and each not in last]


def answered(item: JsonObject, message: ToolMessage) -> JsonObject:
    """The decision on an item that a tool message means, as `interrupts.decided` gives it.

    What an agent server's tool returns is text; everything else is a value that was written as
    JSON. Raises UnclearAnswer where a confirmation is answered neither yes nor no.
    """
    text = _text(message.content)
    payload = text if item["kind"] == "external" else _value(text)
    if item["kind"] in CLIENT_KINDS and message.error and not text:
        payload = message.error
    return decided(item, {"status": "resolved", "payload": payload})


def _text(content: str | list[Part]) -> str:
    if isinstance(content, str):
        return content
    return "".join(part.text for part in content if part.text is not None)


def _value(text: str) -> Any:
    if has_many_values(text.encode()):
        return text
    try:
        value = orjson.loads(text)
    except orjson.JSONDecodeError:
        return text
    return text if is_deep(value) else value
