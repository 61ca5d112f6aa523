"""approval.*: requests for decisions, and the decisions."""

from __future__ import annotations

from typing import Any, ClassVar, Final

from pydantic import Field

from penstock.events.base import Data, Model, Subrun
from penstock.events.note import APPROVAL_ID, DIGEST, Note

STEP: Final = (
    "The number of the step: 1 for the first that the waiting approval takes. Escalations, "
    "reminders and remarks are steps."
)


class RequestedItem(Model):
    """One item that needs a decision."""

    item_id: str = Field(description="The item's id, unique in the approval.")
    kind: str = Field(
        description="The kind of the item: `confirmation`, `input`, `external`, `credential`, "
        "`feedback`, `selection`, `review`, `long_running` or `budget`."
    )
    digest: str = Field(
        description="The SHA-256 of the item as hexadecimal digits, to which a decision is bound."
    )
    tool_call_id: str | None = Field(
        default=None, description="The tool call that waits for the decision."
    )
    tool: str | None = Field(default=None, description="The tool that would run.")
    args: dict[str, Any] | None = Field(
        default=None, description="The arguments with which the tool would run."
    )
    description: str | None = Field(
        default=None, description="A description of the request for people."
    )
    input_schema: dict[str, Any] | None = Field(
        default=None, description="The JSON Schema of the value that an answer must contain."
    )
    options: list[Any] | None = Field(
        default=None, description="The options that an answer may choose from."
    )
    editable: bool = Field(
        description="Whether the agent's server takes changed arguments. The policy may still "
        "forbid them: `editable` of the approval that a decider reads says both."
    )
    subrun: Subrun | None = Field(default=None, description="The inner run that waits.")


class DecidedItem(Model):
    """The decision on one item."""

    item_id: str = Field(description="The item's id.")
    decision: str = Field(description="The decision: `approve` or `reject`.")
    note: str | None = Field(default=None, description="A note of the decider about this item.")
    value: Any = Field(
        default=None, description="The value of the answer, where the item asked for one."
    )
    args: dict[str, Any] | None = Field(
        default=None, description="The arguments of the call, where the decision changed them."
    )
    expired: bool | None = Field(
        default=None, description="True where the deadline passed, and nobody rejected the item."
    )


class Requested(Data, title="Approval requested"):
    """The upstream waits for decisions. The event has all undecided items of one pause."""

    TYPE: ClassVar[str] = "approval.requested"
    NOTE: ClassVar[Note] = Note(
        when="When the upstream waits for decisions, before anybody is asked.",
        times="once per `approval_id`",
        sequence=8,
        from_agent=False,
        example={
            "approval_id": APPROVAL_ID,
            "digest": DIGEST,
            "expires_at": "2025-12-31T11:00:00.000Z",
            "deciders_required": 1,
            "items": [
                {
                    "item_id": "call-1",
                    "kind": "confirmation",
                    "digest": DIGEST,
                    "tool_call_id": "call-1",
                    "tool": "delete_document",
                    "args": {"doc_id": "d-2"},
                    "editable": True,
                }
            ],
        },
    )
    approval_id: str = Field(description="The approval's id.")
    digest: str = Field(description="The SHA-256 of all items as hexadecimal digits.")
    expires_at: str | None = Field(
        default=None, description="The deadline of the decision: RFC 3339, UTC."
    )
    policy: str | None = Field(default=None, description="The policy that requires the decision.")
    deciders_required: int = Field(
        description="The number of people who must approve by the step of a workflow, else 1. "
        "`lifecycle.paused` has the number that the policy requires."
    )
    deciders: dict[str, Any] | None = Field(
        default=None,
        description="Who may decide by the step of a workflow: `scope`, `roles`, `users` and "
        "`not`, as in a policy.",
    )
    items: list[RequestedItem] = Field(description="The items that must be decided.")


class Decided(Data, title="Approval decided"):
    """A decision was made; there is one per approval."""

    TYPE: ClassVar[str] = "approval.decided"
    NOTE: ClassVar[Note] = Note(
        when="When the decision is recorded, before the run goes on.",
        times="at most once per `approval_id`",
        sequence=10,
        from_agent=False,
        example={
            "approval_id": APPROVAL_ID,
            "outcome": "approved",
            "by": "grace",
            "automatic": False,
            "items": [{"item_id": "call-1", "decision": "approve"}],
        },
    )
    approval_id: str = Field(description="The approval's id.")
    outcome: str = Field(description="The outcome of all items: `approved`, `rejected` or `mixed`.")
    by: str = Field(description="The user who decided.")
    on_behalf_of: str | None = Field(
        default=None, description="The other user for whom `by` decided, if there is one."
    )
    deciders: list[str] | None = Field(
        default=None, description="All who approved, where the policy required several people."
    )
    policy: str | None = Field(
        default=None, description="The policy's rule and version, such as `payments@7`."
    )
    automatic: bool = Field(description="True where a policy decided instead of a person.")
    note: str | None = Field(default=None, description="A note of the decider.")
    items: list[DecidedItem] = Field(description="The decision on each item.")


class EscalatedTo(Model):
    """The people who may decide, too. Two empty lists mean everybody with the policy's scope."""

    roles: list[str] = Field(description="Roles, of which a person needs one.")
    users: list[str] = Field(description="Users, by name.")


class Escalated(Data, title="Approval escalated"):
    """Nobody decided in time for a step of the policy, so further people may decide now."""

    TYPE: ClassVar[str] = "approval.escalated"
    NOTE: ClassVar[Note] = Note(
        when="When an escalation of the policy is reached and the run still waits.",
        times="at most once per `approval_id` and `step`, with rising steps",
        sequence=10,
        from_agent=False,
        example={
            "approval_id": APPROVAL_ID,
            "step": 1,
            "to": {"roles": ["finance-leads"], "users": []},
            "expires_at": "2025-12-31T11:00:00.000Z",
        },
    )
    approval_id: str = Field(description="The approval's id.")
    step: int = Field(description=STEP)
    to: EscalatedTo = Field(description="The people who may decide from now on, too.")
    expires_at: str | None = Field(
        default=None, description="The deadline of the decision: RFC 3339, UTC."
    )


class Reminded(Data, title="Approval reminded"):
    """The deadline is near, and the run still waits."""

    TYPE: ClassVar[str] = "approval.reminded"
    NOTE: ClassVar[Note] = Note(
        when="At a time before the deadline that the policy names, if the run still waits.",
        times="at most once per `approval_id` and `step`, with rising steps",
        sequence=10,
        from_agent=False,
        example={
            "approval_id": APPROVAL_ID,
            "step": 1,
            "expires_at": "2025-12-31T11:00:00.000Z",
        },
    )
    approval_id: str = Field(description="The approval's id.")
    step: int = Field(description=STEP)
    expires_at: str = Field(description="The deadline of the decision: RFC 3339, UTC.")


class Remarked(Data, title="Approval remarked"):
    """A person says something about the waiting approval without deciding it."""

    TYPE: ClassVar[str] = "approval.remarked"
    NOTE: ClassVar[Note] = Note(
        when="When a person asks, answers, or hands the decision over. The run waits as before.",
        times="at most once per `approval_id` and `step`, with rising steps",
        sequence=10,
        from_agent=False,
        example={
            "approval_id": APPROVAL_ID,
            "step": 1,
            "kind": "question",
            "by": "grace",
            "text": "Which invoice?",
        },
    )
    approval_id: str = Field(description="The approval's id.")
    step: int = Field(description=STEP)
    kind: str = Field(
        description="`question` to the user of the run, this user's `answer`, or `handover`."
    )
    by: str = Field(description="The person.")
    to: str | None = Field(default=None, description="To whom the decision is handed over.")
    text: str | None = Field(default=None, description="What the person says.")


class Expired(Data, title="Approval expired"):
    """The deadline passed without a decision."""

    TYPE: ClassVar[str] = "approval.expired"
    NOTE: ClassVar[Note] = Note(
        when="When the deadline passed without a decision.",
        times="at most once per `approval_id`",
        sequence=10,
        from_agent=False,
        example={"approval_id": APPROVAL_ID, "reason": "not decided by 2025-12-31T11:00:00.000Z"},
    )
    approval_id: str = Field(description="The approval's id.")
    reason: str = Field(description="The deadline that passed.")


class Withdrawn(Data, title="Approval withdrawn"):
    """The decision is no longer needed. The event may follow the run's end."""

    TYPE: ClassVar[str] = "approval.withdrawn"
    NOTE: ClassVar[Note] = Note(
        when="When the decision is no longer needed, also after the run's end.",
        times="at most once per `approval_id`",
        sequence=17,
        from_agent=False,
        example={"approval_id": APPROVAL_ID, "reason": "the run was cancelled"},
    )
    approval_id: str = Field(description="The approval's id.")
    reason: str = Field(description="The reason, such as the end of the run.")
