"""Approvals: their records, requests about them, and the commands that carry decisions."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any, Final, Literal

from pydantic import Field

from penstock.bus.records.base import Record
from penstock.bus.records.runs import Target
from penstock.tracing import spans

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
PolicyOutcome = Literal["approve", "reject", "ask"]
OnDeadline = Literal["reject", "approve", "leave"]
ApprovalChange = Literal["asked", "escalated", "decided", "expired", "withdrawn"]
RemarkKind = Literal["question", "answer", "handover"]

REVIEW_ITEM: Final = "penstock.redactions"  # the id of the item that a redaction asks about


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
    roles: list[str] = Field([])
    users: list[str] = Field([])
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
    masked_items: list[dict[str, Any]] | None = Field(
        None,
        description="In a run with redactions where callers read, the items as others get them "
        "than those who decide. An answer over HTTP has them as `items`, or not at all",
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
    votes: list[Vote] = Field([])
    remarks: list[Remark] = Field([])
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

    def items_for(self, scopes: Collection[str]) -> list[dict[str, Any]]:
        """Return the items as a caller with these scopes gets them in the run's events."""
        return self.items if "pii" in scopes or not self.masked_items else self.masked_items

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


class DecideReply(Record):
    """The answer to a DecideRequest, after the compare-and-set. `status` is an HTTP status."""

    status: Literal[200, 403, 404, 409, 422]
    detail: str = ""
    approval: ApprovalRecord | None = None
