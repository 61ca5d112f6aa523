"""Writes what happens to an approval to the audit of its run, each record once.

`Audit` appends to the chains in the stream AUDIT, and `ApprovalAudit` makes the entries.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any, NamedTuple

import orjson

from penstock.bus import Bus, BusUnavailable, FenceConflict, Message, ObjectGone, OutcomeUnknown
from penstock.bus.messages import Stored
from penstock.bus.read import direct
from penstock.bus.records.approvals import ApprovalRecord, Decider
from penstock.bus.records.erasures import HoldChange
from penstock.bus.streams import AUDIT, events_for
from penstock.bus.subjects import audit, event
from penstock.bus.write import fence, objects
from penstock_approvals.audit import entries
from penstock_approvals.audit.chain import (
    GENESIS,
    Entry,
    Link,
    Malformed,
    keyed,
    link,
    missing,
    parse,
)
from penstock_approvals.audit.verify import Finding, Verifier

log = logging.getLogger(__name__)

LAG_S = 0.05  # seconds before a read is repeated, if a replica that lags behind has answered
ATTEMPTS = 100


class Audit:
    """Appends to the chains of all runs. Several processes may append at the same time."""

    def __init__(self, bus: Bus) -> None:
        self._bus = bus

    async def append(self, run_id: str, *entries: Entry) -> None:
        """Append the entries that the run's chain does not have yet, in this order.

        A key identifies each entry. So the call may be repeated after an error or a kill, even by
        another process at the same moment. Raises BusError.
        """
        subject = audit(run_id)
        while True:
            chain, sequence = await self._read(run_id)
            last = chain[-1] if chain else None
            try:
                for entry in missing(chain, entries):
                    last = link(run_id, entry, last)
                    message = Message(subject, last.payload, {})
                    sequence = await fence.append(self._bus, subject, [message], sequence)
                return
            except (FenceConflict, OutcomeUnknown):
                # Another process has appended to this run, or the acknowledgement was lost. The
                # chain is read again, to find the entries that are still missing.
                log.debug("run %s: its audit is read again", run_id)

    async def chain(self, run_id: str) -> list[Link]:
        """Return the records of a run; one without content for a message that cannot be parsed."""
        return (await self._read(run_id))[0]

    async def _read(self, run_id: str) -> tuple[list[Link], int]:
        """Return the records of a run, and the stream sequence of the run's last message; 0 if the
        run has no message."""
        found = await self.stored(audit(run_id))
        chain: list[Link] = []
        for stored in found:
            try:
                chain.append(parse(stored.payload))
            except Malformed as error:
                # `verify` reports the damaged record. The damaged record is counted, so that the
                # next record gets the right number.
                text = "run %s: AUDIT, sequence %d: the record is damaged: %s"
                log.error(text, run_id, stored.sequence, error)
                chain.append(Link(len(chain) + 1, GENESIS, {}))
        return chain, found[-1].sequence if found else 0

    async def stored(self, subject: str) -> list[Stored]:
        return await complete(self._bus, AUDIT, subject)


async def complete(bus: Bus, stream: str, subject: str) -> list[Stored]:
    """Return all messages of a subject, up to the last message that the stream's leader has."""
    last = await bus.tail(stream, subject)
    if last is None:
        return []
    for _ in range(ATTEMPTS):
        found = [each async for each in direct.replay(bus, stream, subject)]
        if found and found[-1].sequence >= last.sequence:
            return found
        await asyncio.sleep(LAG_S)  # the answer came from a replica that lags behind
    raise BusUnavailable(f"{stream}: no server answers with the last message of {subject}")


class History(NamedTuple):
    """The audit records of an approval, and the findings about the chain of the approval's run."""

    records: list[Link]
    head: str | None  # the hash of the last record of the run
    findings: list[Finding]


class ApprovalAudit:
    """The audit of approvals. Every call may be repeated, and raises BusError."""

    def __init__(self, bus: Bus, *, with_details: bool = False, keys: Sequence[bytes] = ()) -> None:
        """Take the settings `audit_details` and `audit_keys`.

        The first key makes the hashes of IP addresses. Without a key, none are written, because
        anybody could find the address by hashing all addresses.
        """
        self.trail = Audit(bus)
        self._keys = keys
        self._bus = bus
        self._with_details = with_details

    async def follow(self, record: ApprovalRecord) -> None:
        """Write the entries of the record that the audit does not have yet."""
        await self.trail.append(record.run_id, *entries.entries_of(record, self._with_details))

    async def sent(self, record: ApprovalRecord) -> None:
        """Write that the command which continues the run was sent."""
        entry = entries.sent(record, self._bus.clock.stamp())
        if entry is not None:
            await self.trail.append(record.run_id, entry)

    async def record_executed_calls(self, record: ApprovalRecord) -> None:
        """Write which approved calls ran, according to the run's events.

        The service calls this method when the run ends or pauses again. So the service does not
        have to follow the tool events of all runs.
        """
        if not entries.approved_calls(record):
            return
        stream = events_for(record.run_id)
        bodies = []
        for type_ in entries.TOOL_EVENTS:
            for stored in await complete(self._bus, stream, event(type_, record.run_id)):
                with suppress(ObjectGone):
                    bodies.append(orjson.loads(await objects.unwrap(self._bus, stored.payload)))
        bodies.sort(key=lambda body: int(body["sequence"]))
        ran = entries.entries_of_executed_calls(record, bodies)
        await self.trail.append(record.run_id, *ran)

    async def erased(self, event: Mapping[str, Any]) -> None:
        """Write who has erased the content of the run, by its event `system.erased`."""
        await self.trail.append(str(event["run_id"]), entries.erased(event))

    async def held(self, run_id: str, change: HoldChange) -> None:
        """Write who has set or lifted a legal hold of the run."""
        await self.trail.append(run_id, entries.held(change))

    async def undocumented(self, run_id: str) -> set[str]:
        """Return the ids of the run's decided approvals without an entry about a call that ran."""
        found: dict[object, set[object]] = {}
        for each in await self.trail.chain(run_id):
            approval_id = each.record.get("approval_id")
            found.setdefault(approval_id, set()).add(each.record.get("event"))
        return {str(key) for key, seen in found.items() if "decided" in seen and "ran" not in seen}

    async def viewed(self, record: ApprovalRecord, who: Decider, ip: str | None) -> None:
        """Write that a person who is not the requester has seen the approval.

        Only a person's first view in each channel is written. An open page reads the approval every
        few seconds, and would otherwise fill the audit.
        """
        if who.name == record.user_id and who.on_behalf_of is None and who.token_id is None:
            return
        ip_hash = keyed(ip, self._keys[0]) if ip and self._keys else None
        entry = entries.viewed(record, who, self._bus.clock.stamp(), ip_hash=ip_hash)
        await self.trail.append(record.run_id, entry)

    async def linked(self, record: ApprovalRecord, link_id: str, maker: Decider, to: str) -> None:
        """Write that a one-time link was made, with which `to` may decide."""
        entry = entries.linked(record, link_id, maker, to, self._bus.clock.stamp())
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
