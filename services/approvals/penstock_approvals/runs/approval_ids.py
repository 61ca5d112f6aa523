"""Find the approvals of a workflow's run. Several of these approvals may be open at once.

A key `of.<run>.<approval>` in KV `approvals` names each approval of such a run. The key is written
before the approval's record, and removed after the run has ended and its open approvals were
withdrawn.
"""

from __future__ import annotations

from penstock.bus import Bus
from penstock_approvals.store.records import BUCKET

_PREFIX = "of."


class ApprovalIds:
    """The keys of the approvals of workflows' runs. Every call may be repeated."""

    def __init__(self, bus: Bus) -> None:
        self._bucket = bus.bucket(BUCKET)

    async def add(self, run_id: str, approval_id: str) -> None:
        """Store that the run asks for this approval. Raises BusError."""
        await self._bucket.create(f"{_PREFIX}{run_id}.{approval_id}", b"1")

    async def ids(self, run_id: str) -> list[str]:
        """Return the ids of the run's approvals, in the order of the requests. Raises BusError."""
        entries = await self._bucket.entries(f"{_PREFIX}{run_id}.*")
        return [entry.key.rpartition(".")[2] for entry in entries]

    async def forget(self, run_id: str, approval_id: str) -> None:
        """Remove the key of an approval of a run that has ended. Raises BusError."""
        await self._bucket.delete(f"{_PREFIX}{run_id}.{approval_id}")
