"""llm.*: what a model says, thinks and asks tools to do."""

from __future__ import annotations

from typing import Any, ClassVar, Self

from pydantic import Field, model_validator

from penstock.events.base import Data
from penstock.events.note import Note


class MessageStarted(Data, title="Message started"):
    """A message begins; said at its first text."""

    TYPE: ClassVar[str] = "llm.message_started"
    NOTE: ClassVar[Note] = Note(
        when="At the first text of a message.",
        times="once per `message_id`",
        sequence=2,
        example={"message_id": "m1", "role": "assistant", "name": "Assistant"},
    )
    message_id: str = Field(description="The message's id, unique in the run.")
    role: str = Field(description="`assistant`, or who else speaks.")
    name: str | None = Field(default=None, description="The speaker's name.")


class Stream(Data, title="Text streamed"):
    """A piece of a message's text."""

    TYPE: ClassVar[str] = "llm.stream"
    NOTE: ClassVar[Note] = Note(
        when="While a message is written: between its `message_started` and `message_completed`.",
        times="any number per `message_id`; most of all traffic",
        sequence=3,
        example={"content": "I will look ", "message_id": "m1"},
    )
    content: str = Field(description="The next piece, never empty.")
    message_id: str = Field(description="The message that it continues.")


class MessageCompleted(Data, title="Message completed"):
    """A message is whole."""

    TYPE: ClassVar[str] = "llm.message_completed"
    NOTE: ClassVar[Note] = Note(
        when="When a message is whole. Its `content` is what its pieces make together.",
        times="once per `message_id`",
        sequence=5,
        example={"message_id": "m1", "role": "assistant", "content": "I will look for the report."},
    )
    message_id: str = Field(description="The message's id.")
    role: str = Field(description="`assistant`, or who else spoke.")
    content: str = Field(description="The whole text.")
    value: Any = Field(default=None, description="Structured output, as JSON.")
    content_type: str | None = Field(default=None, description="What `value` or `content` is.")
    citations: dict[str, Any] | None = Field(default=None, description="Where it is taken from.")
    parts: list[Any] | None = Field(default=None, description="Parts that are not text.")
    status: str | None = Field(default=None, description="How the message ended.")
    result_type: str | None = Field(default=None, description="What kind of result it is.")
    key_points: list[Any] | None = Field(default=None, description="Its main points.")
    suggested_actions: list[Any] | None = Field(default=None, description="What to do next.")
    ui_schema: dict[str, Any] | None = Field(default=None, description="How to show it.")
    error: str | None = Field(default=None, description="Why it is not whole.")


class Reasoning(Data, title="Thought streamed"):
    """A piece of a model's thoughts."""

    TYPE: ClassVar[str] = "llm.reasoning"
    NOTE: ClassVar[Note] = Note(
        when="While the model thinks, if the upstream shows it.",
        times="any number per `reasoning_id`",
        sequence=2,
        example={
            "thought": "The user means the report of 2023.",
            "reasoning_id": "r1",
            "debug": False,
        },
    )
    thought: str = Field(description="The next piece (a delta).")
    reasoning_id: str = Field(description="The train of thought that it continues.")
    title: str | None = Field(default=None, description="What this thought is about.")
    final: bool | None = Field(default=None, description="True at the last piece.")
    debug: bool | None = Field(default=None, description="True when not meant for users.")


_ONE_FORM = [
    {"required": ["delta"], "properties": {"delta": {"type": "string"}}},
    {"required": ["path", "value"]},
]


class ToolArgs(Data, title="Tool arguments streamed", json_schema_extra={"anyOf": _ONE_FORM}):
    """A piece of a call's arguments: JSON text (`delta`), or one value at a path."""

    TYPE: ClassVar[str] = "llm.tool_args"
    NOTE: ClassVar[Note] = Note(
        when="While the arguments of a call are written, before its `tool_call`; few upstreams do.",
        times="any number per `tool_call_id`",
        sequence=6,
        example={"tool_call_id": "call-1", "tool": "delete_document", "delta": '{"doc_id": "d-'},
    )
    tool_call_id: str = Field(description="The call that it belongs to.")
    tool: str = Field(description="The tool's name.")
    delta: str | None = Field(default=None, description="The next piece of the JSON text.")
    path: str | None = Field(default=None, description="A JSONPath into the arguments.")
    value: Any = Field(default=None, description="The value, or its next piece, at `path`.")

    @model_validator(mode="after")
    def _one_form(self) -> Self:
        if self.delta is None and not {"path", "value"} <= self.model_fields_set:
            raise ValueError("needs `delta`, or `path` and `value`")
        return self


class ToolCall(Data, title="Tool called"):
    """The model asked for a tool; exactly once per call id."""

    TYPE: ClassVar[str] = "llm.tool_call"
    NOTE: ClassVar[Note] = Note(
        when="When the model asks for a tool. It does not say that the tool runs.",
        times="exactly once per `tool_call_id`",
        sequence=7,
        example={
            "tool": "delete_document",
            "args": {"doc_id": "d-2"},
            "tool_call_id": "call-1",
            "pending": True,
        },
    )
    tool: str = Field(description="The tool's name.")
    args: dict[str, Any] = Field(description="Its arguments.")
    tool_call_id: str = Field(description="The call's id, unique in the run.")
    message_id: str | None = Field(default=None, description="The message that asked for it.")
    pending: bool | None = Field(default=None, description="True when it awaits a decision.")
    args_text: str | None = Field(default=None, description="Arguments that are no JSON.")
    execution: str | None = Field(default=None, description="Where it runs: `server`, `client`.")


class ToolProgress(Data, title="Tool progressed"):
    """A tool runs (`status: running`), or tells how far it is."""

    TYPE: ClassVar[str] = "llm.tool_progress"
    NOTE: ClassVar[Note] = Note(
        when="When a tool begins to run, and while it tells how far it is.",
        times="any number per `tool_call_id`",
        sequence=12,
        example={"tool_call_id": "call-1", "status": "running"},
    )
    tool_call_id: str = Field(description="The call.")
    status: str | None = Field(default=None, description="`running`, or the tool's own word.")
    delta: str | None = Field(default=None, description="A piece of output.")
    tool: str | None = Field(
        default=None, description="The tool that runs, where it is not what was approved."
    )
    args: dict[str, Any] | None = Field(
        default=None, description="Its arguments, where they are not what was approved."
    )


class ToolResult(Data, title="Tool answered"):
    """What a call came to; once per call id."""

    TYPE: ClassVar[str] = "llm.tool_result"
    NOTE: ClassVar[Note] = Note(
        when="When a call is over: answered, failed, rejected or expired.",
        times="at most once per `tool_call_id`",
        sequence=13,
        example={
            "tool": "delete_document",
            "result": {"deleted": "d-2"},
            "tool_call_id": "call-1",
            "outcome": "ok",
            "duration_s": 0.18,
        },
    )
    tool: str = Field(description="The tool's name.")
    result: Any = Field(description="What it returned, as JSON.")
    tool_call_id: str = Field(description="The call.")
    outcome: str = Field(description="`ok`, `error`, `rejected`, `expired` or `partial`.")
    error: str | None = Field(default=None, description="What went wrong.")
    content: list[Any] | None = Field(default=None, description="The result in parts.")
    duration_s: float | None = Field(default=None, description="How long it ran, in seconds.")
    message_id: str | None = Field(default=None, description="The message that carries it.")
