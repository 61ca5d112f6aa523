"""Ends runs whose source frames were deleted before any normalizer read them.

RAW keeps frames for a limited time and up to a limited size. If no normalizer runs for longer than
this time, RAW has a gap between the partition's checkpoint and the first remaining frame. A run
with frames after the gap is ended when these frames are read (`runs/ending.py`). A run without any
remaining frame is ended here: the normalizer writes a source frame that ends the run.
"""

from __future__ import annotations

import logging

from pydantic import ValidationError

from penstock.bus import Bus, streams, subjects
from penstock.bus.admin.migrate import partitions
from penstock.bus.read import direct
from penstock.bus.records import RunRecord
from penstock_normalizer.runs.ending import write_failed
from penstock_normalizer.runs.pauses import can_continue_from_state

log = logging.getLogger(__name__)

# The least age in seconds at which a run without frames is ended. A younger run may be starting,
# and its first frame may not be stored yet.
MIN_AGE_S = 10.0


async def end_expired_runs(bus: Bus, shard: int, partition: int, checkpoint: int) -> None:
    """End the partition's runs without remaining frames, if RAW has a gap after the checkpoint.

    Raises BusError.
    """
    state = (await bus.api(f"STREAM.INFO.{streams.raw_of(shard)}"))["state"]
    if checkpoint >= state["first_seq"] - 1:
        return
    log.warning(
        "%s, partition %d: the frames %d to %d were deleted before they were read",
        streams.raw_of(shard),
        partition,
        checkpoint + 1,
        state["first_seq"] - 1,
    )
    count = await partitions(bus, shard)
    # The list of runs may be long, so the records are read in batches.
    async for stored in direct.replay(bus, "KV_runs", "$KV.runs.>"):
        if not stored.payload:
            continue  # the record was deleted
        run_id = stored.subject.removeprefix("$KV.runs.")
        if not subjects.is_in_partition(run_id, shard, partition, count):
            continue
        try:
            record = RunRecord.model_validate_json(stored.payload)
        except ValidationError as error:
            log.error("run %s: its record cannot be read, so it is not ended: %s", run_id, error)
            continue
        if await _has_expired(bus, record):
            await write_failed(bus, record, {"code": "history_lost"})


async def _has_expired(bus: Bus, record: RunRecord) -> bool:
    is_young = bus.clock.age_s(record.updated_at) < MIN_AGE_S
    if record.status not in ("queued", "running") or is_young:
        return False
    if (
        await bus.tail(streams.raw_for(record.run_id), subjects.raw_of_run(record.run_id))
        is not None
    ):
        return False
    if await can_continue_from_state(bus, record.run_id, is_paused=False):
        return False  # a workflow's run can continue from its stored state
    start = subjects.command("*", "start", record.run_id)
    return record.status == "running" or await bus.tail(streams.COMMANDS, start) is None
