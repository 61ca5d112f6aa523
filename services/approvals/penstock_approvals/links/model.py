"""Defines the stored form of a link, and computes whether a link can be used now. Pure."""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from enum import Enum
from typing import Final, Literal

from penstock.bus.records import ApprovalRecord, Decider
from penstock_approvals.policy import earlier_vote, may_decide

ROLE_PREFIX: Final = "link:"


@dataclass(frozen=True, slots=True, kw_only=True)
class LinkRecord:
    """The record of a link in KV `tokens`, under the key `link.<id>`, without the link's secret.

    Times are in Unix seconds.
    """

    id: str
    form_key: str  # the key of the form's signature
    approval_id: str
    request_digest: str  # the digest of what the link lets a person decide
    user: str | None = None  # the person who decides with it
    role: str | None = None  # the role of the person, or the group
    created_by: str
    created_at: float
    expires_at: float
    used_at: float | None = None
    used_for: Literal["approve", "reject"] | None = None

    def decider(self) -> Decider:
        """Return the person who holds the link.

        All links for the same role count as one person. Otherwise somebody with two such links
        could vote twice.
        """
        return Decider(
            name=self.user or f"{ROLE_PREFIX}{self.role}",
            roles=[self.role] if self.role else [],
            scopes=["decide"],
            channel="link",
            token_id=self.id,
            token_maker=self.created_by,
        )

    def signature(self) -> str:
        """Return the secret value that the page puts into its form and that the form must send
        back.

        A page of another origin cannot know this value. The value also depends on the digest of the
        request. So if the request changes, a form that was shown before the change is refused.
        """
        text = f"{self.approval_id}.{self.request_digest}"
        return hmac.new(bytes.fromhex(self.form_key), text.encode(), hashlib.sha256).hexdigest()


class State(Enum):
    """Says whether a link can be used, and if not, why."""

    OPEN = "open"
    USED = "used"
    DECIDED = "decided"
    WITHDRAWN = "withdrawn"
    LATE = "late"
    EXPIRED = "expired"
    VOTED = "voted"
    CHANGED = "changed"
    REFUSED = "refused"
    GONE = "gone"


_ENDED: Final[Mapping[str, State]] = {
    "decided": State.DECIDED,
    "withdrawn": State.WITHDRAWN,
    "expired": State.LATE,
}


def state_of(link: LinkRecord, record: ApprovalRecord | None, now: datetime) -> State:
    """Return the state of the link at `now`, the time of the NATS server."""
    if record is None:
        return State.GONE
    if link.used_at is not None:
        return State.USED
    if record.status != "pending":
        return _ENDED[record.status]
    decider = link.decider()
    vote = earlier_vote(record, decider)
    checks = (
        (State.EXPIRED, now.timestamp() >= link.expires_at),
        (State.LATE, _is_late(record, now)),
        (State.VOTED, vote is not None and vote.by == decider.name),
        (State.CHANGED, record.digest != link.request_digest),
        (State.REFUSED, vote is not None or may_decide(record, decider) is not None),
    )
    return next((state for state, holds in checks if holds), State.OPEN)


def _is_late(record: ApprovalRecord, now: datetime) -> bool:
    return record.expires_at is not None and now >= datetime.fromisoformat(record.expires_at)
