"""Records the sending of each decision to an agent server: KV `sent`, key approval id.

A decision is sent to the agent server at most once. So a connector claims the sending before it
sends the decision, and records the result afterwards. Every write is a compare-and-set.
"""

from __future__ import annotations

from typing import NamedTuple

from penstock.bus import Bus
from penstock.bus.records import SendingState, Sent
from penstock_connector.state.connectors import NOBODY


class ClaimedSending(NamedTuple):
    """The record of a sending that a connector has claimed, and the record's revision in the
    bucket."""

    sent: Sent
    revision: int


class Sendings:
    """Reads and writes the records of sendings; all methods may raise BusError."""

    def __init__(self, bus: Bus, pod: str) -> None:
        self._pod = pod
        self._bucket = bus.bucket("sent")

    async def claim(self, approval_id: str) -> ClaimedSending | None:
        """Claim the sending; return None on success, or the record of an earlier claim.

        If there were no claims, two connectors could send one decision.
        """
        sent = Sent(pod=self._pod)
        while await self._bucket.create(approval_id, sent.dump()) is None:
            # The earlier record may expire between the create and the read. In this case, claim
            # again.
            if (entry := await self._bucket.get(approval_id)) is not None:
                return ClaimedSending(Sent.model_validate_json(entry.value), entry.revision)
        return None

    async def read(self, approval_id: str) -> Sent | None:
        """Return the record of the sending; None if no connector has claimed the sending."""
        entry = await self._bucket.get(approval_id)
        return Sent.model_validate_json(entry.value) if entry is not None else None

    async def take_over(self, approval_id: str, revision: int) -> bool:
        """Replace the claim of a dead connector that has not begun to send.

        `revision` is the revision of the claim that the caller has read. Return False if another
        connector has replaced this claim first.
        """
        sent = Sent(pod=self._pod)
        return await self._bucket.update(approval_id, sent.dump(), revision) is not None

    async def give_back(self, approval_id: str) -> None:
        """Let other connectors claim a sending that this connector has claimed and cannot begin."""
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
        """Record the result of the sending; do nothing if a result is recorded already.

        Normally only the connector that claimed the sending may record the result: this connector,
        or the connector `pod` for which this connector acts. If `is_known` is True, RAW shows the
        outcome of the leg, and any connector may record this outcome. The claim may then belong to
        another connector, which has taken the claim over from a suspended connector. The suspended
        connector may have sent the decision after that.
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
