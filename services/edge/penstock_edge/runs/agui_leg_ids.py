"""Stores the AG-UI runIds that clients have set for legs.

Each entry in KV `aliases` has the hash of (agui, run, leg) as its key, and `{"run_id", "leg",
"agui_run_id"}` as its value. The edge writes the entry before the leg begins, so that every reader
of the leg finds the same runId.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import Final

import orjson

from penstock.bus import Bus
from penstock.bus.connection.retry import with_retries
from penstock.bus.subjects import key_of
from penstock_edge.sources.sessions import RunRecords
from penstock_edge.views.agui import LegIds, default_agui_run_id

log = logging.getLogger(__name__)

AGUI: Final = "agui"


@dataclass(frozen=True, slots=True)
class AguiLegIds(LegIds):
    """Finds the AG-UI ids of threads and legs, and stores the runIds of legs in KV."""

    bus: Bus
    records: RunRecords

    async def thread_of(self, run_id: str) -> str:
        """Return the session id of a run; the run's own id if the run has no record."""
        record = await self.records.of(run_id)
        return run_id if record is None else record.session_id

    async def agui_run_id(self, run_id: str, leg: int) -> str:
        entry = await with_retries(
            lambda: self.bus.bucket("aliases").get(_key(run_id, leg)),
            f"the AG-UI runId of leg {leg} of run {run_id} cannot be read now",
        )
        if entry is None:
            return default_agui_run_id(run_id, leg)
        return str(orjson.loads(entry.value)["agui_run_id"])

    async def write(self, run_id: str, leg: int, name: str) -> int:
        """Return the KV revision, for `withdraw`."""
        value = orjson.dumps({"run_id": run_id, "leg": leg, "agui_run_id": name})
        return await self.bus.bucket("aliases").put(_key(run_id, leg), value)

    async def withdraw(self, run_id: str, leg: int, revision: int) -> None:
        """Delete what `write` has written with this revision: the leg did not begin."""
        await self.bus.bucket("aliases").delete(_key(run_id, leg), revision)


def _key(run_id: str, leg: int) -> str:
    return key_of(AGUI, run_id, str(leg))
