"""Defines `ActionExecutor`, the interface of the modules that carry out actions, and its types.

A delivery is the action of a rule for one event or trigger. A job asks for one attempt of a
delivery.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Literal

from penstock.bus.records.base import Record
from penstock.expressions import ExpressionError
from penstock.web.problems import Problem
from penstock_automations.jobs.job import Job
from penstock_automations.rules.records import CompiledRule


class RequestHead(Record):
    """The head of a request as records keep it: without query, signature and credentials."""

    method: str = "POST"
    url: str
    headers: dict[str, str]
    body_bytes: int


@dataclass(frozen=True, slots=True)
class Verdict:
    """The result of one attempt.

    `outcome` is "delivered"; "failed" if another attempt may succeed; "final" if none can; or
    "gone" if none can and the rule is to be paused. `code` names the error and is empty after
    success. `text` explains the result to people.
    """

    outcome: Literal["delivered", "failed", "final", "gone"]
    code: str = ""
    text: str = ""
    status: int | None = None
    retry_after_s: float | None = None


@dataclass(frozen=True, slots=True)
class Attempted:
    """One attempt of an action, which began `at` this time and took `seconds`.

    `answer` has the first bytes of the receiver's answer, and `headers` its headers. `run_id` is
    the run that the attempt has started. For a workflow's call, `whole_answer` has all that was
    read of the answer's body.
    """

    verdict: Verdict
    at: str
    seconds: float
    answer: str = ""
    headers: Mapping[str, str] = field(default_factory=dict)
    request: RequestHead | None = None
    run_id: str | None = None
    whole_answer: str | None = None


# What a delivery waits for: its next attempt, the endpoint's breaker or rate, a place in a process
# or at the endpoint, a turn at the receiver or its answer, the end of the rule's pause, or an
# earlier delivery of its run.
WaitsFor = Literal["retry", "breaker", "rate", "capacity", "receiver", "pause", "order"]


@dataclass(frozen=True, slots=True)
class AttemptDeferred:
    """Says that no attempt could be made now, why, and after how many seconds to try again."""

    wait_s: float
    waits_for: WaitsFor = "capacity"


@dataclass(frozen=True, slots=True)
class Occurrence:
    """A canonical event on which a rule acts, or the JSON of a trigger in the form of an event.
    `payload` is a JSON object with `timestamp`, `event` and `data`. Of a pause, `request` is the
    event `approval.requested`, if the body needs it."""

    payload: bytes
    traceparent: str | None = None
    request: bytes | None = None


class ActionExecutor(ABC):
    """Carries out one kind of action. `Delivery` repeats attempts, and reports the outcome."""

    @asynccontextmanager
    async def reserve_capacity(
        self, rule: CompiledRule, job: Job
    ) -> AsyncIterator[AttemptDeferred | None]:
        """Reserve capacity for one attempt. Yield None if it may be made now, as for each action
        that is one short request; otherwise, what puts it off."""
        yield None

    @abstractmethod
    async def attempt(
        self, rule: CompiledRule, job: Job, occurrence: Occurrence, started_run_id: str | None
    ) -> Attempted | AttemptDeferred:
        """Make one attempt; return `AttemptDeferred` if no attempt can be made now.

        `started_run_id` is the run that an earlier attempt has started, if any.

        If a process is killed during an attempt, another process repeats the attempt. The effect
        must not happen twice. `job.delivery_id` serves as the idempotency key, because it is the
        same for all attempts and replays. Raises BusError.
        """

    async def complete_unrecorded_attempt(self, job: Job) -> Attempted | None:
        """Complete an attempt that a killed process began and did not record, and return its
        result; None if there is none, or if attempts of this kind leave no trace here.

        This is called when no attempt can be made, because the rule was deleted or the event has
        expired. Raises BusError.
        """
        return None


# Maps the HTTP status of a refusal to the outcome and the error's code. The outcome is "failed" if
# a later attempt may succeed, else "final".
Codes = Mapping[int, tuple[Literal["failed", "final"], str]]


def refused(problem: Problem, codes: Codes) -> Verdict:
    """Return the result for a refusal, with the code that it names itself, if any."""
    outcome, code = codes.get(problem.status, ("failed", f"refused_{problem.status}"))
    return Verdict(outcome, problem.more.get("code", code), problem.detail)


def unfilled(error: ExpressionError) -> Verdict:
    """Return the result for a template that this event can never fill."""
    return Verdict("final", "template", f"a template of the rule cannot be filled: {error}")
