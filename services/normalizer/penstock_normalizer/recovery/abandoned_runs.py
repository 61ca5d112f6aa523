"""Ends runs whose source frames were deleted unread, or whose command is no longer delivered.

RAW keeps frames for a limited time and up to a limited size. If no normalizer runs for longer than
this time, RAW has a gap between the partition's checkpoint and the first remaining frame. A run
with frames after the gap is ended when these frames are read (`runs/ending.py`). A run without any
remaining frame is ended here: the normalizer writes a source frame that ends the run.
"""

from __future__ import annotations

import logging

from pydantic import ValidationError

from penstock.bus import Bus, ObjectGone, Stored, messages, streams, subjects
from penstock.bus.admin.migrate import partitions
from penstock.bus.read import direct
from penstock.bus.records.approvals import ContinueCommand
from penstock.bus.records.runs import ENDED, RunRecord
from penstock.bus.write import objects
from penstock.dialects.workflow import WRITER
from penstock_normalizer.runs.ending import write_failed
from penstock_normalizer.runs.pauses import can_continue_from_state

log = logging.getLogger(__name__)

# The least age in seconds at which a run without frames is ended. A younger run may be starting,
# and its first frame may not be stored yet.
MIN_AGE_S = 10.0


async def end_expired_runs(bus: Bus, shard: int, partition: int, checkpoint: int) -> None:
    """End the partition's runs without remaining frames, if RAW has a gap after the checkpoint."""
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


_OPEN_A_LEG = frozenset({"start", "continue"})
_SERVICES = frozenset({"connector", WRITER})


async def end_abandoned_run(bus: Bus, stored: Stored, error: Exception) -> None:
    """End the run of an abandoned start or continue command, if the command's leg was not opened.

    A service that gives up a command also ends the command's run. This handles a command that no
    service could give up, because the service's process was killed at each delivery.
    `stored` is the command, and `error` is the reason why it was given up. A workflow's run is
    ended in any case, because it has only one leg, and would wait for the command for ever. A
    repeated call changes nothing.
    """
    _, service, kind, run_id = stored.subject.split(".")
    if service not in _SERVICES or kind not in _OPEN_A_LEG:
        return
    record = await bus.bucket("runs").load(run_id, RunRecord)
    if record is None:
        log.warning("run %s: it has no record, so it is not ended", run_id)
        return
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
    """Return the leg that a continue command opens; the run's next leg if it is unreadable."""
    try:
        payload = await objects.unwrap(bus, stored.payload)
        return ContinueCommand.model_validate_json(payload).leg
    except (ObjectGone, ValidationError):
        return record.legs + 1
