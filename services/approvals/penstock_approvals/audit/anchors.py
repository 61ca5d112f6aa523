"""Writes anchors: once a day, on demand, and after NATS has lost the end of AUDIT.

After such a loss, the audit is completed from the records of approvals, and the loss is recorded.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Sequence

from penstock.bus import Bus, FenceConflict, Loss, Message, OutcomeUnknown
from penstock.bus.read import direct
from penstock.bus.records.approvals import ApprovalRecord
from penstock.bus.streams import AUDIT
from penstock.bus.subjects import audit
from penstock.bus.write import fence
from penstock_approvals.audit.chain import (
    GENESIS,
    MAX_HEADS,
    Head,
    Link,
    Malformed,
    anchor,
    day_of,
    last_anchored_sequence,
    loss_record,
    parse,
)
from penstock_approvals.audit.trail import ApprovalAudit, complete

log = logging.getLogger(__name__)

ANCHOR = "anchor"
SUBJECT = audit(ANCHOR)


class Anchors:
    """Writes the chain of anchors. Several processes may write at the same time. Every call may be
    repeated, and raises BusError."""

    def __init__(self, bus: Bus, keys: tuple[bytes, ...] = ()) -> None:
        self._bus = bus
        self._keys = keys
        self._handled = 0  # the number of losses of AUDIT that were handled

    async def daily(self) -> bool:
        """Write today's anchor, unless it exists, or no run got a record since the last anchor;
        return whether this call wrote it."""
        day = self._bus.clock.stamp()[:10]
        last, _ = await self._last()
        if (day_of(last) or "") >= day:
            return False
        return await self._write(day)

    async def now(self) -> Link | None:
        """Write an anchor if any run got records since the last anchor; return the last anchor."""
        await self._write(None)
        return (await self._last())[0]

    async def last(self) -> Link | None:
        return (await self._last())[0]

    async def after_losses(
        self, audit: ApprovalAudit, records: Callable[[], Awaitable[list[ApprovalRecord]]]
    ) -> None:
        """Handle each loss of AUDIT once, also one from before this process began.

        The lost records that can be made from the approvals are written again, then the loss is
        recorded in the chain of anchors. If the process ends before that, another process repeats
        all steps.
        """
        losses = self._bus.continuity.of(AUDIT)
        if len(losses) == self._handled:
            return
        if unnamed := await self._unnamed(losses):
            for record in await records():
                await audit.follow(record)
            for each in unnamed:
                while await self._unnamed([each]):
                    last, sequence = await self._last()
                    at = self._bus.clock.stamp()
                    lost = loss_record(*_facts(each), at=at, last=last, keys=self._keys)
                    await self._append(lost, sequence)
            log.error(
                "NATS has lost records of the audit. Records about requests, votes and decisions "
                "were made again from the approvals; others (viewed, sent, ran) are gone. The "
                "chain of anchors names the loss"
            )
        self._handled = len(losses)

    async def _unnamed(self, losses: Sequence[Loss]) -> list[Loss]:
        """Return the losses for which the chain of anchors has no record."""
        named = set()
        for stored in await complete(self._bus, AUDIT, SUBJECT):
            link = _parsed(stored.payload)
            if link is not None and link.record.get("event") == "lost":
                named.add(tuple(link.record.get(name) for name in ("stands", "known", "found_at")))
        return [each for each in losses if _facts(each) not in named]

    async def _write(self, day: str | None) -> bool:
        """Write anchors for all records that no anchor covers yet.

        An anchor has at most `MAX_HEADS` runs, so several anchors may be needed. Only the last of
        these anchors has the `day`. So if the process ends before it has written the last anchor,
        another process writes an anchor with the `day`.

        Return True if this process wrote the last anchor. Return False if there was nothing to
        cover, or if another process has written the anchor of the day.
        """
        while True:
            last, sequence = await self._last()
            if day is not None and day_of(last) == day:
                return False
            heads, through, more = await self._heads(last_anchored_sequence(last))
            if not heads:
                return False
            at = self._bus.clock.stamp()
            made = anchor(
                heads, through, at=at, day=None if more else day, last=last, keys=self._keys
            )
            if await self._append(made, sequence):
                log.info("the audit of %d runs is covered by the anchor %s", len(heads), made.hash)
                if not more:
                    return True

    async def _heads(self, after: int) -> tuple[dict[str, Head], int, bool]:
        """Return each run's last record after a sequence, the sequence where the read ended, and
        whether more records follow. `verify` reports messages that cannot be parsed."""
        heads: dict[str, Head] = {}
        through = after
        async for stored in direct.replay(self._bus, AUDIT, ">", after + 1):
            chain = stored.subject.partition(".")[2]
            if chain != ANCHOR and chain not in heads and len(heads) >= MAX_HEADS:
                return heads, through, True
            through = stored.sequence
            record = _parsed(stored.payload) if chain != ANCHOR else None
            if record is not None:
                heads[chain] = (record.n, record.hash)
        return heads, through, False

    async def _append(self, record: Link, sequence: int) -> bool:
        try:
            message = Message(SUBJECT, record.payload, {})
            await fence.append(self._bus, SUBJECT, [message], sequence)
        except (FenceConflict, OutcomeUnknown):
            # Another process has written an anchor, or the outcome of this write is unknown.
            log.debug("the chain of anchors is read again")
            return False
        return True

    async def _last(self) -> tuple[Link | None, int]:
        """Return the last anchor and its stream sequence; (None, 0) without anchors."""
        stored = await self._bus.tail(AUDIT, SUBJECT)
        if stored is None:
            return None, 0
        try:
            return parse(stored.payload), stored.sequence
        except Malformed as error:
            # `verify` reports the damaged anchor. The next anchor gets the number after the damaged
            # anchor, and covers all runs, because the damaged anchor does not show what it covered.
            log.error("AUDIT, sequence %d: the last anchor is damaged: %s", stored.sequence, error)
            n = sum([1 async for _ in direct.replay(self._bus, AUDIT, SUBJECT)])
            return Link(n, GENESIS, {}), stored.sequence


def _facts(lost: Loss) -> tuple[int, int, str]:
    return lost.last_left, lost.last_known, lost.found_at


def _parsed(payload: bytes) -> Link | None:
    try:
        return parse(payload)
    except Malformed:
        return None
