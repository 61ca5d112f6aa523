"""Cancels a run, by a command to the service that executes the run (decision 0132).

If this service does not end the run in time, the edge ends the run.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import Final

import orjson
import uuid_utils

from penstock.bus import Bus, Follow, Message, RawWriter, Stored, subjects
from penstock.bus.read.follow import events
from penstock.bus.records.runs import ENDED, CancelCommand, RunRecord
from penstock.bus.state.run_trees import RunTrees
from penstock.events.catalogue import TERMINAL
from penstock.web.auth import Identity
from penstock.web.problems import Problem
from penstock_edge.runs.records import is_workflow, run_of
from penstock_edge.sources.locate import lifecycle_of, start_of_new_run
from penstock_edge.views.items import type_of

FORCED_WAIT_S: Final = 5.0
WRITER: Final = "edge"


@dataclass(frozen=True, slots=True)
class Cancelled:
    """When the run was cancelled (None: not yet), and `confirmed` of the event."""

    at: str | None
    confirmed: bool = False


class Canceller:
    """Cancels runs. If several concurrent calls cancel the same run, only one call succeeds."""

    def __init__(self, bus: Bus, wait_s: float) -> None:
        self._bus = bus
        self._wait_s = wait_s
        self._trees = RunTrees(bus)

    async def cancel(self, run_id: str, who: Identity) -> Cancelled:
        """Cancel the run, and wait for its end. If no service has ended the run after `wait_s`, the
        edge ends it, and waits for at most 5 seconds more; but it does not cut off the `always`
        steps of a workflow in the time that these have. A run that has ended is 409, even if
        another caller's request has just cancelled it."""
        record = await run_of(self._bus, who, run_id)
        run_id = record.run_id  # the record has the id in lower case, as on the bus
        position = await start_of_new_run(self._bus, subjects.shard_of(run_id))
        before = await lifecycle_of(self._bus, run_id)
        if before is not None and type_of(before) in TERMINAL:
            raise _ended(type_of(before).removeprefix("lifecycle."))
        if before is None and record.status in ENDED:
            raise _ended(record.status)
        end: asyncio.Future[Stored] = asyncio.get_running_loop().create_future()
        follow = Follow(
            self._bus,
            events(run_id),
            before.sequence if before else position.start,
            lambda batch: _resolve(end, batch),
        )
        try:
            await follow.start()
            event = await self._end(record, who.user_id, end)
        finally:
            await follow.stop()
        if event is None:
            return Cancelled(None)
        told = orjson.loads(event.payload)
        return Cancelled(told["timestamp"], told["data"]["confirmed"])

    async def _end(self, record: RunRecord, by: str, end: asyncio.Future[Stored]) -> Stored | None:
        leases = self._bus.bucket("leases")
        lock = f"cancel.{record.run_id}"
        lock_s = 2 * (self._wait_s + FORCED_WAIT_S)
        mine = await leases.create(lock, by.encode(), lock_s) is not None
        event = None
        try:
            if mine:
                await self._command(record, CancelCommand(run_id=record.run_id, by=by))
            event = await _within(end, self._wait_s)
            if event is None and not await self._runs_always_steps(record):
                # No service has ended the run, perhaps because none is running. So the edge ends
                # the run.
                await self._force(record, by)
                event = await _within(end, FORCED_WAIT_S)
        finally:
            if mine and event is None:
                await leases.delete(lock)
        if event is not None and not (mine and type_of(event) == "lifecycle.cancelled"):
            raise _ended(type_of(event).removeprefix("lifecycle."))
        return event

    async def _runs_always_steps(self, record: RunRecord) -> bool:
        if not is_workflow(record):
            return False
        stopped = await self._trees.stopped_among([record.run_id])
        due = stopped.always_due if stopped is not None else None
        return due is not None and self._bus.clock.time() < due / 1000 + FORCED_WAIT_S

    async def _command(self, record: RunRecord, command: CancelCommand) -> None:
        subject = subjects.command(record.target or "connector", "cancel", command.run_id)
        await self._bus.publisher.publish(Message(subject, command.dump(), {}))

    async def _force(self, record: RunRecord, by: str) -> None:
        connection = f"cancel-{uuid_utils.uuid7()}"
        writer = await RawWriter.resume(self._bus, record.run_id, WRITER, connection)
        data = {"reason": "user_stop", "by": by, "confirmed": False}
        payload = orjson.dumps({"type": "lifecycle.cancelled", "data": data})
        await writer.write("event", payload, leg=max(record.legs, 1))


def _resolve(end: asyncio.Future[Stored], batch: list[Stored]) -> None:
    for stored in batch:
        if type_of(stored) in TERMINAL and not end.done():
            end.set_result(stored)


async def _within(end: asyncio.Future[Stored], timeout_s: float) -> Stored | None:
    done, _ = await asyncio.wait([end], timeout=timeout_s)
    return end.result() if done else None


def _ended(how: str) -> Problem:
    return Problem(409, f"Execution already {how}")
