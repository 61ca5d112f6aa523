"""A source frame of the normalizer's own: it ends a run whose other frames are gone."""

from __future__ import annotations

import logging
from uuid import uuid4

import orjson

from penstock.bus import Bus, FenceConflict, RawWriter
from penstock.bus.records import RunRecord

log = logging.getLogger(__name__)

WRITER = "normalizer"


async def write_end(bus: Bus, record: RunRecord, data: dict[str, str]) -> None:
    """Say in RAW that a run has failed, once, whoever says so. Raises BusError."""
    writer = RawWriter(bus, record.run_id, WRITER, f"{WRITER}/{uuid4()}")
    word = {"type": "lifecycle.failed", "data": data}
    try:
        await writer.write("event", orjson.dumps(word), leg=max(record.legs, 1))
    except FenceConflict:
        log.debug("run %s: it is being ended", record.run_id)
