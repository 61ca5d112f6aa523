"""approval.*: what waits for a decision, and what was decided."""

from __future__ import annotations

from typing import Any, ClassVar

from pydantic import Field

from penstock.events.base import Data, Model, Subrun
from penstock.events.note import APPROVAL_ID, DIGEST, Note


class RequestedItem(Model):
    """One thing that somebody must decide."""

    item_id: str = Field(description="The item, unique in the approval.")
    kind: str = Field(
        description="`confirmation`, `input`, `external`, `credential`, `feedback`, `selection`, "
        "`review` or `long_running`."
    )
    digest: str = Field(description="SHA-256 hex of what is asked, so that a decision is for it.")
    tool_call_id: str | None = Field(default=None, description="The call that waits.")
    tool: str | None = Field(default=None, description="The tool that would run.")
    args: dict[str, Any] | None = Field(default=None, description="With these arguments.")
    description: str | None = Field(default=None, description="What is asked, for people.")
    input_schema: dict[str, Any] | None = Field(
        default=None, description="JSON Schema of the value that an answer must carry."
    )
    options: list[Any] | None = Field(default=None, description="What may be chosen.")
    editable: bool = Field(description="Whether a decision may change the arguments.")
    subrun: Subrun | None = Field(default=None, description="The inner run that asks.")


class DecidedItem(Model):
    """The decision on one item."""

    item_id: str = Field(description="The item.")
    decision: str = Field(description="`approve` or `reject`.")
    note: str | None = Field(default=None, description="What the decider said about it.")
    value: Any = Field(default=None, description="The answer, where one was asked for.")


class Requested(Data, title="Approval requested"):
    """The upstream waits for decisions; all undecided items of one pause."""

    TYPE: ClassVar[str] = "approval.requested"
    NOTE: ClassVar[Note] = Note(
        when="When the upstream waits for decisions, before anyone is asked.",
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
    approval_id: str = Field(description="The approval.")
    digest: str = Field(description="SHA-256 hex over all items.")
    expires_at: str | None = Field(default=None, description="Deadline, RFC 3339 UTC.")
    policy: str | None = Field(default=None, description="The policy that asks.")
    deciders_required: int = Field(description="How many people must agree.")
    items: list[RequestedItem] = Field(description="What is to be decided.")


class Decided(Data, title="Approval decided"):
    """A decision was made; there is one per approval."""

    TYPE: ClassVar[str] = "approval.decided"
    NOTE: ClassVar[Note] = Note(
        when="When the decision stands, before the run goes on.",
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
    approval_id: str = Field(description="The approval.")
    outcome: str = Field(description="`approved`, `rejected` or `mixed`.")
    by: str = Field(description="Who decided.")
    automatic: bool = Field(description="True when a policy decided, not a person.")
    note: str | None = Field(default=None, description="What the decider said.")
    items: list[DecidedItem] = Field(description="The decision on each item.")


class Expired(Data, title="Approval expired"):
    """Nobody decided in time."""

    TYPE: ClassVar[str] = "approval.expired"
    NOTE: ClassVar[Note] = Note(
        when="When the deadline passed without a decision.",
        times="at most once per `approval_id`",
        sequence=10,
        from_agent=False,
        example={"approval_id": APPROVAL_ID, "reason": "not decided by 2025-12-31T11:00:00.000Z"},
    )
    approval_id: str = Field(description="The approval.")
    reason: str = Field(description="Which deadline passed.")


class Withdrawn(Data, title="Approval withdrawn"):
    """The decision is not needed any more. May follow the run's end."""

    TYPE: ClassVar[str] = "approval.withdrawn"
    NOTE: ClassVar[Note] = Note(
        when="When the decision is not needed any more. May come after the run's end.",
        times="at most once per `approval_id`",
        sequence=17,
        from_agent=False,
        example={"approval_id": APPROVAL_ID, "reason": "the run was cancelled"},
    )
    approval_id: str = Field(description="The approval.")
    reason: str = Field(description="Why: the run ended, was cancelled, …")
