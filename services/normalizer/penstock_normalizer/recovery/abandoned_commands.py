"""A run whose command the server gave up: nobody will begin with it any more, so it is ended.

A command that its service gives up ends its run there. What comes here could not even be given up.
"""

from __future__ import annotations

import logging

from pydantic import ValidationError

from penstock.bus import Bus, ObjectGone, Stored, messages, streams, subjects
from penstock.bus.records import ENDED, ContinueCommand, RunRecord
from penstock.bus.write import objects
from penstock_normalizer.runs.failed_frame import write_end

log = logging.getLogger(__name__)

_OPEN_A_LEG = frozenset({"start", "continue"})


async def end_the_run(bus: Bus, stored: Stored, error: Exception) -> None:
    """End the run of a start or continue, where its leg was not opened. Safe to repeat.

    Raises BusError.
    """
    _, service, kind, run_id = stored.subject.split(".")
    if service != "connector" or kind not in _OPEN_A_LEG:
        return
    entry = await bus.bucket("runs").get(run_id)
    if entry is None:
        log.warning("run %s: nobody knows it", run_id)
        return
    record = RunRecord.model_validate_json(entry.value)
    if record.status in ENDED:
        return
    leg = 1 if kind == "start" else await _leg(bus, stored, record)
    last = await bus.tail(streams.RAW, subjects.raw_stored(run_id, "upstream"))
    if last is not None and int(last.headers[messages.LEG]) >= leg:
        return  # whoever opened it sees it through
    text = f"the command cannot be carried out: {error}"
    await write_end(bus, record, {"code": "internal", "error": text})


async def _leg(bus: Bus, stored: Stored, record: RunRecord) -> int:
    """The leg that a continue command opens; the next one where it cannot be read."""
    try:
        payload = await objects.unwrap(bus, stored.payload)
        return ContinueCommand.model_validate_json(payload).leg
    except (ObjectGone, ValidationError):
        return record.legs + 1
