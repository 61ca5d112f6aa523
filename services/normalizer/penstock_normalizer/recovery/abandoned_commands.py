"""Ends a run whose command NATS no longer delivers, so that no connector will carry it out.

A service that gives up a command also ends the command's run. This module handles a command that no
service could give up, because the service's process was killed at each delivery.
"""

from __future__ import annotations

import logging

from pydantic import ValidationError

from penstock.bus import Bus, ObjectGone, Stored, messages, streams, subjects
from penstock.bus.records import ENDED, ContinueCommand, RunRecord
from penstock.bus.write import objects
from penstock.dialects.workflow import WRITER
from penstock_normalizer.runs.ending import write_failed

log = logging.getLogger(__name__)

_OPEN_A_LEG = frozenset({"start", "continue"})
_SERVICES = frozenset({"connector", WRITER})


async def end_abandoned_run(bus: Bus, stored: Stored, error: Exception) -> None:
    """End the run of an abandoned start or continue command, if the command's leg was not opened.

    `stored` is the command, and `error` is the reason why the command was given up. A workflow's
    run is ended in any case, because it has only one leg, and would wait for the command for ever.
    A repeated call changes nothing. Raises BusError.
    """
    _, service, kind, run_id = stored.subject.split(".")
    if service not in _SERVICES or kind not in _OPEN_A_LEG:
        return
    entry = await bus.bucket("runs").get(run_id)
    if entry is None:
        log.warning("run %s: it has no record, so it is not ended", run_id)
        return
    record = RunRecord.model_validate_json(entry.value)
    if record.status in ENDED:
        return
    if service == "connector" and await _is_opened(bus, stored, record):
        return  # the connector that opened the leg also ends it
    text = f"the command cannot be carried out: {error}"
    await write_failed(bus, record, {"code": "internal", "error": text})


async def _is_opened(bus: Bus, stored: Stored, record: RunRecord) -> bool:
    leg = 1 if ".start." in stored.subject else await _leg_of(bus, stored, record)
    pattern = subjects.raw_stored(record.run_id, "upstream")
    last = await bus.tail(streams.raw_for(record.run_id), pattern)
    return last is not None and int(last.headers[messages.LEG]) >= leg


async def _leg_of(bus: Bus, stored: Stored, record: RunRecord) -> int:
    """Return the leg that a continue command opens; the run's next leg if the command is
    unreadable."""
    try:
        payload = await objects.unwrap(bus, stored.payload)
        return ContinueCommand.model_validate_json(payload).leg
    except (ObjectGone, ValidationError):
        return record.legs + 1
