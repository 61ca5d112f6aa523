"""Who starts a run: KV `claims`, key `claim.<run>`. Every write is a compare-and-set."""

from __future__ import annotations

from penstock.bus import Bus, Entry
from penstock.bus.records import Claim, ClaimState
from penstock_connector.state.connectors import NOBODY, Connectors


class Claims:
    """The claims on the starts of runs. All methods raise BusError while the bus is away."""

    def __init__(self, bus: Bus, pod: str, connectors: Connectors) -> None:
        self._pod = pod
        self._connectors = connectors
        self._bucket = bus.bucket("claims")

    async def claim(self, run_id: str, state: ClaimState = "held") -> Claim | None:
        """Claim the start of a run; None when it is ours now, else the claim of an earlier writer.

        Without the claim two connectors could call the upstream for one start.
        """
        claim = Claim(pod=self._pod, state=state)
        while await self._bucket.create(f"claim.{run_id}", claim.dump()) is None:
            # the earlier claim may age out between the create and the read; then claim again
            if (earlier := await self.read(run_id)) is not None:
                return earlier
        return None

    async def read(self, run_id: str) -> Claim | None:
        """The claim of the run, if there is one."""
        entry = await self._bucket.get(f"claim.{run_id}")
        return _claim(entry) if entry is not None else None

    async def take_over(self, run_id: str, state: ClaimState = "held") -> bool:
        """Replace the claim of a connector that does not answer.

        Return False if that connector answers, or if another connector replaced the claim first.
        """
        entry = await self._bucket.get(f"claim.{run_id}")
        if entry is None or await self._connectors.answers(_claim(entry).pod):
            return False
        claim = Claim(pod=self._pod, state=state)
        key = f"claim.{run_id}"
        return await self._bucket.update(key, claim.dump(), entry.revision) is not None

    async def give_back(self, run_id: str) -> None:
        """Let any connector take over a start that this connector has claimed and cannot begin.

        Without this write, every other connector would wait for this one, which does not begin.
        """
        entry = await self._bucket.get(f"claim.{run_id}")
        if entry is not None and _claim(entry) == Claim(pod=self._pod):
            claim = Claim(pod=NOBODY)
            await self._bucket.update(f"claim.{run_id}", claim.dump(), entry.revision)


def _claim(entry: Entry) -> Claim:
    return Claim.model_validate_json(entry.value or b"{}")
