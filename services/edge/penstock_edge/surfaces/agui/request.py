"""Models of the body of POST /agui/{agent}: RunAgentInput, of AG-UI 1.0 and earlier (decision
0103). Pure.

The fields of these models are checked, and null counts as absent. `penstock.start_fields` decides
which other fields may be forwarded to an AG-UI server.
"""

from __future__ import annotations

from typing import Annotated, Any, Final, Literal

from pydantic import BaseModel, ConfigDict, Field

from penstock_edge.surfaces.bodies import document_of, validated
from penstock_edge.surfaces.errors import InvalidBody, body_error, invalid

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
    """The function of a tool call; `arguments` is JSON as text."""

    name: str
    arguments: str


class ToolCall(_Described):
    """One tool call in an assistant's message."""

    id: str
    type: Literal["function"]
    function: Function


class Instruction(_Described):
    """An instruction to the agent."""

    id: str
    role: Literal["developer", "system"]
    content: str


class AssistantMessage(_Described):
    """The agent's text and its tool calls."""

    id: str
    role: Literal["assistant"]
    content: str | None = None
    tool_calls: list[ToolCall] | None = Field(None, alias="toolCalls")


class UserMessage(_Described):
    """The user's message: a text, or a list of parts such as texts and images."""

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
    """An activity that is shown to the user."""

    id: str
    role: Literal["activity"]
    activity_type: str = Field(alias="activityType")
    content: JsonObject


class ReasoningMessage(_Described):
    """A part of the agent's reasoning."""

    id: str
    role: Literal["reasoning"]
    content: str


Message = Annotated[
    Instruction | AssistantMessage | UserMessage | ToolMessage | ActivityMessage | ReasoningMessage,
    Field(discriminator="role"),
]


class Tool(_Described):
    """A tool that the client executes."""

    name: str
    description: str
    parameters: Any = None


class ContextEntry(_Described):
    """Context for the agent."""

    description: str
    value: str


class ResumeEntry(_Described):
    """The answer to one interrupt."""

    interrupt_id: Id = Field(alias="interruptId")
    status: Literal["resolved", "cancelled"]
    payload: Any = None


class RunAgentInput(_Described):
    """The body of POST /agui/{agent}. Clients of AG-UI before 1.0 send no `protocolVersion`."""

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
    return validated(RunAgentInput, document_of(body))


def text_of(asked: RunAgentInput) -> str:
    messages = [message for message in asked.messages if isinstance(message, UserMessage)]
    return text_of_content(messages[-1].content) if messages else ""


def require_portable(asked: RunAgentInput) -> None:
    """Refuse what only an AG-UI server could use: others get only the text of the user's last
    message."""
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
    if not text_of_content(last.content).strip():
        raise invalid("blank", (*where, "content"), "must not be empty or only white space")


def text_of_content(content: str | list[Part]) -> str:
    if isinstance(content, str):
        return content
    return "".join(part.text for part in content if part.text is not None)
