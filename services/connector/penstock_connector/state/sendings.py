"""What became of the one sending of a decision: KV `sent`, key approval id.

A decision goes upstream at most once. A connector claims the sending before it sends, and records
the result. Every write is a compare-and-set.
"""

from __future__ import annotations

from typing import NamedTuple

from penstock.bus import Bus
from penstock.bus.records import SendingState, Sent
from penstock_connector.state.connectors import NOBODY


class ClaimedSending(NamedTuple):
    """The sending of an earlier writer, and its revision in the bucket."""

    sent: Sent
    revision: int


class Sendings:
    """The sendings of decisions. All methods raise BusError while the bus is away."""

    def __init__(self, bus: Bus, pod: str) -> None:
        self._pod = pod
        self._bucket = bus.bucket("sent")

    async def claim(self, approval_id: str) -> ClaimedSending | None:
        """Claim the sending; None when it is ours now, else the sending of an earlier writer.

        Without the claim two connectors could send one decision.
        """
        sent = Sent(pod=self._pod)
        while await self._bucket.create(approval_id, sent.dump()) is None:
            # the earlier record may age out between the create and the read; then claim again
            if (entry := await self._bucket.get(approval_id)) is not None:
                return ClaimedSending(Sent.model_validate_json(entry.value), entry.revision)
        return None

    async def read(self, approval_id: str) -> Sent | None:
        """What became of the sending; None when nobody has claimed it."""
        entry = await self._bucket.get(approval_id)
        return Sent.model_validate_json(entry.value) if entry is not None else None

    async def take_over(self, approval_id: str, revision: int) -> bool:
        """Replace the claim of a dead connector that has not begun.

        `revision` is the revision of the claim that the caller has read. Return False if another
        connector has replaced that claim first.
        """
        sent = Sent(pod=self._pod)
        return await self._bucket.update(approval_id, sent.dump(), revision) is not None

    async def give_back(self, approval_id: str) -> None:
        """Let any connector take over a sending that this one has claimed and cannot begin."""
        entry = await self._bucket.get(approval_id)
        if entry is not None and Sent.model_validate_json(entry.value) == Sent(pod=self._pod):
            await self._bucket.update(approval_id, Sent(pod=NOBODY).dump(), entry.revision)

    async def record(
        self,
        approval_id: str,
        state: SendingState,
        pod: str | None = None,
        *,
        is_known: bool = False,
    ) -> None:
        """Record what became of the sending, unless that is recorded already.

        Only the connector that claimed the sending may record the result: this connector, or `pod`,
        for which this connector acts. With `is_known`, RAW shows what became of the leg, and any
        connector may record it. The claim may be another connector's in that case: a connector that
        was suspended may have sent the decision after its claim was taken over.
        """
        sent = Sent(pod=self._pod, state=state)
        while (entry := await self._bucket.get(approval_id)) is not None:
            recorded = Sent.model_validate_json(entry.value)
            if recorded.state != "claimed":
                return
            if not is_known and recorded.pod not in (self._pod, pod):
                return
            if await self._bucket.update(approval_id, sent.dump(), entry.revision) is not None:
                return
