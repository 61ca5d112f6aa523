"""Reads and writes the claims of connectors. Every write is a compare-and-set.

KV `claims`, key `claim.<run>`: which connector takes the start of a run. KV `sent`, key approval
id: which connector sends a decision to the agent server, and the result. A decision is sent at most
once, so its sending is claimed before, and the result is recorded afterwards.
"""

from __future__ import annotations

from typing import NamedTuple

from penstock.bus import Bus
from penstock.bus.records.legs import Claim, ClaimState, SendingState, Sent
from penstock_connector.state.connectors import NOBODY, Connectors


class Claims:
    """Reads and writes the claims on the starts of runs."""

    def __init__(self, bus: Bus, pod: str, connectors: Connectors) -> None:
        self._pod = pod
        self._connectors = connectors
        self._bucket = bus.bucket("claims")

    async def claim(self, run_id: str, state: ClaimState = "held") -> Claim | None:
        """Claim the start of a run; return None on success, or the claim of an earlier connector.
        If there were no claims, two connectors could call the agent server for one start."""
        claim = Claim(pod=self._pod, state=state)
        while await self._bucket.create(f"claim.{run_id}", claim.dump()) is None:
            # The earlier claim may expire between the create and the read. In this case, claim
            # again.
            if (earlier := await self.read(run_id)) is not None:
                return earlier
        return None

    async def read(self, run_id: str) -> Claim | None:
        return await self._bucket.load(f"claim.{run_id}", Claim)

    async def take_over(self, run_id: str, state: ClaimState = "held") -> bool:
        """Replace the claim of a connector that does not answer. Return False if that connector
        answers, or if another one has replaced the claim first."""
        entry = await self._bucket.get(f"claim.{run_id}")
        if entry is None or await self._connectors.is_responding(
            Claim.model_validate_json(entry.value).pod
        ):
            return False
        claim = Claim(pod=self._pod, state=state)
        key = f"claim.{run_id}"
        return await self._bucket.update(key, claim.dump(), entry.revision) is not None

    async def give_back(self, run_id: str) -> None:
        """Let any connector take over a start that this connector has claimed and cannot begin."""

        def free(claim: Claim) -> None:
            if claim == Claim(pod=self._pod):
                claim.pod = NOBODY

        await self._bucket.change(f"claim.{run_id}", Claim, free)


class ClaimedSending(NamedTuple):
    """The record of a sending that a connector has claimed, and the record's revision."""

    sent: Sent
    revision: int


class Sendings:
    """Reads and writes the records of sendings."""

    def __init__(self, bus: Bus, pod: str) -> None:
        self._pod = pod
        self._bucket = bus.bucket("sent")

    async def claim(self, approval_id: str) -> ClaimedSending | None:
        """Claim the sending; return None on success, or the record of an earlier claim."""
        sent = Sent(pod=self._pod)
        while await self._bucket.create(approval_id, sent.dump()) is None:
            # The earlier record may expire between the create and the read. In this case, claim
            # again.
            if (entry := await self._bucket.get(approval_id)) is not None:
                return ClaimedSending(Sent.model_validate_json(entry.value), entry.revision)
        return None

    async def read(self, approval_id: str) -> Sent | None:
        return await self._bucket.load(approval_id, Sent)

    async def take_over(self, approval_id: str, revision: int) -> bool:
        """Replace the claim of a dead connector that has not begun to send. Return False if the
        claim has another revision, because another connector was first."""
        sent = Sent(pod=self._pod)
        return await self._bucket.update(approval_id, sent.dump(), revision) is not None

    async def give_back(self, approval_id: str) -> None:
        """Let other connectors claim a sending that this connector has claimed and cannot begin."""

        def free(sent: Sent) -> None:
            if sent == Sent(pod=self._pod):
                sent.pod = NOBODY

        await self._bucket.change(approval_id, Sent, free)

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
        or the connector `pod` for which it acts. If `is_known` is True, RAW shows the outcome of
        the leg, and any connector may record it. The claim may then belong to a connector that has
        taken it over from a suspended connector, which has sent the decision after that.
        """

        def finish(sent: Sent) -> None:
            if sent.state == "claimed" and (is_known or sent.pod in (self._pod, pod)):
                sent.pod, sent.state = self._pod, state

        await self._bucket.change(approval_id, Sent, finish)
