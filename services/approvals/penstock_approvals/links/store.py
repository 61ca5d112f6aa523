"""Make, find, use and revoke links, and compute whether a link can be used now."""

from __future__ import annotations

import hashlib
import hmac
import secrets
from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import datetime
from enum import Enum, auto
from typing import Final, Literal

from penstock.bus import Bus
from penstock.bus.records.approvals import ApprovalRecord, Decider
from penstock.web.auth.token_records import TokenRecords
from penstock_approvals.audit.trail import ApprovalAudit
from penstock_approvals.outcomes.automatic import is_late
from penstock_approvals.policy.deciding_rights import earlier_vote, may_decide, votes_of

# The seconds for which the record of an expired link is kept. During this time, the link's page
# says that the link has expired.
KEPT_S: Final = 30 * 86_400.0
ROLE_PREFIX: Final = "link:"


@dataclass(frozen=True, slots=True, kw_only=True)
class LinkRecord:
    """The record of a link in KV `tokens`, under the key `link.<id>`, without the link's secret.
    Times are in Unix seconds."""

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
        """Return the person who holds the link. All links for the same role count as one person,
        because somebody with two such links could otherwise vote twice."""
        return Decider(
            name=self.user or f"{ROLE_PREFIX}{self.role}",
            roles=[self.role] if self.role else [],
            scopes=["decide"],
            channel="link",
            token_id=self.id,
            token_maker=self.created_by,
        )

    def signature(self) -> str:
        """Return the secret value that the page's form must send back.

        A page of another origin cannot know this value. The value also depends on the digest of the
        request. So if the request changes, a form that was shown before the change is refused.
        """
        text = f"{self.approval_id}.{self.request_digest}"
        return hmac.new(bytes.fromhex(self.form_key), text.encode(), hashlib.sha256).hexdigest()


class State(Enum):
    """Whether a link can be used, and if not, why."""

    OPEN = auto()
    USED = auto()
    DECIDED = auto()
    WITHDRAWN = auto()
    LATE = auto()
    EXPIRED = auto()
    VOTED = auto()
    CHANGED = auto()
    REFUSED = auto()
    GONE = auto()


_ENDED: Final[Mapping[str, State]] = {
    "decided": State.DECIDED,
    "withdrawn": State.WITHDRAWN,
    "expired": State.LATE,
}


def may_take_back(link: LinkRecord, record: ApprovalRecord | None, now: datetime) -> bool:
    """Return whether the vote that was given by the link can be taken back by it at `now`."""
    if record is None or record.status != "pending" or is_late(record, now):
        return False
    standing = [vote for vote in votes_of(record, link.decider()) if vote.taken_back is None]
    return bool(standing) and now.timestamp() < link.expires_at


def state_of(link: LinkRecord, record: ApprovalRecord | None, now: datetime) -> State:
    """Return the state of the link at `now`, the time of the NATS server."""
    if record is None:
        return State.GONE
    decider = link.decider()
    mine = votes_of(record, decider)
    if link.used_at is not None and not (mine and mine[-1].taken_back):
        return State.USED
    if record.status != "pending":
        return _ENDED[record.status]
    vote = earlier_vote(record, decider)
    checks = (
        (State.EXPIRED, now.timestamp() >= link.expires_at),
        (State.LATE, is_late(record, now)),
        (State.VOTED, vote is not None and vote.by == decider.name),
        (State.CHANGED, record.digest != link.request_digest),
        (State.REFUSED, vote is not None or may_decide(record, decider) is not None),
    )
    return next((state for state, holds in checks if holds), State.OPEN)


class LinkRefused(Exception):
    """The error for a link that cannot be made. `status` is the HTTP status of the answer."""

    def __init__(self, status: Literal[403, 404, 409, 422], detail: str) -> None:
        super().__init__(detail)
        self.status: Literal[403, 404, 409, 422] = status


def _is_own(maker: Decider, user: str | None, role: str | None) -> bool:
    """Return whether a link gives the maker nothing but what the maker has: the holder of a service
    token has none, because the link would not have the token's limits and would outlive it."""
    is_own = user == maker.name and maker.token_id is None and maker.limits is None
    return is_own and "decide" in maker.scopes and role in (None, *maker.roles)


class Links:
    """Makes and finds the links of all approvals. Times come from the NATS server."""

    def __init__(self, bus: Bus, audit: ApprovalAudit, public_url: str | None = None) -> None:
        """Take the address of the service for people; without it, links are only paths."""
        self._audit = audit
        self._public_url = (public_url or "").rstrip("/")
        self._records = TokenRecords(
            bus.bucket("tokens"),
            LinkRecord,
            what="link",
            prefix="pln_",
            keys="link.",
            now=bus.clock.time,
            found_after_end_s=KEPT_S,
        )

    async def make(
        self,
        maker: Decider,
        record: ApprovalRecord,
        *,
        user: str | None,
        role: str | None,
        lifetime_s: float,
    ) -> tuple[str, LinkRecord]:
        """Make a link, which expires at the approval's deadline or earlier; return its address.
        The audit names the link before anybody knows the address.

        Raises:
            LinkRefused: in this order: 403, the maker is no administrator and the link is not for
                the maker; 409, the approval is not pending; 422, the link names nobody, or could
                not be used to decide.
            BusError: the bus does not answer.
        """
        if "administer" not in maker.scopes and not _is_own(maker, user, role):
            raise LinkRefused(403, "a link lets others decide: this needs the scope administer")
        if record.status != "pending":
            raise LinkRefused(409, f"the approval is {record.status}, so a link decides nothing")
        if not user and not role:
            raise LinkRefused(422, "user or role: name who decides with the link")
        if not user and record.need > 1:
            # A link without a user counts as a separate person. So a person with the role could
            # vote twice: by the link, and under the person's own name.
            raise LinkRefused(
                422, f"user: {record.need} people must decide, so a link must say who decides"
            )
        secret, now = self._records.new(), self._records.now()
        ends = [now + lifetime_s]
        if record.expires_at is not None:
            ends.append(datetime.fromisoformat(record.expires_at).timestamp())
        link = LinkRecord(
            id=secret.id,
            form_key=secrets.token_hex(32),
            approval_id=record.approval_id,
            request_digest=record.digest,
            user=user,
            role=role,
            created_by=maker.name,
            created_at=now,
            expires_at=min(ends),
        )
        if (reason := may_decide(record, link.decider())) is not None:
            raise LinkRefused(422, f"the link could not decide: {reason}")
        await self._records.add(secret, link)
        await self._audit.linked(record, link.id, maker, link.decider().name)
        return f"{self._public_url}/d/{secret.text}", link

    async def find(self, secret: str) -> LinkRecord | None:
        found = await self._records.find(secret)
        return found.record if found is not None else None

    async def note_use(self, link: LinkRecord, decision: Literal["approve", "reject"]) -> None:
        """Record that the link was used, for people only. Without this, a second use fails, too,
        because the approval is decided, or because the link's person has voted."""
        found = await self._records.get(link.id)
        if found is not None:  # otherwise the link was revoked meanwhile
            used = replace(found.record, used_at=self._records.now(), used_for=decision)
            await self._records.replace(found, used)

    async def revoke(self, approval_id: str, link_id: str) -> bool:
        found = await self._records.get(link_id)
        if found is None or found.record.approval_id != approval_id:
            return False
        await self._records.delete(link_id)
        return True
