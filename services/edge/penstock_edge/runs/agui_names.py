"""The AG-UI runIds of legs, as their clients have given them.

KV `aliases`, key hash of (agui, run, leg): `{"run_id", "leg", "agui_run_id"}`. The edge writes the
record before the leg begins, so that every reader of the leg finds the same name.
"""

from __future__ import annotations

import asyncio
import logging
from dataclasses import dataclass
from typing import Final

import orjson

from penstock.bus import Bus, BusError
from penstock.bus.subjects import key_of
from penstock_edge.sources.sessions import RunRecords
from penstock_edge.views.agui import LegNames, default_name

log = logging.getLogger(__name__)

AGUI: Final = "agui"
RETRY_S: Final = 0.5


@dataclass(frozen=True, slots=True)
class AguiNames(LegNames):
    """The names of threads and legs, from KV."""

    bus: Bus
    records: RunRecords

    async def thread_of(self, run_id: str) -> str:
        """The session of a run; its own id where the run has no record. Waits for the bus."""
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
            if entry is None:
                return default_name(run_id, leg)
            return str(orjson.loads(entry.value)["agui_run_id"])

    async def write(self, run_id: str, leg: int, name: str) -> int:
        """Record the client's name for a leg that is about to begin; returns the KV revision.

        Raises:
            BusError: the name was not written, or may not have been.
        """
        value = orjson.dumps({"run_id": run_id, "leg": leg, "agui_run_id": name})
        return await self.bus.bucket("aliases").put(_key(run_id, leg), value)

    async def withdraw(self, run_id: str, leg: int, revision: int) -> None:
        """Delete the name that was written as this revision: the client has not begun the leg.

        Raises:
            BusError: the name may still be there.
        """
        await self.bus.bucket("aliases").delete(_key(run_id, leg), revision)


def _key(run_id: str, leg: int) -> str:
    return key_of(AGUI, run_id, str(leg))
