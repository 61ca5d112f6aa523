"""Makes the request for an approval when the agent server pauses. Pure."""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from dataclasses import asdict, dataclass

import orjson

from penstock.bus.records.approvals import REVIEW_ITEM
from penstock.dialects.base import Draft, JsonObject, Pause, PauseItem
from penstock.digests import item_digest, request_digest

# The namespace of approval ids. An id is made from the run's id and the leg, so each fold makes the
# same id.
APPROVAL_NAMESPACE = uuid.UUID("6f9d1c1e-5b5b-5d38-9c52-3f3a8c7e1a10")

BUDGET = "budget"

# What happens while a run waits for a decision. These events have the number `step`.
STEPS = ("approval.escalated", "approval.reminded", "approval.remarked")


@dataclass(slots=True)
class PendingApproval:
    """The request that a run waits for, from `approval.requested` until the run's next leg opens.

    The approvals service announces four kinds of events in the run: the pause (`lifecycle.paused`)
    after it has recorded the request, each step that the waiting approval takes (an event with
    `step`, as `approval.escalated`), the end of the deadline (`approval.expired`), and the decision
    (`approval.decided`).
    """

    approval_id: str
    resume: JsonObject  # the data with which the connector continues the run, verbatim
    pause_announced: bool = False
    decision_announced: bool = False
    step: int = 0  # the number of the last step that was announced
    expiry_announced: bool = False

    def note(self, type_: str, data: JsonObject) -> None:
        match type_:
            case "lifecycle.paused":
                self.pause_announced = True
            case _ if type_ in STEPS:
                self.step = data["step"]
            case "approval.expired":
                self.expiry_announced = True
            case "approval.decided":
                self.decision_announced = True


def pending_approval(run_id: str, leg: int, pause: Pause) -> PendingApproval:
    return PendingApproval(approval_id_of(run_id, leg), pause.resume)


def approval_id_of(run_id: str, leg: int) -> str:
    return str(uuid.uuid5(APPROVAL_NAMESPACE, f"{run_id}/{leg}"))


def budget_pause(ask: JsonObject) -> Pause:
    """Return the pause of a run that a budget has stopped: people may let it use more."""
    item = PauseItem(
        item_id=BUDGET,
        kind="budget",
        args=ask["args"],
        description=ask["description"],
        input_schema={"type": "string", "enum": list(ask["offers"])},
    )
    return Pause([item], {"kind": BUDGET, **ask})


REVIEW = "review"
_MAX_SHOWN_BYTES = 8 * 1024


def review_pause(kinds: Sequence[str], first: Draft) -> Pause:
    """Return the question of redactions whether a run goes on. `first` is the first event that is
    held back, without what was found."""
    event = {"type": first.type, "data": first.data}
    try:
        is_shown = len(orjson.dumps(event)) <= _MAX_SHOWN_BYTES
    except orjson.JSONEncodeError:
        is_shown = False
    names = list(dict.fromkeys(kinds))
    item = PauseItem(
        item_id=REVIEW_ITEM,
        kind="review",
        args={"kinds": names, **({"event": event} if is_shown else {})},
        description=f"The run has a match of kind {', '.join(names)}. Approved, it goes on without "
        "the match; rejected, it is stopped.",
    )
    return Pause([item], {"kind": REVIEW})


def approval_requested(
    approval_id: str, pause: Pause, redactions: Sequence[JsonObject] = ()
) -> Draft:
    """Return the event that asks for a decision about every item of a pause.

    Each item has a digest of its content and the approval's id, and the request has a digest of
    these digests. A decision carries the request's digest. So a decision cannot be used for a
    request with other items, or for another pause with the same items.
    """
    items = [_item(approval_id, item) for item in pause.items]
    data = {
        "approval_id": approval_id,
        "digest": request_digest([item["digest"] for item in items]),
        "deciders_required": 1,
        "items": items,
    }
    return Draft("approval.requested", data, pause.source, redactions=redactions)


def _item(approval_id: str, item: PauseItem) -> JsonObject:
    fields = {name: value for name, value in asdict(item).items() if value is not None}
    return {**fields, "digest": item_digest(approval_id, fields)}
