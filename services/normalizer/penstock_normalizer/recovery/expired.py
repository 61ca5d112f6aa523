"""Runs whose source frames were deleted before anybody read them: each is ended, and says so.

RAW keeps frames for a time, and to a size. A fleet of normalizers that was away for longer finds a
gap between its checkpoint and what is left. A run of which later frames are there is ended when
they are read (`runs.py`); one of which nothing is left is ended here, by a frame of our own.
"""

from __future__ import annotations

import logging

from pydantic import ValidationError

from penstock.bus import Bus, streams, subjects
from penstock.bus.admin.migrate import partitions
from penstock.bus.read import direct
from penstock.bus.records import RunRecord
from penstock_normalizer.runs.failed_frame import write_end

log = logging.getLogger(__name__)

# a run this young is being started now
MIN_AGE_S = 10.0


async def end_the_lost(bus: Bus, partition: int, checkpoint: int) -> None:
    """End the runs of a partition that nothing is left of, if there is a gap. Raises BusError."""
    state = (await bus.api(f"STREAM.INFO.{streams.RAW}"))["state"]
    if checkpoint >= state["first_seq"] - 1:
        return
    log.warning(
        "partition %d: the frames %d to %d have been deleted since it was last read",
        *(partition, checkpoint + 1, state["first_seq"] - 1),
    )
    count = await partitions(bus)
    # one batch at a time: a list of runs may be long
    async for stored in direct.replay(bus, "KV_runs", "$KV.runs.>"):
        if not stored.payload:
            continue  # deleted
        run_id = stored.subject.removeprefix("$KV.runs.")
        if subjects.partition_of(run_id, count) != partition:
            continue
        try:
            record = RunRecord.model_validate_json(stored.payload)
        except ValidationError as error:
            log.error("run %s: whether it is lost is not known: %s", run_id, error)
            continue
        if await _is_lost(bus, record):
            await write_end(bus, record, {"code": "history_lost"})


async def _is_lost(bus: Bus, record: RunRecord) -> bool:
    young = bus.clock.age_s(record.updated_at) < MIN_AGE_S
    if record.status not in ("queued", "running") or young:
        return False
    if await bus.tail(streams.RAW, subjects.raw_of_run(record.run_id)) is not None:
        return False
    start = subjects.command("*", "start", record.run_id)
    return record.status == "running" or await bus.tail(streams.COMMANDS, start) is None
