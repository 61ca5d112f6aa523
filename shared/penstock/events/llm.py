"""llm.*: messages, reasoning and tool calls of models."""

from __future__ import annotations

from typing import Annotated, Any, ClassVar, Self

from pydantic import Field, model_validator

from penstock.events.base import Data, Model
from penstock.events.note import Note

# JSON numbers of JavaScript hold every such count, and sums of them, exactly.
TokenCount = Annotated[int, Field(ge=0, lt=2**53)]


class MessageStarted(Data, title="Message started"):
    """A message begins. The event precedes its first text."""

    TYPE: ClassVar[str] = "llm.message_started"
    NOTE: ClassVar[Note] = Note(
        when="At the first text of a message.",
        times="once per `message_id`",
        sequence=2,
        example={"message_id": "m1", "role": "assistant", "name": "Assistant"},
    )
    message_id: str = Field(description="The message's id, unique in the run.")
    role: str = Field(description="The role of the speaker, such as `assistant`.")
    name: str | None = Field(default=None, description="The name of the speaker.")


class Stream(Data, title="Text streamed"):
    """A piece of a message's text."""

    TYPE: ClassVar[str] = "llm.stream"
    NOTE: ClassVar[Note] = Note(
        when="While a message is written: between its `message_started` and `message_completed`.",
        times="any number per `message_id`; most of all traffic",
        sequence=3,
        example={"content": "I will look ", "message_id": "m1"},
    )
    content: str = Field(description="The next piece of the text; it is never empty.")
    message_id: str = Field(description="The message that the piece belongs to.")


class MessageCompleted(Data, title="Message completed"):
    """A message is complete."""

    TYPE: ClassVar[str] = "llm.message_completed"
    NOTE: ClassVar[Note] = Note(
        when="When a message is complete. Its `content` is the text of all its pieces.",
        times="once per `message_id`",
        sequence=5,
        example={"message_id": "m1", "role": "assistant", "content": "I will look for the report."},
    )
    message_id: str = Field(description="The message's id.")
    role: str = Field(description="The role of the speaker, such as `assistant`.")
    content: str = Field(description="The whole text of the message.")
    value: Any = Field(default=None, description="The structured output, as JSON.")
    content_type: str | None = Field(
        default=None, description="The type of `value` or `content`, as the upstream names it."
    )
    citations: dict[str, Any] | None = Field(
        default=None, description="The sources that the message cites."
    )
    parts: list[Any] | None = Field(
        default=None, description="The parts of the message that are not text."
    )
    status: str | None = Field(
        default=None, description="How the message ended, as the upstream names it."
    )
    result_type: str | None = Field(
        default=None, description="The kind of the result, as the upstream names it."
    )
    key_points: list[Any] | None = Field(
        default=None, description="The main points of the message."
    )
    suggested_actions: list[Any] | None = Field(
        default=None, description="Actions that the agent suggests to the user."
    )
    ui_schema: dict[str, Any] | None = Field(
        default=None, description="A description of how to show the message."
    )
    error: str | None = Field(
        default=None, description="The error because of which the message is incomplete."
    )


class Reasoning(Data, title="Thought streamed"):
    """A piece of a model's reasoning."""

    TYPE: ClassVar[str] = "llm.reasoning"
    NOTE: ClassVar[Note] = Note(
        when="While the model reasons, if the upstream shows it.",
        times="any number per `reasoning_id`",
        sequence=2,
        example={
            "thought": "The user means the report of 2023.",
            "reasoning_id": "r1",
            "debug": False,
        },
    )
    thought: str = Field(description="The next piece of the reasoning.")
    reasoning_id: str = Field(description="The reasoning that the piece belongs to.")
    title: str | None = Field(default=None, description="The title of this part of the reasoning.")
    final: bool | None = Field(default=None, description="True for the last piece.")
    debug: bool | None = Field(
        default=None, description="True where the reasoning is not meant for users."
    )


_ONE_FORM = [
    {"required": ["delta"], "properties": {"delta": {"type": "string"}}},
    {"required": ["path", "value"]},
]


class ToolArgs(Data, title="Tool arguments streamed", json_schema_extra={"anyOf": _ONE_FORM}):
    """A piece of a call's arguments: JSON text (`delta`), or one value at a path."""

    TYPE: ClassVar[str] = "llm.tool_args"
    NOTE: ClassVar[Note] = Note(
        when="While the arguments of a call are written, before its `tool_call`; few do it.",
        times="any number per `tool_call_id`",
        sequence=6,
        example={"tool_call_id": "call-1", "tool": "delete_document", "delta": '{"doc_id": "d-'},
    )
    tool_call_id: str = Field(description="The tool call that the piece belongs to.")
    tool: str = Field(description="The tool's name.")
    delta: str | None = Field(
        default=None, description="The next piece of the arguments as JSON text."
    )
    path: str | None = Field(default=None, description="The JSONPath of a value in the arguments.")
    value: Any = Field(default=None, description="The value at `path`, or the next piece of it.")

    @model_validator(mode="after")
    def _one_form(self) -> Self:
        if self.delta is None and not {"path", "value"} <= self.model_fields_set:
            raise ValueError("needs `delta`, or `path` and `value`")
        return self


class ToolCall(Data, title="Tool called"):
    """The model asked for a tool call. There is one event for each call."""

    TYPE: ClassVar[str] = "llm.tool_call"
    NOTE: ClassVar[Note] = Note(
        when="When the model asks for a tool call. The tool may not run yet.",
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
    args: dict[str, Any] = Field(description="The arguments of the call.")
    tool_call_id: str = Field(description="The call's id, unique in the run.")
    message_id: str | None = Field(default=None, description="The message that contains the call.")
    pending: bool | None = Field(
        default=None, description="True where the call waits for a decision."
    )
    args_text: str | None = Field(
        default=None, description="The arguments as text, where they are not valid JSON."
    )
    execution: str | None = Field(
        default=None, description="Where the tool runs: `server` or `client`."
    )


class ToolProgress(Data, title="Tool progressed"):
    """A tool began to run (`status: running`), or reports progress."""

    TYPE: ClassVar[str] = "llm.tool_progress"
    NOTE: ClassVar[Note] = Note(
        when="When a tool begins to run, and while it reports progress.",
        times="any number per `tool_call_id`",
        sequence=12,
        example={"tool_call_id": "call-1", "status": "running"},
    )
    tool_call_id: str = Field(description="The tool call.")
    status: str | None = Field(
        default=None, description="`running`, or the status that the tool reports."
    )
    delta: str | None = Field(default=None, description="The next piece of the tool's output.")
    tool: str | None = Field(
        default=None, description="The tool that runs, where it differs from the approved one."
    )
    args: dict[str, Any] | None = Field(
        default=None,
        description="The arguments of the call, where they differ from the approved ones.",
    )


class Cost(Model):
    """What a call of a model or of a tool cost, when it was made."""

    micros: int = Field(ge=0, description="The cost in millionths of the currency.")
    currency: str = Field(description="The currency: ISO 4217, such as `USD`.")
    source: str = Field(
        description="Where the price is from: `table`, the operator's, or `genai-prices`."
    )
    version: str = Field(description="The version of the prices.")


class ToolResult(Data, title="Tool answered"):
    """A tool call ended. There is at most one event for each call."""

    TYPE: ClassVar[str] = "llm.tool_result"
    NOTE: ClassVar[Note] = Note(
        when="When a call ended: with a result, an error, a rejection, or after its deadline.",
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
    result: Any = Field(description="The result that the tool returned, as JSON.")
    tool_call_id: str = Field(description="The tool call.")
    outcome: str = Field(
        description="The outcome: `ok`, `error`, `rejected`, `expired` or `partial`."
    )
    error: str | None = Field(default=None, description="What went wrong.")
    content: list[Any] | None = Field(default=None, description="The result in parts.")
    duration_s: float | None = Field(
        default=None, description="The duration of the call in seconds."
    )
    message_id: str | None = Field(
        default=None, description="The message that contains the result."
    )
    cost: Cost | None = Field(
        default=None, description="What the call cost, if the operator has set a price."
    )


class Used(Data, title="Tokens used"):
    """A model was called and used tokens. A run's events together are all that the run used."""

    TYPE: ClassVar[str] = "llm.usage"
    NOTE: ClassVar[Note] = Note(
        when="After each call of a model, or at the end of what the agent server counts together.",
        times="any number",
        sequence=7,
        example={
            "model": "gpt-5",
            "provider": "OpenAI",
            "input_tokens": 412,
            "output_tokens": 37,
            "cached_input_tokens": 256,
            "reported": "call",
            "estimated": False,
            "cost": {
                "micros": 597,
                "currency": "USD",
                "source": "genai-prices",
                "version": "0.2.3",
            },
        },
    )
    model: str | None = Field(
        default=None, description="The model, as the agent server names it, if it does."
    )
    provider: str | None = Field(
        default=None, description="The model's provider, as the agent server names it, if it does."
    )
    input_tokens: TokenCount | None = Field(
        default=None,
        description="The tokens that the model read, including those from and for a cache.",
    )
    output_tokens: TokenCount | None = Field(
        default=None, description="The tokens that the model wrote, including its reasoning."
    )
    total_tokens: TokenCount | None = Field(
        default=None, description="All tokens, where the agent server tells only their sum."
    )
    reasoning_tokens: TokenCount | None = Field(
        default=None, description="The part of `output_tokens` that is reasoning, if not 0."
    )
    cached_input_tokens: TokenCount | None = Field(
        default=None, description="The part of `input_tokens` that a cache held, if not 0."
    )
    cache_write_tokens: TokenCount | None = Field(
        default=None,
        description="The part of `input_tokens` that was written into a cache, if not 0.",
    )
    reported: str = Field(
        description="What the agent server counted: one `call`, all calls of a `leg`, or all calls "
        "of an agent's `run`."
    )
    estimated: bool = Field(
        description="True where the numbers may differ from what was used: the answer was cut off, "
        "or the agent server is known to count some calls twice."
    )
    time_to_first_token_s: float | None = Field(
        default=None, description="The seconds until the model's first token."
    )
    cost: Cost | None = Field(
        default=None, description="What the tokens cost; null if the price is not known."
    )
