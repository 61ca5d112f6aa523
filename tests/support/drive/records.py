"""Reads the list of runs, which changes after the events that it reflects."""

from __future__ import annotations

from penstock.bus import Bus
from penstock.bus.records.runs import RunRecord
from support.drive.waiting import eventually


async def run_record(bus: Bus, run_id: str, status: str | None = None) -> RunRecord:
    """Return the run's record; with a status, wait until the record has this status."""

    async def found() -> RunRecord | None:
        entry = await bus.bucket("runs").get(run_id)
        if entry is None:
            return None
        record = RunRecord.model_validate_json(entry.value)
        return record if status in (None, record.status) else None

    return await eventually(found, what=f"the record of the run {run_id}, {status or 'any status'}")
