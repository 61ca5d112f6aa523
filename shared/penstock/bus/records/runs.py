"""Runs: their starts, cancels and records."""

from __future__ import annotations

from typing import Any, Final, Literal

from pydantic import BaseModel, ConfigDict, Field

from penstock.bus.records.base import Record
from penstock.bus.records.erasures import Erasure, Hold
from penstock.turns import TenantUser

RunStatus = Literal["queued", "running", "paused", "completed", "failed", "cancelled"]
# What happens to a start while a run of its session is open (decision 0326).
WhenBusy = Literal["queue", "refuse", "interrupt", "steer"]
# The services that carry out the commands of runs. `workflows` does so for the runs of workflows.
Target = Literal["connector", "workflows"]
ENDED: frozenset[str] = frozenset({"completed", "failed", "cancelled"})


class ForkedFrom(BaseModel):
    """The run that a run repeats, and how much of it."""

    model_config = ConfigDict(extra="forbid", strict=True)

    run_id: str = Field(max_length=64, description="The run that is repeated")
    sequence: int = Field(
        0, ge=0, description="Its last event that the new run begins with; 0 for a whole repetition"
    )


class TakenOver(Record):
    """What a fork takes over from its first run: of a workflow the steps, of an agent the
    conversation up to a point."""

    steps: list[str] = Field([], description="The ids of the steps that had completed")
    messages: int = Field(0, description="How many messages of the agent were complete")
    tool_calls: int = Field(0, description="How many calls of tools had a result")
    user_id: str = Field("", description="The user of the first run")
    session_id: str = Field("", description="The session of the first run")
    state: Any = Field(None, description="The shared state of an AG-UI run, if it has changed")


# The most characters of the user's message that lifecycle.started shows. The number is limited,
# because the message is in the `open`, and the `open` is a single source frame.
MAX_SHOWN_CHARACTERS: Final = 50_000


class StartCommand(Record):
    """`command.connector.start.<run>`: open leg 1; `command.workflows.start.<run>`: a workflow."""

    run_id: str
    agent: str = Field(description="The agent's id in the configuration")
    session_id: str
    user_id: str = "anonymous"
    tenant: str | None = Field(None, description="As in the run's record")
    message: str = ""
    input: dict[str, Any] | None = Field(None, description="Further fields for the upstream")
    body: str | None = Field(None, description="The upstream's request body, sent verbatim")
    interrupts: list[str] | None = Field(
        None, description="Runs of the session that are cancelled before this one begins"
    )
    callers_known: bool | None = Field(
        None, description="Whether callers are authenticated: then sessions are kept apart upstream"
    )
    idempotency_key: str | None = None
    traceparent: str | None = Field(None, description="W3C trace context, for every event")
    parent_run_id: str | None = Field(
        None, description="The workflow's run of which this is a step, or whose event led here"
    )
    step_id: str | None = Field(None, description="The parent's step that this run carries out")
    workflow_depth: int | None = Field(
        None, description="How many workflows this run is inside of: 1 for a step of an outer one"
    )
    forked_from: ForkedFrom | None = Field(None, description="As in the run's record")
    tags: dict[str, str] | None = Field(None, description="As in the run's record")
    taken_over: TakenOver | None = Field(
        None, description="For a fork: what it takes over of the run `forked_from`"
    )
    root_run_id: str | None = Field(None, description="As in the run's record")
    ancestors: list[str] | None = Field(
        None, description="The workflows' runs that this run is inside of, the outermost one first"
    )
    version: str | None = Field(
        None, description="For workflows: the version of the definition, which is checked already"
    )
    workflow: str | None = Field(None, description="For workflows: the name of the definition")
    workflow_places: int | None = Field(
        None, description="For workflows: how many runs below this one may be under way at once"
    )
    roles: list[str] | None = Field(
        None, description="For workflows: the user's roles, which the run's children inherit"
    )
    started_by: list[str] | None = Field(
        None, description="For workflows: as in the run's record, for the run's children"
    )
    automations: list[str] | None = Field(
        None, description="For workflows: as in the run's record, for the run's children"
    )
    depth: int | None = Field(
        None, description="For workflows: as in the run's record, for the run's children"
    )
    redactions: dict[str, Any] | None = Field(
        None,
        description="The `version` of the redactions, and the `rules` and the `check` that apply "
        "to the run",
    )
    created_at: str

    @property
    def tenant_user(self) -> TenantUser:
        return TenantUser(self.tenant or "", self.user_id)

    def origin_facts(self) -> dict[str, Any]:
        facts = {
            "parent_run_id": self.parent_run_id,
            "step_id": self.step_id,
            "workflow_depth": self.workflow_depth,
            "forked_from": self.forked_from and self.forked_from.model_dump(),
            "tags": self.tags,
            "redactions": self.redactions,
        }
        return {name: value for name, value in facts.items() if value is not None}


class CancelCommand(Record):
    """`command.connector.cancel.<run>`, or `command.workflows.cancel.<run>`."""

    run_id: str
    by: str = "anonymous"
    reason: str = "user_stop"
    leg: int | None = Field(None, description="Only this leg is cancelled, and no later one")
    budget: dict[str, Any] | None = Field(
        None, description="Of a budget that is used up: `lifecycle.cancelled` has it"
    )
    ask: dict[str, Any] | None = Field(
        None,
        description="The leg is cancelled, and the run then asks for an approval with this item",
    )

    @property
    def facts(self) -> dict[str, Any]:
        """What the run's events and source frames have of the cancel."""
        return self.model_dump(include={"by", "reason", "budget", "ask"}, exclude_none=True)


class RunRecord(Record):
    """KV `runs`, key run id: a run as lists of runs show it.

    The edge creates it (queued). From then on the normalizer updates it with the lifecycle events.
    """

    run_id: str
    agent: str
    session_id: str
    user_id: str
    tenant: str | None = Field(
        None,
        description="The tenant of the caller that started the run, or of the rule's owner; "
        "absent without one",
    )
    started_by: list[str] | None = Field(
        None,
        description="The people behind the run besides `user_id`: the caller that started it for "
        "this user, the maker of the caller's service token, and the requesters of the run whose "
        "event led here. To an approvals policy, they are requesters, too",
    )
    roles: list[str] | None = Field(
        None, description="The user's roles when the run was started, for the approvals policy"
    )
    status: RunStatus = "queued"
    message: str = Field(
        "",
        description="The first 200 characters; of a workflow's run without a message, what its "
        "input says",
    )
    created_at: str
    updated_at: str
    sequence: int = Field(
        0,
        description="Sequence of the last lifecycle event in it, which is stored some milliseconds "
        "later than the record",
    )
    legs: int = 0
    first_event: int | None = Field(None, description="Stream sequence of lifecycle.started")
    approval_id: str | None = Field(None, description="The approval request that it waits for")
    code: str | None = None
    error: str | None = Field(None, description="Without credentials and internal addresses")
    summary: str | None = None
    target: Target | None = Field(
        None, description="The service that takes the run's commands; without it, the connector"
    )
    parent_run_id: str | None = Field(
        None, description="The workflow's run of which this is a step, or whose event led here"
    )
    step_id: str | None = Field(None, description="The parent's step that this run carries out")
    workflow_depth: int | None = Field(
        None, description="How many workflows this run is inside of: 1 for a step of an outer one"
    )
    forked_from: ForkedFrom | None = Field(None, description="The run that this run repeats")
    tags: dict[str, str] | None = Field(
        None, description="Texts by which lists are filtered, from the start or the rule"
    )
    root_run_id: str | None = Field(
        None, description="The first run of those that led to this run; absent if no run led to it"
    )
    automations: list[str] | None = Field(
        None,
        description="The ids of the automation rules that led to this run, the first one first",
    )
    depth: int | None = Field(None, description="How many automation rules led to this run")
    budgets: list[str] | None = Field(
        None, description="The ids of the budgets that applied when the run was started"
    )
    redactions: int | None = Field(
        None,
        description="The version of the redactions that apply to the run's content; its source "
        "frames are then shown to nobody, unless all of them only mask it",
    )
    masked: Literal["all", "some"] | None = Field(
        None,
        description="Whether all or some of them only mask what callers without the scope pii read",
    )
    ancestors: list[str] | None = Field(
        None, description="The workflows' runs around the run, the outermost one first"
    )
    unredacted: dict[str, str] | None = Field(
        None,
        description="The original `error` and `detail` of a failed run, where they were redacted: "
        "only for callers with the scope administer",
    )
    hold: Hold | None = None
    erasure: Erasure | None = Field(
        None, description="From then on, nobody gets content of the run, and the record has none"
    )

    @property
    def tenant_user(self) -> TenantUser:
        return TenantUser(self.tenant or "", self.user_id)

    @property
    def not_erasable(self) -> str | None:
        """Why the run's content cannot be erased now, and what to do; None if it can be."""
        if self.hold is not None:
            because = f" ({self.hold.reason})" if self.hold.reason else ""
            return (
                f"{self.hold.by} has put run {self.run_id} under a legal hold at {self.hold.at}"
                f"{because}: the hold must be lifted first"
            )
        if self.status not in ENDED:
            return f"run {self.run_id} is {self.status}: cancel it first, then erase its content"
        return None
