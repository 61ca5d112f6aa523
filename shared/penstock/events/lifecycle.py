"""lifecycle.*: the start, the pauses and the end of a run."""

from __future__ import annotations

from typing import Any, ClassVar

from pydantic import Field

from penstock.events.base import Data, Model
from penstock.events.note import APPROVAL_ID, Note


class Usage(Model):
    """Tokens that the models of a run used, as far as the upstream reports them."""

    input_tokens: int | None = Field(
        default=None, description="The number of tokens that the models read."
    )
    output_tokens: int | None = Field(
        default=None, description="The number of tokens that the models wrote."
    )
    total_tokens: int | None = Field(default=None, description="The number of all tokens.")
    reasoning_tokens: int | None = Field(
        default=None, description="The number of tokens of the models' reasoning."
    )
    cached_input_tokens: int | None = Field(
        default=None, description="The number of tokens that were read from a cache."
    )


class ForkedFrom(Model):
    """The run that a run repeats, and how much of it."""

    run_id: str = Field(description="The run that is repeated.")
    sequence: int = Field(
        ge=0,
        description="Its last event that the new run begins with; 0 for a whole repetition.",
    )


class Started(Data, title="Run started"):
    """A run was accepted. The event has always sequence 1 and precedes the upstream's answer."""

    TYPE: ClassVar[str] = "lifecycle.started"
    NOTE: ClassVar[Note] = Note(
        when="As the first event, before the upstream answers.",
        times="once per run, always sequence 1",
        sequence=1,
        from_agent=False,
        example={"agent": "assistant", "user_id": "ada", "message": "Delete the old report."},
    )
    agent: str = Field(description="The agent's id in the configuration.")
    user_id: str = Field(description="The user who owns the run.")
    tenant: str | None = Field(
        default=None, description="The tenant for which the run counts, if there are tenants."
    )
    message: str | None = Field(default=None, description="The message that started the run.")
    workflow: str | None = Field(
        default=None, description="The name of the workflow, where the run is one of Penstock's."
    )
    idempotency_key: str | None = Field(
        default=None, description="The idempotency key of the start, if it had one."
    )
    forked_from: ForkedFrom | None = Field(
        default=None, description="The run that this run repeats, if it repeats one."
    )
    tags: dict[str, str] | None = Field(
        default=None, description="The tags that the start gave the run."
    )
    redactions: int | None = Field(
        default=None,
        description="The version of the operator's redactions, where some apply to the run.",
    )


class Paused(Data, title="Run paused"):
    """The run waits for a person."""

    TYPE: ClassVar[str] = "lifecycle.paused"
    NOTE: ClassVar[Note] = Note(
        when="Directly after `approval.requested`, when the policy requires a person to decide.",
        times="once per pause",
        sequence=9,
        from_agent=False,
        example={"reason": "approval_required", "approval_id": APPROVAL_ID},
    )
    reason: str = Field(description="The reason for the pause: `approval_required`.")
    approval_id: str = Field(description="The approval that the run waits for.")
    expires_at: str | None = Field(
        default=None, description="The deadline of the decision: RFC 3339, UTC."
    )
    deciders_required: int | None = Field(
        default=None, description="The number of people who must agree, where it is not one."
    )
    policy: str | None = Field(
        default=None, description="The policy's rule and version, such as `payments@7`."
    )


class Resumed(Data, title="Run resumed"):
    """A paused run goes on. The event follows a `lifecycle.paused`."""

    TYPE: ClassVar[str] = "lifecycle.resumed"
    NOTE: ClassVar[Note] = Note(
        when="When the leg after a pause begins; a `lifecycle.paused` always precedes it.",
        times="once per pause that is continued",
        sequence=11,
        from_agent=False,
        example={"approval_id": APPROVAL_ID, "upstream_run_id": "run-5f2c"},
    )
    approval_id: str | None = Field(default=None, description="The approval that was decided.")
    upstream_run_id: str | None = Field(
        default=None, description="The upstream's id of the run that continues."
    )


class Retrying(Data, title="Run retried"):
    """A piece of work failed and is tried again."""

    TYPE: ClassVar[str] = "lifecycle.retrying"
    NOTE: ClassVar[Note] = Note(
        when="Before a failed piece of work is done again. A run of an agent is never tried twice.",
        times="any number",
        sequence=6,
        example={
            "retry_count": 1,
            "max_retries": 3,
            "reason": "temporary network issue",
            "step": "fetch",
        },
    )
    retry_count: int = Field(description="The number of the retry that follows; the first is 1.")
    max_retries: int = Field(description="The number of retries that are allowed.")
    reason: str = Field(description="What failed.")
    step: str | None = Field(default=None, description="The name of the step that is tried again.")


class Completed(Data, title="Run completed"):
    """The run ended successfully. Terminal."""

    TYPE: ClassVar[str] = "lifecycle.completed"
    NOTE: ClassVar[Note] = Note(
        when="When the upstream ended successfully and nothing waits for an answer.",
        times="one terminal event per run",
        sequence=16,
        example={
            "summary": "The old report is deleted.",
            "usage": {"input_tokens": 412, "output_tokens": 37, "total_tokens": 449},
        },
    )
    summary: str = Field(description="The final text of the run.")
    content: str | None = Field(
        default=None, description="The whole answer, where it differs from the summary."
    )
    value: Any = Field(default=None, description="The structured output, as JSON.")
    content_type: str | None = Field(
        default=None, description="The type of `value` or `content`, as the upstream names it."
    )
    usage: Usage | None = Field(default=None, description="The number of tokens that the run used.")
    metrics: dict[str, Any] | None = Field(
        default=None, description="Figures that the upstream reports about the run."
    )
    session_state: Any = Field(
        default=None, description="The state of the session at the end of the run."
    )


class Failed(Data, title="Run failed"):
    """The run ended with an error. Terminal."""

    TYPE: ClassVar[str] = "lifecycle.failed"
    NOTE: ClassVar[Note] = Note(
        when="When the upstream reported an error, was lost, or exceeded its time limit.",
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
        description="`not_sent` (nothing was sent to the agent server, so a new run repeats "
        "nothing), `upstream_lost` (the run had begun), `upstream_http`, `not_a_stream`, "
        "`upstream_error`, `timeout`, `outcome_unknown`, `history_lost`, `limit`, `not_accepted` "
        "or `internal`."
    )
    error_type: str | None = Field(default=None, description="The upstream's class of error.")
    step: str | None = Field(default=None, description="The step that failed.")
    status_code: int | None = Field(
        default=None, description="The HTTP status of the upstream's answer."
    )
    detail: Any = Field(default=None, description="Further details of the error.")
    retryable: bool | None = Field(default=None, description="Whether a new run may succeed.")


class BudgetReached(Model):
    """A budget of which a share is used."""

    budget: str = Field(description="The budget's id.")
    per: str = Field(description="What has an account of its own: `run`, `user`, …")
    dimension: str = Field(
        description="What is used: `cost`, `tokens`, `tool_calls`, `model_calls`, `time` or "
        "`same_call`."
    )
    used: int = Field(description="What is used: millionths of the currency, seconds, or a number.")
    limit: int = Field(description="What may be used, with what people have added.")
    share: float = Field(description="The share of the limit that the budget names.")
    currency: str | None = Field(default=None, description="The currency of a cost.")
    window_ends_at: str | None = Field(
        default=None, description="When the account begins anew: RFC 3339, UTC."
    )


class Cancelled(Data, title="Run cancelled"):
    """The run was cancelled. Terminal."""

    TYPE: ClassVar[str] = "lifecycle.cancelled"
    NOTE: ClassVar[Note] = Note(
        when="When a cancel took effect, or when the upstream did not confirm it in time.",
        times="one terminal event per run",
        sequence=16,
        example={"reason": "user_stop", "by": "ada", "confirmed": True},
    )
    reason: str = Field(
        description="The reason: `user_stop`, `superseded` (a later start of the session "
        "interrupted the run), `shutdown`, `approval_expired`, `budget`, or `blocked` (by a "
        "redaction)."
    )
    by: str | None = Field(default=None, description="The user who cancelled the run.")
    budget: BudgetReached | None = Field(
        default=None, description="The budget that was used up, where one has ended the run."
    )
    step: str | None = Field(default=None, description="The step that was running.")
    confirmed: bool = Field(
        description="Whether the agent server stopped: it accepted the cancel and ended its "
        "stream, closing the connection is its cancel, or it was never called. False: it did not "
        "accept the cancel, or did not answer, and may go on working."
    )
