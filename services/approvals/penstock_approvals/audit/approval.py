"""Writes what happens to an approval to the audit of its run."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from penstock.bus import Bus
from penstock.bus.records import ApprovalRecord, Decider
from penstock.bus.subjects import audit
from penstock_approvals.audit import entries
from penstock_approvals.audit.chain import Link, keyed
from penstock_approvals.audit.trail import Audit
from penstock_approvals.audit.verify import Finding, Verifier


@dataclass(frozen=True, slots=True)
class History:
    """The records of an approval, and what is wrong with the chain of its run."""

    records: list[Link]
    head: str | None  # the hash of the last record of the run
    findings: list[Finding]


class ApprovalAudit:
    """The audit of approvals. Every call may be repeated: each entry is written once."""

    def __init__(self, bus: Bus, *, with_details: bool = False, keys: Sequence[bytes] = ()) -> None:
        """Take the settings of the audit.

        Args:
            bus: the bus with the stream AUDIT.
            with_details: whether records have arguments, values and notes, not only digests.
            keys: the keys of the audit. The first one makes the hashes of IP addresses; without a
                key there are none, because every IP address could be guessed from its hash.
        """
        self.trail = Audit(bus)
        self._keys = keys
        self._bus = bus
        self._with_details = with_details

    async def follow(self, record: ApprovalRecord) -> None:
        """Write all that the record implies and that the audit lacks. Raises BusError."""
        await self.trail.append(record.run_id, *entries.entries_of(record, self._with_details))

    async def sent(self, record: ApprovalRecord) -> None:
        """Write that the command which continues the run was sent. Raises BusError."""
        entry = entries.sent(record, self._bus.clock.stamp())
        if entry is not None:
            await self.trail.append(record.run_id, entry)

    async def viewed(self, record: ApprovalRecord, who: Decider, ip: str | None) -> None:
        """Write that somebody else than the requester has seen the approval.

        Only the first time of each person and way is written, so that an open page which asks every
        few seconds does not fill the audit. Raises BusError.
        """
        if who.name == record.user_id and who.on_behalf_of is None and who.token_id is None:
            return
        ip_hash = keyed(ip, self._keys[0]) if ip and self._keys else None
        entry = entries.viewed(record, who, self._bus.clock.stamp(), ip_hash)
        await self.trail.append(record.run_id, entry)

    async def history(self, record: ApprovalRecord) -> History:
        """Return the records of the approval. Raises BusError."""
        verifier = Verifier(only=record.run_id)
        stored = await self.trail.stored(audit(record.run_id))
        links = [verifier.take(record.run_id, each.payload, each.sequence) for each in stored]
        known = [link for link in links if link is not None]
        return History(
            [link for link in known if link.record.get("approval_id") == record.approval_id],
            known[-1].hash if known else None,
            verifier.findings(),
        )
