"""Defines the data that services exchange besides events: commands, core requests, KV records.

pydantic checks each of these: a record that cannot be parsed is refused with the field's name.
"""

from __future__ import annotations

from typing import Any, Final, Literal

from pydantic import BaseModel, ConfigDict, Field

from penstock.tracing import spans
from penstock.turns import TenantUser

RunStatus = Literal["queued", "running", "paused", "completed", "failed", "cancelled"]
ClaimState = Literal["held", "cancelled"]
# What happens to a start while a run of its session is open (decision 0326).
WhenBusy = Literal["queue", "refuse", "interrupt", "steer"]
# The ways by which a decision can come.
Channel = Literal[
    "api",
    "link",
    "page",
    "agui",
    "adk",
    "agno",
    "vercel",
    "openai",
    "a2a",
    "cli",
    "automation",
    "policy",
]
SendingState = Literal["claimed", "done", "refused", "outcome_unknown"]
PolicyOutcome = Literal["approve", "reject", "ask"]
OnDeadline = Literal["reject", "approve", "leave"]
# The services that carry out the commands of runs. `workflows` does so for the runs of workflows.
Target = Literal["connector", "workflows"]
ApprovalChange = Literal["asked", "escalated", "decided", "expired", "withdrawn"]
RemarkKind = Literal["question", "answer", "handover"]
ENDED: frozenset[str] = frozenset({"completed", "failed", "cancelled"})


class Record(BaseModel):
    """The base of all records. Unknown fields are kept: two versions can run side by side."""

    model_config = ConfigDict(extra="allow")

    def dump(self) -> bytes:
        return self.model_dump_json(exclude_none=True).encode()


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
REVIEW_ITEM: Final = "penstock.redactions"  # the id of the item that a redaction asks about


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


class Decided(Record):
    """One item's decision."""

    item_id: str
    decision: Literal["approve", "reject"]
    note: str | None = None
    value: Any = Field(None, description="The answer to an input or external item")
    args: dict[str, Any] | None = Field(
        None, description="The arguments with which the tool runs, if the decision changes them"
    )
    expired: bool | None = Field(
        None, description="True if the deadline passed: nobody has rejected the item"
    )


class ContinueCommand(Record):
    """`command.connector.continue.<run>`: open leg `leg`, at most once, as decided."""

    run_id: str
    agent: str
    session_id: str
    user_id: str = "anonymous"
    leg: int
    approval_id: str
    items: list[Decided]
    invocation_id: str | None = Field(
        None, description="ADK: the invocation that the decision named (see DecideRequest)"
    )


class ApprovalNews(Record):
    """`command.workflows.continue.<run>`: what has become of an approval of a workflow's run.

    `workflows` records the news and publishes `event` as an event of the run. The approvals service
    publishes no source frames of such a run itself.
    """

    run_id: str
    approval_id: str
    news: ApprovalChange
    event: dict[str, Any] | None = Field(
        None, description="The event of the run that tells the news: `type` and `data`"
    )
    items: list[Decided] | None = Field(None, description="The decision of each item")


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


class EraseCommand(Record):
    """`command.normalizer.erase.<run>`: erase the content of a run, and of the runs of its
    steps."""

    erasure_id: str
    runs: list[str] = Field(description="The runs, that of the subject last")
    by: str
    at: str
    reason: str | None = None


class Hold(Record):
    """A legal hold: the content of the run must not be erased."""

    by: str
    at: str
    reason: str | None = None


class HoldChange(Record):
    """`hold.<run>`: who has set or lifted a legal hold, for the audit. An answer says that it was
    written."""

    change: Literal["hold_set", "hold_lifted"]
    by: str
    at: str
    reason: str | None = None
    hold_at: str = Field(description="When the hold was set: a repeat is written once")


class Receiver(Record):
    """Who has got content of a run by a webhook."""

    automation: str = Field(description="The rule's id")
    url: str = Field(description="The scheme and host of the address")
    at: str = Field(description="When the last attempt was made, RFC 3339")


class Erasure(Record):
    """The erasure of a run's content."""

    id: str = Field(description="Several runs may have the same one")
    by: str
    at: str
    reason: str | None = None
    sequence: int = Field(description="The number of the run's event `system.erased`")
    receivers: list[Receiver] = []
    audit_has_details: bool = Field(
        False, description="Whether the audit, from which nothing is deleted, has arguments"
    )
    erased_at: str | None = Field(None, description="When all messages were deleted")


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
        "frames are then shown to nobody",
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


class AccountRun(Record):
    """What one run has set aside and used of an account: amounts by dimension, money in
    millionths, time in seconds."""

    at: str = Field(description="When it was entered, RFC 3339")
    reserved: dict[str, int] = {}
    used: dict[str, int] = {}


class AccountRaise(Record):
    """By how much people have raised a limit, for one run."""

    run_id: str
    dimension: str
    value: int


class BudgetAccount(Record):
    """KV `budgets`, key `account.<hash>`: what is used of a budget by a run, a user, …, in one
    window."""

    budget: str = Field(description="The budget's id")
    per: str
    subject: str = Field(description="The run, the user, …, by its name")
    user: str | None = Field(
        None, description="Whose the run or the session is, or the user; none of agents and tenants"
    )
    tenant: str | None = Field(None, description="The tenant of this user; absent without one")
    begins_at: str | None = None
    ends_at: str | None = Field(None, description="When the next window begins, RFC 3339")
    used: dict[str, int] = Field({}, description="By runs that have ended")
    runs: dict[str, AccountRun] = Field({}, description="The runs that are open")
    settled: dict[str, str] = Field({}, description="Runs that have just ended, and when")
    raises: dict[str, AccountRaise] = Field({}, description="By the approval's id")


class RunSpending(Record):
    """KV `budgets`, key `run.<run>`: what a run has used, by the account that it counts for."""

    run_id: str
    last: int = Field(0, description="Stream sequence of the last event in it")
    sequence: int = Field(0, description="The number of this event in the run")
    accounts: dict[str, dict[str, int]] = {}
    counted_to: str | None = Field(
        None, description="The time up to which the run's time is counted; None while it waits"
    )
    calls: dict[str, int] = Field(
        {}, description="How often each tool was called with the same arguments, by their digest"
    )
    leg: int = 1
    done: list[str] = Field([], description="The steps of budgets that were carried out")
    ended: bool = False
    settled: bool = Field(False, description="All accounts have what the ended run has used")


class CostRow(Record):
    """What one model used, or one tool cost, in a run on one day (UTC), in one currency."""

    day: str = Field(description="YYYY-MM-DD")
    model: str = Field("", description="Empty if the agent server names none")
    provider: str = Field("", description="Empty if the agent server names none")
    tool: str = Field("", description="The tool, in a row of calls that have a price")
    currency: str | None = Field(None, description="None for tokens without a known price")
    calls: int = Field(0, description="The model calls that were reported one by one")
    tool_calls: int = Field(0, description="The calls of tools that have a price")
    input_tokens: int = 0
    output_tokens: int = 0
    total_tokens: int = Field(0, description="Tokens of which the server told only the sum")
    reasoning_tokens: int = 0
    cached_input_tokens: int = 0
    cache_write_tokens: int = 0
    micros: int = Field(0, description="The cost in millionths of the currency")
    without_price: int = Field(0, description="The number of events `llm.usage` without a cost")
    estimated: int = Field(0, description="The number of events `llm.usage` that are estimates")


class CostRecord(Record):
    """KV `costs`, key run id: what a run used and cost, the sum of its events `llm.usage` and of
    its `llm.tool_result` that have a cost."""

    run_id: str
    agent: str
    user_id: str
    session_id: str
    tenant: str | None = None
    parent_run_id: str | None = None
    last: int = Field(0, description="Stream sequence of the last event in it")
    sequence: int = Field(0, description="The number of this event in the run")
    last_tool: int = Field(0, description="As `last`, of the calls of tools")
    tool_sequence: int = Field(0, description="As `sequence`, of the calls of tools")
    rows: list[CostRow] = []


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
    runs: list[str] = []
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


class DeciderLimits(Record):
    """What a service token may decide. An empty list limits nothing."""

    agents: list[str] = Field([], description="Ids of agents")
    tools: list[str] = Field([], description="Names of tools, `*` for any text, as `get_*`")
    rules: list[str] = Field([], description="Ids of the policy's rules")


class Decider(Record):
    """The caller that decides, as the caller has authenticated."""

    name: str = Field(description="The caller itself, whoever it acts for")
    roles: list[str] = Field([], description="The caller's roles at that time")
    scopes: list[str] = Field([], description="The caller's scopes at that time")
    channel: Channel = Field("api", description="The way by which the decision came")
    on_behalf_of: str | None = Field(
        None, description="The other user for whom the caller decides, if there is one"
    )
    limits: DeciderLimits | None = Field(None, description="The limits of a service token")
    token_id: str | None = Field(None, description="The id of a service token or a link")
    token_maker: str | None = Field(None, description="Who made the service token or the link")

    def is_same(self, other: Decider) -> bool:
        """Return whether the other is the same caller, acting for the same user."""
        return (self.name, self.on_behalf_of) == (other.name, other.on_behalf_of)


class Deciders(Record):
    """Who may decide: a person that has the scope, and a role or a name of the lists if any.

    `requester` among the names means the user whose run asks.
    """

    scope: str = "decide"
    roles: list[str] = []
    users: list[str] = []
    excluded: list[str] = Field([], description="These users may not decide")


class Escalation(Record):
    """A time from which further people may decide, or at which a reminder is due."""

    at: str
    to: Deciders | None = Field(None, description="Who may decide, too; null for a reminder")
    group: int | None = Field(
        None,
        description="The place in `deciders` of the group that these people stand in for; without "
        "it, they stand in for all groups",
    )


class PolicyRef(Record):
    """The rule that a policy applied to an approval, and which policy it was."""

    rule_id: str
    version: int
    digest: str = Field(description="SHA-256 of the whole policy")


class ItemRuling(Record):
    """The rule that a policy applied to an item."""

    item_id: str
    rule_id: str
    outcome: PolicyOutcome
    note: str | None = None
    edit: list[str] = Field([], description="The arguments that a decider may change")
    danger: bool = Field(False, description="Whether a person types the tool's name to approve")


class Vote(Record):
    """One person's decision. An approval that needs several people has several votes."""

    by: str
    decider: Decider
    at: str
    digest: str = Field(description="The digest of what the person decided about")
    items: list[Decided]
    note: str | None = None
    idempotency_key: str | None = None
    traceparent: str | None = Field(None, description="The trace context of the caller's request")
    void: bool = Field(
        False, description="A later vote has changed what is to be approved, or it was taken back"
    )
    taken_back: str | None = Field(
        None, description="When the person took the vote back; nothing of it counts from then on"
    )


class Remark(Record):
    """What a person said about a waiting approval without deciding it."""

    kind: RemarkKind
    by: str
    decider: Decider
    at: str
    text: str | None = None
    to: str | None = Field(None, description="To whom the person has handed the approval over")
    after: int = Field(0, description="How many of the escalations were reached before")


class Decision(Record):
    """The decision of an approval: its author, time and content."""

    outcome: Literal["approved", "rejected", "mixed"]
    by: str = Field(description="The caller that decided, or `policy`")
    decider: Decider | None = Field(
        None, description="The caller as it was then; a decision restored from its event has none"
    )
    at: str
    automatic: bool = False
    note: str | None = None
    items: list[Decided]
    idempotency_key: str | None = Field(None, description="Identifies a repetition of it")
    invocation_id: str | None = Field(
        None, description="ADK: the invocation that the decision named"
    )

    @property
    def made_by(self) -> Decider:
        """The caller that decided; a decision restored from its event has only the name."""
        return self.decider or Decider(name=self.by)


class ApprovalRecord(Record):
    """KV `approvals`, key approval id."""

    approval_id: str
    run_id: str
    agent: str
    target: Target | None = Field(
        None, description="The service that continues the run; without it, the connector"
    )
    session_id: str
    user_id: str
    started_by: list[str] | None = Field(None, description="As in the run's record")
    leg: int
    status: Literal["pending", "decided", "withdrawn", "expired"] = "pending"
    digest: str
    items: list[dict[str, Any]] = Field(
        description="As in approval.requested. An answer over HTTP has `editable: false` also "
        "where the policy lets nobody change the arguments"
    )
    requested_at: str
    updated_at: str
    decision: Decision | None = None
    reason: str | None = None
    policy: PolicyRef | None = None
    rulings: list[ItemRuling] = Field([], description="What the policy says of each item")
    deciders: list[Deciders] = Field(
        [Deciders(users=["requester"])],
        description="A decider must fit each of these, or an escalation of it that was reached",
    )
    need: int = Field(1, description="How many people must approve")
    step_deciders: dict[str, Any] | None = Field(
        None, description="Who may decide by the step of a workflow, as in approval.requested"
    )
    step_need: int = Field(1, description="How many must approve by the step of a workflow")
    votes: list[Vote] = []
    remarks: list[Remark] = []
    requested_digest: str | None = Field(
        None, description="The digest in approval.requested, if a vote has changed arguments"
    )
    expires_at: str | None = Field(None, description="The deadline, RFC 3339")
    on_deadline: OnDeadline = "reject"
    escalations: list[Escalation] = Field([], description="Escalations and reminders, by time")
    escalated: int = Field(0, description="How many of the escalations were reached")
    traceparent: str | None = Field(
        None, description="The W3C trace context with which the run was started"
    )

    @property
    def span_context(self) -> str | None:
        """The trace context of the approval's span, in the run's trace; None without a trace."""
        return spans.of_approval(self.traceparent, self.run_id, self.approval_id)

    @property
    def is_of_budget(self) -> bool:
        """Whether the run asks to use more of a budget. A rejection then ends the run."""
        return any(item.get("kind") == "budget" for item in self.items)

    @property
    def is_of_review(self) -> bool:
        """Whether the run asks for a redaction. The run takes the decision from its event."""
        return any(item.get("item_id") == REVIEW_ITEM for item in self.items)

    @property
    def is_of_workflow(self) -> bool:
        """Whether a step of a workflow asks. Its items can be rejected, also those of kinds that
        agent servers can only have answered."""
        return self.target == "workflows"

    def decided_items(self) -> list[Decided]:
        """Return the decision of each item, with the note of the whole decision if it has none. The
        list is empty while there is no decision."""
        if self.status not in ("decided", "expired") or self.decision is None:
            return []
        note = self.decision.note
        return [
            item if item.note or not note else item.model_copy(update={"note": note})
            for item in self.decision.items
        ]

    def continue_command(self) -> ContinueCommand | None:
        """Return the command to a connector that carries the decision out. Returns None while there
        is no decision, for the run of a workflow, and for a redaction's question."""
        if self.target == "workflows" or self.decision is None or not self.decided_items():
            return None
        if self.is_of_review or (self.is_of_budget and self.decision.outcome == "rejected"):
            return None
        return ContinueCommand(
            run_id=self.run_id,
            agent=self.agent,
            session_id=self.session_id,
            user_id=self.user_id,
            leg=self.leg + 1,
            approval_id=self.approval_id,
            items=self.decided_items(),
            invocation_id=self.decision.invocation_id,
        )


class DecideRequest(Record):
    """Core request `decide.<approval id>`."""

    decider: Decider = Field(description="The caller that decides")
    note: str | None = None
    digest: str | None = Field(None, description="If given, must be the request's")
    items: list[Decided]
    idempotency_key: str | None = Field(
        None, description="The same decision with the same key gets the first answer again"
    )
    invocation_id: str | None = Field(
        None,
        description="ADK: the invocation that the decision names. It is sent upstream only if it "
        "is the pause's own",
    )
    traceparent: str | None = Field(None, description="The trace context of the caller's request")


class LinkRequest(Record):
    """Core request `link.<approval id>`: make a one-time link for a person or a group."""

    maker: Decider = Field(description="The user with whose rights the link is made")
    user: str | None = Field(None, description="The person who decides with the link")
    role: str | None = Field(None, description="The person's role; without `user`, a group")
    lifetime_s: float = Field(86_400.0, ge=1, le=30 * 86_400.0)


class LinkReply(Record):
    """The answer to a LinkRequest. `status` is an HTTP status."""

    status: Literal[201, 403, 404, 409, 422]
    detail: str = ""
    id: str | None = Field(None, description="The link's id, which is not its secret")
    url: str | None = Field(None, description="The address of the page, with the link's secret")
    expires_at: str | None = None


class Push(Record):
    """Where somebody is told of the changes of a run, as A2A's push notifications."""

    id: str = Field(description="Unique among the pushes of its run")
    url: str
    token: str | None = Field(None, description="For the header `X-A2A-Notification-Token`")
    scheme: str | None = Field(None, description="The scheme of the header `Authorization`")
    credentials: str | None = None


class PushRequest(Record):
    """Core request `push.<run id>`: add or remove pushes of a run, whose user it names with the
    rights of the user's token. The edge has checked that the run is the user's."""

    user_id: str
    tenant: str = ""
    roles: list[str] = []
    scopes: list[str] = []
    add: Push | None = None
    remove: str | None = Field(None, description="The id of a push")


class PushReply(Record):
    """The answer to a PushRequest: `pushes` are those of the run after it, without secrets.
    `status` is an HTTP status."""

    status: int
    detail: str = ""
    pushes: list[Push] = []


class CheckRequest(Record):
    """Core request `check.<run id>`: have texts of a run checked by a server of the operator's, for
    the run's user. `secret` is the name of a secret of calls."""

    url: str
    body: dict[str, Any]
    timeout_s: float
    secret: str | None = None
    user_id: str = ""
    tenant: str = ""


class CheckReply(Record):
    """The answer to a CheckRequest: the JSON that the server has answered, or why there is none."""

    answer: Any = None
    error: str | None = None


class DecideReply(Record):
    """The answer to a DecideRequest, after the compare-and-set. `status` is an HTTP status."""

    status: Literal[200, 403, 404, 409, 422]
    detail: str = ""
    approval: ApprovalRecord | None = None


class ReplayReply(Record):
    """The answer to a request `letter.<number>`. `status` is an HTTP status."""

    status: Literal[200, 404, 409]
    detail: str
    outcome: Literal["replayed", "already"] | None = None


class ScheduledRuns(Record):
    """The schedule of a workflow's version, and for whom its runs are started."""

    cron: str
    timezone: str
    catch_up_s: float
    input: dict[str, Any] | None = None
    user_id: str = Field(description="Who stored the version, or the user that it names")
    tenant: str = ""
    roles: list[str] = Field([], description="The roles that this user had then")
    started_by: list[str] = Field([], description="As in the run's record")


class WorkflowRecord(Record):
    """KV `workflows`, key `v.<name>.<version>`: a version of a workflow. It never changes."""

    name: str
    version: str
    digest: str = Field(description="sha256 of the definition's canonical JSON, in hex")
    definition: dict[str, Any]
    input_schema: dict[str, Any] = Field(
        {}, description="The JSON Schema of the input; {} allows every object"
    )
    topology_id: int | None = None
    created_at: str
    created_by: str
    schedule: ScheduledRuns | None = None


class LatestWorkflow(Record):
    """KV `workflows`, key `latest.<name>`: the version that a start without a version takes.

    Without a version, the workflow is retired and cannot be started.
    """

    version: str | None = None
    updated_at: str = Field("", description="When the latest version was named, or retired")
    updated_by: str = ""
    made_by: str = Field("", description="Who stored the first version")
    tenant: str = Field("", description="The tenant of this user; empty without one")
    schedule: ScheduledRuns | None = Field(
        None, description="That of the version; the service automations starts its runs"
    )

    @property
    def maker(self) -> TenantUser:
        return TenantUser(self.tenant, self.made_by)
