"""What AG-UI clients call our runs: their own runId for a leg, where they gave one.

KV `aliases`, key hash of (agui, run, leg): `{"run_id", "leg", "agui_run_id"}`. It is written before
the leg begins, so that whoever reads the leg reads the same name.
"""

from __future__ import annotations

import asyncio
import logging
from dataclasses import dataclass
from typing import Final

import orjson

from penstock.bus import Bus, BusError
from penstock.bus.subjects import key_of
from penstock_edge.sources.sessions import Records

log = logging.getLogger(__name__)

AGUI: Final = "agui"
RETRY_S: Final = 0.5


@dataclass(frozen=True, slots=True)
class AguiRuns:
    """The names of runs and legs, and whose they are."""

    bus: Bus
    records: Records

    async def thread_of(self, run_id: str) -> str:
        """The thread of a run; its own id where the run has no record. Waits for the bus."""
        record = await self.records.of(run_id)
        return run_id if record is None else record.session_id

    async def name(self, run_id: str, leg: int) -> str:
        """The AG-UI runId of a leg. Waits for the bus."""
        while True:
            try:
                entry = await self.bus.bucket("aliases").get(_key(run_id, leg))
            except BusError as error:
                log.warning("the name of leg %d of run %s: %s", leg, run_id, error)
                await asyncio.sleep(RETRY_S)
                continue
            return str(orjson.loads(entry.value)["agui_run_id"]) if entry else unnamed(run_id, leg)

    async def call(self, run_id: str, leg: int, name: str) -> int:
        """The client's name for a leg that it is about to open; returns the revision."""
        value = orjson.dumps({"run_id": run_id, "leg": leg, "agui_run_id": name})
        return await self.bus.bucket("aliases").put(_key(run_id, leg), value)

    async def uncall(self, run_id: str, leg: int, revision: int) -> None:
        """The leg was not opened, or by somebody else: take the name back."""
        await self.bus.bucket("aliases").delete(_key(run_id, leg), revision)


def unnamed(run_id: str, leg: int) -> str:
    """The AG-UI runId of a leg that nobody has named."""
    return run_id if leg == 1 else f"{run_id}-{leg}"


def _key(run_id: str, leg: int) -> str:
    return key_of(AGUI, run_id, str(leg))
