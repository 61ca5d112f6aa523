"""Completes the audit after NATS has lost the end of AUDIT, and records the loss."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable

from penstock.bus import Bus
from penstock.bus.records import ApprovalRecord
from penstock.bus.streams import AUDIT
from penstock_approvals.audit.anchors import Anchors
from penstock_approvals.audit.approval import ApprovalAudit

log = logging.getLogger(__name__)


class AuditLosses:
    """Handles each loss of AUDIT once, also a loss that is older than this process."""

    def __init__(
        self,
        bus: Bus,
        audit: ApprovalAudit,
        anchors: Anchors,
        records: Callable[[], Awaitable[list[ApprovalRecord]]],
    ) -> None:
        """Take the audit, its anchors, and a function that returns the records of all approvals."""
        self._bus = bus
        self._audit = audit
        self._anchors = anchors
        self._records = records
        self._handled = 0

    async def after_losses(self) -> None:
        """Write again the lost audit records that can be made from the approvals; then record the
        loss.

        The loss is recorded last. If the process ends before it has recorded the loss, another
        process repeats all steps.

        Raises:
            BusError: the bus does not answer; call again.
        """
        losses = self._bus.continuity.of(AUDIT)
        if len(losses) == self._handled:
            return
        if unnamed := await self._anchors.unnamed(losses):
            for record in await self._records():
                await self._audit.follow(record)
            await self._anchors.lost(unnamed)
            log.error(
                "NATS has lost records of the audit. Records about requests, votes and decisions "
                "were made again from the approvals; others (viewed, sent, ran) are gone. The "
                "chain of anchors names the loss"
            )
        self._handled = len(losses)
