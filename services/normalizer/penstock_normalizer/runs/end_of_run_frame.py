"""Writes a source frame that ends a run, if no other service will end the run."""

from __future__ import annotations

import logging
from uuid import uuid4

import orjson

from penstock.bus import Bus, FenceConflict, RawWriter
from penstock.bus.records import RunRecord

log = logging.getLogger(__name__)

WRITER = "normalizer"


async def write_failed(bus: Bus, record: RunRecord, data: dict[str, str]) -> None:
    """Write a source frame with a run's `lifecycle.failed` to RAW. Raises BusError.

    If several normalizers do this at the same time, only one frame is written. `data` has the
    fields of the event, at least `code`.
    """
    writer = RawWriter(bus, record.run_id, WRITER, f"{WRITER}/{uuid4()}")
    event = {"type": "lifecycle.failed", "data": data}
    try:
        await writer.write("event", orjson.dumps(event), leg=max(record.legs, 1))
    except FenceConflict:
        log.debug("run %s: another normalizer has written its end", record.run_id)
