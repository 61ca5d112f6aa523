"""Make, find, use and revoke links.

KV `tokens` has a record for each link, without the link's secret.
"""

from __future__ import annotations

import secrets
from dataclasses import replace
from datetime import datetime
from typing import Final, Literal

from penstock.bus import Bus
from penstock.bus.records import ApprovalRecord, Decider
from penstock.web.auth.token_records import TokenRecords
from penstock_approvals.links.model import LinkRecord
from penstock_approvals.policy import may_decide

# The seconds for which the record of an expired link is kept. During this time, the link's page
# says that the link has expired.
KEPT_S: Final = 30 * 86_400.0


class LinkRefused(Exception):
    """The error for a link that cannot be made. `status` is the HTTP status of the answer."""

    def __init__(self, status: Literal[403, 404, 409, 422], detail: str) -> None:
        super().__init__(detail)
        self.status: Literal[403, 404, 409, 422] = status
        self.detail = detail


class Links:
    """Makes and finds the links of all approvals. Times come from the NATS server."""

    def __init__(self, bus: Bus) -> None:
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
        return secret.text, link

    async def find(self, secret: str) -> LinkRecord | None:
        found = await self._records.find(secret)
        return found.record if found is not None else None

    async def note_use(self, link: LinkRecord, decision: Literal["approve", "reject"]) -> None:
        """Record that the link was used.

        This record only informs people. Without it, a second use fails, too, because the approval
        is decided, or because the link's person has voted.

        Raises BusError.
        """
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


def url_of(public_url: str | None, secret: str) -> str:
    """Return the address of a link's page; without `public_url`, only its path."""
    return f"{(public_url or '').rstrip('/')}/d/{secret}"
