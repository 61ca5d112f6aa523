"""A source frame of the normalizer's own: it ends a run that no other service will end."""

from __future__ import annotations

import logging
from uuid import uuid4

import orjson

from penstock.bus import Bus, FenceConflict, RawWriter
from penstock.bus.records import RunRecord

log = logging.getLogger(__name__)

WRITER = "normalizer"


async def write_failed(bus: Bus, record: RunRecord, data: dict[str, str]) -> None:
    """Write to RAW that a run has failed; several callers write it once. Raises BusError.

    `data`: the fields of `lifecycle.failed`, at least `code`.
    """
    writer = RawWriter(bus, record.run_id, WRITER, f"{WRITER}/{uuid4()}")
    event = {"type": "lifecycle.failed", "data": data}
    try:
        await writer.write("event", orjson.dumps(event), leg=max(record.legs, 1))
    except FenceConflict:
        log.debug("run %s: another normalizer has written its end", record.run_id)
