"""Reads and writes claims on starts of runs: KV `claims`, key `claim.<run>`. Every write is a
compare-and-set."""

from __future__ import annotations

from penstock.bus import Bus, Entry
from penstock.bus.records import Claim, ClaimState
from penstock_connector.state.connectors import NOBODY, Connectors


class Claims:
    """Reads and writes the claims on the starts of runs; all methods may raise BusError."""

    def __init__(self, bus: Bus, pod: str, connectors: Connectors) -> None:
        self._pod = pod
        self._connectors = connectors
        self._bucket = bus.bucket("claims")

    async def claim(self, run_id: str, state: ClaimState = "held") -> Claim | None:
        """Claim the start of a run; return None on success, or the claim of an earlier connector.

        If there were no claims, two connectors could call the agent server for one start.
        """
        claim = Claim(pod=self._pod, state=state)
        while await self._bucket.create(f"claim.{run_id}", claim.dump()) is None:
            # The earlier claim may expire between the create and the read. In this case, claim
            # again.
            if (earlier := await self.read(run_id)) is not None:
                return earlier
        return None

    async def read(self, run_id: str) -> Claim | None:
        """Return the claim on the start of the run; None if there is none."""
        entry = await self._bucket.get(f"claim.{run_id}")
        return _claim(entry) if entry is not None else None

    async def take_over(self, run_id: str, state: ClaimState = "held") -> bool:
        """Replace the claim of a connector that does not answer.

        Return False if that connector answers, or if another connector has replaced the claim
        first.
        """
        entry = await self._bucket.get(f"claim.{run_id}")
        if entry is None or await self._connectors.is_responding(_claim(entry).pod):
            return False
        claim = Claim(pod=self._pod, state=state)
        key = f"claim.{run_id}"
        return await self._bucket.update(key, claim.dump(), entry.revision) is not None

    async def give_back(self, run_id: str) -> None:
        """Let any connector take over a start that this connector has claimed and cannot begin.

        If the claim were kept, every other connector would wait for this connector, which does not
        begin the start.
        """
        entry = await self._bucket.get(f"claim.{run_id}")
        if entry is not None and _claim(entry) == Claim(pod=self._pod):
            claim = Claim(pod=NOBODY)
            await self._bucket.update(f"claim.{run_id}", claim.dump(), entry.revision)


def _claim(entry: Entry) -> Claim:
    return Claim.model_validate_json(entry.value or b"{}")
