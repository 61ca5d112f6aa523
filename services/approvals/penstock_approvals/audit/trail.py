"""Appends each record once to the stream AUDIT, and reads the chain of a run."""

from __future__ import annotations

import asyncio
import logging

from penstock.bus import Bus, BusUnavailable, FenceConflict, Message, OutcomeUnknown
from penstock.bus.messages import Stored
from penstock.bus.read import direct
from penstock.bus.streams import AUDIT
from penstock.bus.subjects import audit
from penstock.bus.write import fence
from penstock_approvals.audit.chain import GENESIS, Entry, Link, Malformed, link, missing, parse

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
        another process at the same moment.

        Raises:
            BusError: the bus does not answer. Some of the entries may have been written; repeat the
                call.
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
        """Return the records of a run.

        For a message that cannot be parsed, the result has a record without content.

        Raises:
            BusError: the bus does not answer.
        """
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
                log.error(
                    "run %s: AUDIT, sequence %d: the record is damaged: %s",
                    run_id,
                    stored.sequence,
                    error,
                )
                chain.append(Link(len(chain) + 1, GENESIS, {}))
        return chain, found[-1].sequence if found else 0

    async def stored(self, subject: str) -> list[Stored]:
        return await complete(self._bus, AUDIT, subject)


async def complete(bus: Bus, stream: str, subject: str) -> list[Stored]:
    """Return all messages of a subject, up to the last message that the stream's leader has.

    Raises:
        BusError: the bus does not answer.
    """
    last = await bus.tail(stream, subject)
    if last is None:
        return []
    for _ in range(ATTEMPTS):
        found = [each async for each in direct.replay(bus, stream, subject)]
        if found and found[-1].sequence >= last.sequence:
            return found
        await asyncio.sleep(LAG_S)  # the answer came from a replica that lags behind
    raise BusUnavailable(f"{stream}: no server answers with the last message of {subject}")
