"""Writes what happens to an approval to the audit of its run."""

from __future__ import annotations

from penstock.bus import Bus
from penstock.bus.records import ApprovalRecord
from penstock_approvals.audit import entries
from penstock_approvals.audit.trail import Audit


class ApprovalAudit:
    """The audit of approvals. Every call may be repeated: each entry is written once."""

    def __init__(self, bus: Bus, *, with_details: bool) -> None:
        """With `with_details`, the records have arguments, values and notes, not only hashes."""
        self.trail = Audit(bus)
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
