"""Make, find, use and revoke links.

KV `tokens` has a record for each link, without the link's secret.
"""

from __future__ import annotations

import hashlib
import hmac
import math
import re
import secrets
from datetime import datetime
from typing import Final, Literal

from penstock.bus import Bus
from penstock.bus.records import ApprovalRecord, Decider
from penstock_approvals.links.model import LinkRecord
from penstock_approvals.policy import may_decide

# The seconds for which the record of an expired link is kept. During this time, the link's page
# says that the link has expired.
KEPT_S: Final = 30 * 86_400.0
_ID_CHARS: Final = 32
# The prefix of a link's secret, by which tools that search logs and repositories for secrets
# recognise it.
PREFIX: Final = "pln_"
SECRET: Final = re.compile(r"pln_[A-Za-z0-9_-]{43}")
_ID: Final = re.compile(r"[0-9a-f]{32}")


class LinkRefused(Exception):
    """The error for a link that cannot be made. `status` is the HTTP status of the answer."""

    def __init__(self, status: Literal[403, 404, 409, 422], detail: str) -> None:
        super().__init__(detail)
        self.status: Literal[403, 404, 409, 422] = status
        self.detail = detail


class Links:
    """Makes and finds the links of all approvals. Times come from the NATS server."""

    def __init__(self, bus: Bus) -> None:
        self._bus = bus
        self._bucket = bus.bucket("tokens")

    async def make(
        self,
        maker: Decider,
        record: ApprovalRecord,
        user: str | None,
        role: str | None,
        lifetime_s: float,
    ) -> tuple[str, LinkRecord]:
        """Make a link; return the link's secret and its record.

        The link expires at the approval's deadline or earlier.

        Raises:
            LinkRefused: the maker may not make links, or the link could not be used to decide.
            BusError: the bus does not answer.
        """
        if "administer" not in maker.scopes:
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
        secret = PREFIX + secrets.token_urlsafe(32)
        hashed = hash_of(secret)
        now = self._bus.clock.time()
        ends = [now + lifetime_s]
        if record.expires_at is not None:
            ends.append(datetime.fromisoformat(record.expires_at).timestamp())
        link = LinkRecord(
            id=hashed[:_ID_CHARS],
            hash=hashed,
            form_key=secrets.token_hex(32),
            approval_id=record.approval_id,
            digest=record.digest,
            user=user,
            role=role,
            created_by=maker.name,
            created_at=now,
            expires_at=min(ends),
        )
        if (reason := may_decide(record, link.decider())) is not None:
            raise LinkRefused(422, f"the link could not decide: {reason}")
        await self._bucket.create(_key(link.id), link.dump(), self._kept_s(link))
        return secret, link

    async def find(self, secret: str) -> LinkRecord | None:
        """Return the link with this secret; None if there is no such link. Raises BusError."""
        if not SECRET.fullmatch(secret):
            return None
        hashed = hash_of(secret)
        entry = await self._bucket.get(_key(hashed[:_ID_CHARS]))
        if entry is None:
            return None
        link = LinkRecord.model_validate_json(entry.value)
        return link if hmac.compare_digest(link.hash, hashed) else None

    async def used(self, link: LinkRecord, decision: Literal["approve", "reject"]) -> None:
        """Record that the link was used.

        This record only informs people. Without it, a second use fails, too, because the approval
        is decided, or because the link's person has voted.

        Raises BusError.
        """
        entry = await self._bucket.get(_key(link.id))
        if entry is None:
            return  # the link was revoked meanwhile
        update = {"used_at": self._bus.clock.time(), "used_for": decision}
        used = LinkRecord.model_validate_json(entry.value).model_copy(update=update)
        await self._bucket.update(_key(link.id), used.dump(), entry.revision, self._kept_s(link))

    async def revoke(self, approval_id: str, link_id: str) -> bool:
        """Delete a link; return False if the approval has no such link. Raises BusError."""
        entry = await self._bucket.get(_key(link_id)) if _ID.fullmatch(link_id) else None
        if entry is None:
            return False
        if LinkRecord.model_validate_json(entry.value).approval_id != approval_id:
            return False
        await self._bucket.delete(_key(link_id))
        return True

    def _kept_s(self, link: LinkRecord) -> float:
        return math.ceil(max(0.0, link.expires_at - self._bus.clock.time()) + KEPT_S)


def hash_of(secret: str) -> str:
    """Return the SHA-256 of a secret, as hexadecimal digits."""
    return hashlib.sha256(secret.encode()).hexdigest()


def _key(link_id: str) -> str:
    return f"link.{link_id}"
