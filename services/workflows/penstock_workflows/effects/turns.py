"""Lets one run at a time of a workflow with `exclusive` be under way for each key (decision 0364).

KV `workflows` has the queue of each key, the run under way first. A run enters the queue by
compare-and-set before it begins, and leaves it when it has ended. Whoever leaves wakes the next
run by a timer of this run. Every call may be repeated.
"""

from __future__ import annotations

import logging
from typing import Final

from pydantic import Field

from penstock.bus import Bus
from penstock.bus.records import ENDED, Record, RunRecord
from penstock.bus.subjects import key_of
from penstock.runs.workflows import BUCKET
from penstock_workflows.effects.children import Children
from penstock_workflows.effects.timers import Timers
from penstock_workflows.engine.effects import CancelChild, LeaveTurn, TakeTurn
from penstock_workflows.engine.ids import Timer
from penstock_workflows.engine.inputs import TurnInput
from penstock_workflows.engine.state import State

log = logging.getLogger(__name__)

MAX_WAITING: Final = 1000  # the most runs that wait for one key
# The most runs of one user in one queue: without it, one user's runs would leave no place for the
# runs of others.
MAX_OF_USER: Final = 100
SUPERSEDED: Final = "superseded"
TURN: Final = str(Timer("turn"))


class Queue(Record):
    """KV `workflows`, key `turn.<hash of tenant, workflow and key>`."""

    runs: list[str] = Field([], description="The run under way, then those that wait, in order")
    users: list[str] = Field([], description="The user of each of these runs")

    def keep(self, runs: list[str]) -> None:
        """Keep these runs only, which are in the queue."""
        users = dict(zip(self.runs, self.users, strict=True))
        self.runs, self.users = runs, [users[each] for each in runs]


class Turns:
    """Reads and writes the queues. Each method raises BusError if the bus does not answer."""

    def __init__(self, bus: Bus, children: Children, timers: Timers) -> None:
        self._bus = bus
        self._bucket = bus.bucket(BUCKET)
        self._children = children
        self._timers = timers

    async def take(self, state: State, turn: TakeTurn) -> TurnInput | None:
        """Put the run at the end of the queue, unless it is there. Return its input if it is first,
        or is not to wait; else None.

        A caller whose run has ended meanwhile must call `leave`.
        """
        run_id, key = state.run_id, _key(state, turn.workflow, turn.key)
        user = str(state.started.command.get("user_id") or "anonymous")
        known = await self._bucket.load(key, Queue) or Queue()
        ended = set(known.runs) - set(await self._from_first_open(known.runs, run_id))

        def enter(queue: Queue) -> None:
            queue.keep([each for each in queue.runs if each not in ended])
            has_room = len(queue.runs) <= MAX_WAITING and queue.users.count(user) < MAX_OF_USER
            if run_id not in queue.runs and has_room:
                queue.runs.append(run_id)
                queue.users.append(user)

        queue = await self._bucket.change(key, Queue, enter, Queue())
        if queue is None or run_id not in queue.runs:
            many = f"{MAX_WAITING} runs, or {MAX_OF_USER} of one user,"
            message = f"{many} wait for the key {turn.key!r}: start it again later"
            return TurnInput({"code": "limit_exceeded", "message": message})
        before = queue.runs[: queue.runs.index(run_id)]
        if not before:
            return TurnInput()
        if ended:
            await self._wake(before[0])
        if set(before) & await self._and_around(run_id):
            message = f"the run would wait for {before[0]}, inside of which it is"
            return TurnInput({"code": "busy", "message": message})
        if turn.when_busy == "refuse":
            message = f"the run {before[0]} has the key {turn.key!r}"
            return TurnInput({"code": "busy", "message": message})
        if turn.when_busy == "interrupt":
            for each in before:
                await self._children.cancel(CancelChild(each, SUPERSEDED, user))
        log.info("run %s waits for %d runs with its key", run_id, len(before))
        return None

    async def leave(self, state: State, turn: LeaveTurn) -> None:
        """Take the run out of the queue, and wake the next run."""
        key = _key(state, turn.workflow, turn.key)
        while (entry := await self._bucket.get(key)) is not None:
            queue = Queue.model_validate_json(entry.value)
            others = [each for each in queue.runs if each != state.run_id]
            others = await self._from_first_open(others)
            if not others:
                if await self._bucket.delete(key, entry.revision):
                    return
                continue
            is_changed = others != queue.runs
            queue.keep(others)
            if not is_changed or await self._bucket.update(key, queue.dump(), entry.revision):
                await self._wake(others[0])
                return

    async def _and_around(self, run_id: str) -> set[str]:
        """Return the run and the runs that it is inside of. A command's `ancestors` lack those
        around an `always` step, since their stop must not keep the step's run from beginning."""
        found, outer = set[str](), run_id
        while True:
            found.add(outer)
            record = await self._bus.bucket("runs").load(outer, RunRecord)
            if record is None or not record.workflow_depth or record.parent_run_id is None:
                return found
            outer = record.parent_run_id

    async def _wake(self, run_id: str) -> None:
        now_ms = round(self._bus.clock.time() * 1000)
        await self._timers.start(run_id, TURN, now_ms)

    async def _from_first_open(self, runs: list[str], run_id: str = "") -> list[str]:
        """Return the runs from the first one that has not ended, or is the run `run_id`. NATS may
        have lost the end of a run's journal, so that the run never left."""
        for number, each in enumerate(runs):
            record = await self._bus.bucket("runs").load(each, RunRecord)
            if each == run_id or (record is not None and record.status not in ENDED):
                return runs[number:]
        return []


def _key(state: State, workflow: str, key: str) -> str:
    tenant = state.started.command.get("tenant") or ""
    return f"turn.{key_of('turn', tenant, workflow, key)}"
