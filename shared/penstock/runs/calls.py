"""Sends the calls of workflows to the automations service, and defines the outcome that comes back.

A workflow publishes a `CallJob` with `publish_call`. The automations service makes the attempts. To
the attempts, the service applies its guard against private addresses, signatures, retries, limits
and circuit breakers. When the call has an outcome, the service publishes a `Called` to
`command.workflows.called.<run>`.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import Annotated, Final, Literal

import orjson
from pydantic import AfterValidator, Field, JsonValue

from penstock.bus import Bus, FenceConflict, Message, subjects
from penstock.bus.records.base import Record
from penstock.bus.write import fence

# The text that replaces a rule's id in the subjects and keys of calls. No rule can have this id.
CALLS: Final = "_call"
WORKFLOWS: Final = "workflows"
MAX_BODY_BYTES: Final = 256 * 1024


def _is_small(body: JsonValue) -> JsonValue:
    size = len(orjson.dumps(body))
    if size > MAX_BODY_BYTES:
        raise ValueError(f"the body of a call has at most {MAX_BODY_BYTES} bytes; this has {size}")
    return body


class CallJob(Record):
    """A call that a step of a workflow makes: a request, repeated until it succeeds or is given up.

    All jobs with the same `run_id` and `call_id` are one call, even if they are published several
    times.
    """

    run_id: str = Field(description="The workflow's run")
    step_id: str
    call_id: str = Field(
        pattern=r"^[A-Za-z0-9_.-]{1,200}$",
        description="Unique in the run, so another attempt of the step has another id",
    )
    workflow: str = Field("", description="The workflow's name, for log lines")
    url: str = Field(max_length=2000)
    method: Literal["POST", "PUT", "PATCH", "DELETE", "GET"] = "POST"
    body: Annotated[JsonValue, AfterValidator(_is_small)] = Field(
        None, description="The JSON that is sent, at most 256 KiB; not with `GET`"
    )
    secret: str | None = Field(
        None,
        description="The name of a secret of the operator (`PENSTOCK_CALL_SECRETS`), with which "
        "the call is signed and authenticated. A call without a secret has no signature",
    )
    headers: dict[str, str] = Field({}, description="Further headers; they are no secrets")
    expect: str | None = Field(
        None, min_length=1, max_length=200, description="A text that the answer must contain"
    )
    statuses: list[int] | None = Field(
        None, max_length=20, description="The statuses of a good answer; none for every 2xx"
    )
    timeout_s: float = Field(15.0, ge=1, le=60, description="Seconds that one request may take")
    retry_delays_s: list[float] | None = Field(
        None,
        max_length=20,
        description="Seconds between the attempts: an empty list for one attempt; none for the "
        "delays of the automations service",
    )
    give_up_at: float | None = Field(
        None, description="No attempt begins after this time, in Unix seconds"
    )
    traceparent: str | None = None
    depth: int = Field(0, description="How many automation rules led to the run")

    @property
    def token(self) -> str:
        """The call's part of subjects and keys, which begins with the run's id."""
        return f"{self.run_id}-{hashlib.sha256(self.call_id.encode()).hexdigest()[:16]}"

    @property
    def delivery_id(self) -> str:
        """The id of the call, the same for all attempts."""
        return f"call.{self.run_id}.{self.call_id}"


def is_expected(status: int, statuses: Sequence[int] | None) -> bool:
    """Return whether an answer with this status is a good one."""
    return 200 <= status < 300 if statuses is None else status in statuses


class CallError(Record):
    """The reason why a call has failed."""

    code: str = Field(
        description="Such as `http_500`, `timeout`, `connection`, `refused_address`, "
        "`unexpected_answer`, `unknown_secret`, `not_accepted`, `gave_up`"
    )
    message: str


class Called(Record):
    """The outcome of a call, published to `command.workflows.called.<run>`, perhaps repeatedly."""

    run_id: str
    step_id: str
    call_id: str
    outcome: Literal["delivered", "failed"]
    status: int | None = Field(None, description="The HTTP status of the last answer")
    answer: str | None = Field(
        None, description="The first 64 KiB of the last answer, without secrets"
    )
    headers: dict[str, str] | None = Field(
        None, description="The first KiB of its headers, without cookies and secrets"
    )
    attempts: int = 0
    error: CallError | None = Field(None, description="Only of a call that has failed")


async def publish_call(bus: Bus, job: CallJob) -> None:
    """Store a call for the automations service. This may be called again for the same job. If the
    call already has an outcome, the call is not made again, but the outcome is published again."""
    subject = subjects.delivery_of(f"{CALLS}.{job.token}")
    fields = {"source": "call", "call": job.model_dump(exclude_none=True), "dotted": False}
    message = Message(subject, orjson.dumps(fields), {"Nats-Msg-Id": job.delivery_id})
    try:
        # While the first job waits, the fence refuses a second job for the same call, even after
        # the server has forgotten the first job's message id.
        await fence.append(bus, subject, [message], 0)
    except FenceConflict:
        return


def called_subject(run_id: str) -> str:
    return subjects.command(WORKFLOWS, "called", run_id)
