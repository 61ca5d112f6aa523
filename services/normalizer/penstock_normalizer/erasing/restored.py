"""Repeats the erasures that came after a backup, when the backup is restored.

A restore withholds the content before any service runs (`withhold`), and notes each erasure in KV
`checkpoints`. It does not publish commands: their sequences could be those of lost commands. A
normalizer publishes them when it has repaired the ends of the streams (`go_on`).
"""

from __future__ import annotations

import asyncio
import logging
from typing import Final, Literal

from penstock.bus import Bus, Message, streams, subjects
from penstock.bus.records.erasures import EraseCommand
from penstock.bus.records.runs import ENDED, CancelCommand, RunRecord
from penstock.bus.write import fence
from penstock_normalizer.erasing.eraser import Eraser, next_number, without_content

log = logging.getLogger(__name__)

BUCKET: Final = "checkpoints"
PREFIX: Final = "erasures."  # of the keys, which end in the run's id
LOOK_S: Final = 2.0

Withheld = Literal["withheld", "open", "unknown"]


async def withhold(bus: Bus, command: EraseCommand) -> Withheld:
    """Let nobody get content of the run of this command. A run that was open in the backup is
    cancelled and erased by `go_on`. Raises BusError."""
    [run_id] = command.runs
    runs, eraser = bus.bucket("runs"), Eraser(bus)
    while (entry := await runs.get(run_id)) is not None:
        record = RunRecord.model_validate_json(entry.value)
        record.hold = None  # it was lifted, since the run was erased
        if record.status in ENDED and record.erasure is None:
            pattern = subjects.events_of_run(run_id)
            tail = await fence.tail(bus, streams.events_for(run_id), pattern)
            number = next_number(record, tail)
            record.erasure = await eraser.new_erasure(run_id, command, number)
        value = record.dump()
        if record.erasure is not None:
            value = without_content("runs", value)
        if await runs.update(run_id, value, entry.revision) is None:
            continue
        await bus.bucket(BUCKET).put(f"{PREFIX}{run_id}", command.dump())
        if record.erasure is None:
            return "open"
        await eraser.overwrite_records(run_id)
        return "withheld"
    return "unknown"


async def go_on(bus: Bus) -> None:
    """Command the erasures that a restore has noted; return when there are no more. Raises
    BusError. A repeated call goes on."""
    bucket = bus.bucket(BUCKET)
    while entries := await bucket.entries(f"{PREFIX}*"):
        for entry in entries:
            run_id = entry.key.removeprefix(PREFIX)
            command = EraseCommand.model_validate_json(entry.value)
            record = await bus.bucket("runs").load(run_id, RunRecord)
            if record is not None and record.status not in ENDED:
                cancel = CancelCommand(run_id=run_id, by=command.by)
                subject = subjects.command(record.target or "connector", "cancel", run_id)
                headers = {"Nats-Msg-Id": f"{run_id}.erased"}
                await bus.publisher.publish(Message(subject, cancel.dump(), headers))
                continue
            if record is not None:
                log.info("run %s: it was erased after the backup, and is erased again", run_id)
                subject = subjects.command(subjects.NORMALIZER, "erase", run_id)
                await bus.publisher.publish(Message(subject, command.dump(), {}))
            await bucket.delete(entry.key)
        await asyncio.sleep(LOOK_S)
