"""The interface of the modules that carry out actions, and what they are given and return."""

from __future__ import annotations

from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from typing import Literal, Protocol

from penstock.bus.records import Record
from penstock_automations.jobs.job import Job
from penstock_automations.rules.records import CompiledRule


class RequestHead(Record):
    """The last request, without its query, its signature and its credentials."""

    method: str = "POST"
    url: str
    headers: dict[str, str]
    body_bytes: int


@dataclass(frozen=True, slots=True)
class Verdict:
    """The meaning of one attempt's result.

    `outcome`: "delivered"; "failed", another attempt may succeed; "final", no attempt can succeed;
    "gone", no attempt can succeed, and the rule is paused. `code` is empty after success. `text` is
    for people.
    """

    outcome: Literal["delivered", "failed", "final", "gone"]
    code: str = ""
    text: str = ""
    status: int | None = None
    retry_after_s: float | None = None


@dataclass(frozen=True, slots=True)
class Attempted:
    """One attempt of an action.

    `at`: when the attempt began. `answer`: the begin of the receiver's answer. `run_id`: the run
    that the attempt has started.
    """

    verdict: Verdict
    at: str
    seconds: float
    answer: str = ""
    request: RequestHead | None = None
    run_id: str | None = None


@dataclass(frozen=True, slots=True)
class Later:
    """No attempt was made; the job is to be tried again after so many seconds."""

    wait_s: float


@dataclass(frozen=True, slots=True)
class Occurrence:
    """What a rule acts on: a canonical event, or the JSON of a trigger, which has the same form.

    `payload` is a JSON object with `timestamp`, `event` and `data`.
    """

    payload: bytes
    traceparent: str | None = None


class Carrier(Protocol):
    """Carries out one kind of action. The deliverer repeats attempts, and reports the outcome."""

    def place(self, rule: CompiledRule, job: Job) -> AbstractAsyncContextManager[float]:
        """Hold a place for one attempt of the job.

        The context gives 0 if the attempt may be made now, and otherwise the seconds after which
        the job is to be tried again. Then it holds no place.
        """
        ...

    async def attempt(
        self, rule: CompiledRule, job: Job, occurrence: Occurrence, started_run_id: str | None
    ) -> Attempted | Later:
        """Make one attempt, or none if it cannot be made now.

        `started_run_id`: the run that an earlier attempt has started.

        An attempt may be repeated after a process was killed, so it must do nothing twice that must
        be done once: `job.webhook_id` is the same for all attempts and replays.

        Raises:
            BusError: the bus does not answer; the same attempt is made again.
        """
        ...
