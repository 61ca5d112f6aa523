"""What connectors store: claims, sendings, pauses, and the sessions with their queues of legs."""

from __future__ import annotations

from typing import Any, Final, Literal

from pydantic import Field

from penstock.bus.records.base import Record

ClaimState = Literal["held", "cancelled"]
SendingState = Literal["claimed", "done", "refused", "outcome_unknown"]


class QueuedLeg(Record):
    """One leg in a session's queue."""

    run_id: str
    leg: int
    pod: str
    sequence: int = Field(0, description="Stream sequence of its command, which orders the queue")


# The most runs that the record of a session lists. When there are more, the oldest are dropped.
MAX_SESSION_RUNS: Final = 1000


class SessionRecord(Record):
    """KV `sessions`, key hash of (owner, agent, session id): its runs and its queue, in order."""

    agent: str
    session_id: str
    user_id: str = Field("", description="The owner")
    thread_id: str = Field(
        "",
        description="The agent server's id of the session; empty until a connector has chosen it",
    )
    runs: list[str] = Field([])
    open: list[str] = Field([], description="AG-UI: the runs whose end is not known")
    queue: list[QueuedLeg] = Field([], description="The legs that wait; the first one runs")
    erased_at: str | None = Field(
        None, description="When content of one of its runs was erased, for the last time"
    )


class Claim(Record):
    """KV `claims`, key `claim.<run>`: the connector that took the run's start.

    It is kept for as long as the start could be delivered again.
    """

    pod: str
    state: ClaimState = "held"


class Sent(Record):
    """KV `sent`, key approval id: makes sure that a continue goes upstream at most once."""

    pod: str
    state: SendingState = "claimed"


class PauseRecord(Record):
    """KV `pauses`, key run id: what continuing needs after the events have expired."""

    run_id: str
    approval_id: str
    leg: int
    protocol: str
    fold: dict[str, Any]
    resume: dict[str, Any] = Field(description="The upstream's own objects, verbatim")
