"""Writes what happens to an approval to the audit of its run."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass

import orjson

from penstock.bus import Bus, ObjectGone
from penstock.bus.records import ApprovalRecord, Decider
from penstock.bus.streams import events_for
from penstock.bus.subjects import audit, event
from penstock.bus.write import objects
from penstock_approvals.audit import entries
from penstock_approvals.audit.chain import Link, keyed
from penstock_approvals.audit.entries import (
    TOOL_EVENTS,
    approved_calls,
    entries_of_executed_calls,
)
from penstock_approvals.audit.trail import Audit, complete
from penstock_approvals.audit.verify import Finding, Verifier


@dataclass(frozen=True, slots=True)
class History:
    """The audit records of an approval, and the findings about the chain of the approval's run."""

    records: list[Link]
    head: str | None  # the hash of the last record of the run
    findings: list[Finding]


class ApprovalAudit:
    """The audit of approvals.

    Every call may be repeated, because each entry is written only once.
    """

    def __init__(self, bus: Bus, *, with_details: bool = False, keys: Sequence[bytes] = ()) -> None:
        """Take the settings of the audit.

        Args:
            bus: the bus with the stream AUDIT.
            with_details: True if records contain the arguments, values and notes; False if records
                contain only digests.
            keys: the keys of the audit. The first key makes the hashes of IP addresses. Without a
                key, no hashes of IP addresses are written, because anybody could find the address
                by hashing all addresses.
        """
        self.trail = Audit(bus)
        self._keys = keys
        self._bus = bus
        self._with_details = with_details

    async def follow(self, record: ApprovalRecord) -> None:
        """Write the entries of the record that the audit does not have yet. Raises BusError."""
        await self.trail.append(record.run_id, *entries.entries_of(record, self._with_details))

    async def sent(self, record: ApprovalRecord) -> None:
        """Write that the command which continues the run was sent. Raises BusError."""
        entry = entries.sent(record, self._bus.clock.stamp())
        if entry is not None:
            await self.trail.append(record.run_id, entry)

    async def record_executed_calls(self, record: ApprovalRecord) -> None:
        """Write which approved calls ran, according to the run's events.

        The service calls this method when the run ends or pauses again. So the service does not
        have to follow the tool events of all runs. Raises BusError.
        """
        if not approved_calls(record):
            return
        stream = events_for(record.run_id)
        bodies = []
        for type_ in TOOL_EVENTS:
            for stored in await complete(self._bus, stream, event(type_, record.run_id)):
                with suppress(ObjectGone):
                    bodies.append(orjson.loads(await objects.unwrap(self._bus, stored.payload)))
        bodies.sort(key=lambda body: int(body["sequence"]))
        await self.trail.append(record.run_id, *entries_of_executed_calls(record, bodies))

    async def undocumented(self, run_id: str) -> set[str]:
        """Return the ids of the run's decided approvals without an entry about a call that ran.

        Raises BusError.
        """
        found: dict[object, set[object]] = {}
        for link in await self.trail.chain(run_id):
            approval_id = link.record.get("approval_id")
            found.setdefault(approval_id, set()).add(link.record.get("event"))
        return {str(key) for key, seen in found.items() if "decided" in seen and "ran" not in seen}

    async def viewed(self, record: ApprovalRecord, who: Decider, ip: str | None) -> None:
        """Write that a person who is not the requester has seen the approval.

        Only a person's first view in each channel is written. An open page reads the approval every
        few seconds, and would otherwise fill the audit. Raises BusError.
        """
        if who.name == record.user_id and who.on_behalf_of is None and who.token_id is None:
            return
        ip_hash = keyed(ip, self._keys[0]) if ip and self._keys else None
        entry = entries.viewed(record, who, self._bus.clock.stamp(), ip_hash=ip_hash)
        await self.trail.append(record.run_id, entry)

    async def history(self, record: ApprovalRecord) -> History:
        verifier = Verifier(only=record.run_id)
        stored = await self.trail.stored(audit(record.run_id))
        links = [verifier.take(record.run_id, each.payload, each.sequence) for each in stored]
        known = [link for link in links if link is not None]
        return History(
            [link for link in known if link.record.get("approval_id") == record.approval_id],
            known[-1].hash if known else None,
            verifier.findings(),
        )
