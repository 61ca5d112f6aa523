"""lifecycle.*: a run's beginning, its waits and its one end."""

from __future__ import annotations

from typing import Any, ClassVar

from pydantic import Field

from penstock.events.base import Data, Model
from penstock.events.note import APPROVAL_ID, Note


class Usage(Model):
    """Tokens that the models of a run used, as far as the upstream tells."""

    input_tokens: int | None = Field(default=None, description="Tokens read.")
    output_tokens: int | None = Field(default=None, description="Tokens written.")
    total_tokens: int | None = Field(default=None, description="Both together.")
    reasoning_tokens: int | None = Field(default=None, description="Tokens spent on thoughts.")
    cached_input_tokens: int | None = Field(default=None, description="Tokens read from a cache.")


class Started(Data, title="Run started"):
    """A run was accepted. Always sequence 1, before the upstream answers."""

    TYPE: ClassVar[str] = "lifecycle.started"
    NOTE: ClassVar[Note] = Note(
        when="First of all, before the upstream answers.",
        times="once per run, always sequence 1",
        sequence=1,
        from_agent=False,
        example={"agent": "assistant", "user_id": "ada", "message": "Delete the old report."},
    )
    agent: str = Field(description="The agent's id in the configuration.")
    user_id: str = Field(description="Whose run it is.")
    message: str | None = Field(default=None, description="What the user said.")
    idempotency_key: str | None = Field(default=None, description="The start's key, if it had one.")


class Paused(Data, title="Run paused"):
    """The run waits for a person."""

    TYPE: ClassVar[str] = "lifecycle.paused"
    NOTE: ClassVar[Note] = Note(
        when="Directly after `approval.requested`, when policy says that a person must be asked.",
        times="once per pause",
        sequence=9,
        from_agent=False,
        example={"reason": "approval_required", "approval_id": APPROVAL_ID},
    )
    reason: str = Field(description="Why it waits: `approval_required`.")
    approval_id: str = Field(description="The approval that it waits for.")


class Resumed(Data, title="Run resumed"):
    """A paused run goes on; said only after `lifecycle.paused`."""

    TYPE: ClassVar[str] = "lifecycle.resumed"
    NOTE: ClassVar[Note] = Note(
        when="When the leg after a pause begins; never without a `lifecycle.paused` before it.",
        times="once per pause that is continued",
        sequence=11,
        from_agent=False,
        example={"approval_id": APPROVAL_ID, "upstream_run_id": "run-5f2c"},
    )
    approval_id: str | None = Field(default=None, description="The approval that was decided.")
    upstream_run_id: str | None = Field(
        default=None, description="The upstream's id of what goes on."
    )


class Retrying(Data, title="Run retried"):
    """Something failed and is tried again."""

    TYPE: ClassVar[str] = "lifecycle.retrying"
    NOTE: ClassVar[Note] = Note(
        when="Before a failed piece of work is done again. A plain run is never tried twice.",
        times="any number",
        sequence=6,
        example={
            "retry_count": 1,
            "max_retries": 3,
            "reason": "temporary network issue",
            "step": "fetch",
        },
    )
    retry_count: int = Field(description="Which retry begins: 1 is the first.")
    max_retries: int = Field(description="How many there may be.")
    reason: str = Field(description="What failed.")
    step: str | None = Field(default=None, description="The step that is tried again.")


class Completed(Data, title="Run completed"):
    """The run ended well. Terminal."""

    TYPE: ClassVar[str] = "lifecycle.completed"
    NOTE: ClassVar[Note] = Note(
        when="When the upstream has ended well and nothing waits for an answer.",
        times="one terminal event per run",
        sequence=16,
        example={
            "summary": "The old report is deleted.",
            "usage": {"input_tokens": 412, "output_tokens": 37, "total_tokens": 449},
        },
    )
    summary: str = Field(description="The final text.")
    content: str | None = Field(default=None, description="The whole answer, if not the summary.")
    value: Any = Field(default=None, description="Structured output, as JSON.")
    content_type: str | None = Field(default=None, description="What `value` or `content` is.")
    usage: Usage | None = Field(default=None, description="Tokens used.")
    metrics: dict[str, Any] | None = Field(default=None, description="The upstream's own figures.")
    session_state: Any = Field(default=None, description="The session's state at the end.")


class Failed(Data, title="Run failed"):
    """The run ended in an error. Terminal."""

    TYPE: ClassVar[str] = "lifecycle.failed"
    NOTE: ClassVar[Note] = Note(
        when="When the upstream reported an error, was lost or took too long.",
        times="one terminal event per run",
        sequence=16,
        example={
            "error": "The model is overloaded.",
            "code": "upstream_error",
            "error_type": "OverloadedError",
            "status_code": 529,
            "retryable": True,
        },
    )
    error: str = Field(
        description="What went wrong, in the upstream's own words if it had any, without "
        "credentials and addresses of internal machines."
    )
    code: str = Field(
        description="`upstream_lost`, `upstream_http`, `not_a_stream`, `upstream_error`, "
        "`timeout`, `outcome_unknown`, `history_lost`, `limit`, `not_accepted` or `internal`."
    )
    error_type: str | None = Field(default=None, description="The upstream's class of error.")
    step: str | None = Field(default=None, description="The step that failed.")
    status_code: int | None = Field(default=None, description="The upstream's HTTP status.")
    detail: Any = Field(default=None, description="What else is known.")
    retryable: bool | None = Field(default=None, description="Whether a new run may succeed.")


class Cancelled(Data, title="Run cancelled"):
    """The run was stopped. Terminal."""

    TYPE: ClassVar[str] = "lifecycle.cancelled"
    NOTE: ClassVar[Note] = Note(
        when="When a cancel took effect, or after 10 s without the upstream's word.",
        times="one terminal event per run",
        sequence=16,
        example={"reason": "user_stop", "by": "ada", "confirmed": True},
    )
    reason: str = Field(description="`user_stop`, `superseded` or `shutdown`.")
    by: str | None = Field(default=None, description="Who stopped it.")
    step: str | None = Field(default=None, description="The step that was under way.")
    confirmed: bool = Field(description="Whether the upstream said that it stopped.")
