"""Lets one run at a time of a workflow with `exclusive` be under way for each key (decision 0364).

KV `workflows` has the queue of each key, the run under way first. A run enters the queue by
compare-and-set before it begins, and leaves it when it has ended. Whoever leaves wakes the next
run by a timer of this run. Every call may be repeated.

Two runs would wait for each other for ever if each were inside of a run that has the key of the
other. So a run that waits inside of other runs says which keys these have, and then looks whether
somebody who waits for one of these keys keeps its own key from becoming free (decision 0388). Of
two runs that wait at the same time, at least one sees the other.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Final, NamedTuple

from pydantic import Field

from penstock.bus import Bus
from penstock.bus.records.base import Record
from penstock.bus.records.runs import ENDED, RunRecord
from penstock.bus.subjects import key_of
from penstock.runs.workflows import BUCKET
from penstock_workflows.effects.children import Children
from penstock_workflows.effects.timers import Timers
from penstock_workflows.engine.effects import CancelChild, LeaveTurn, TakeTurn
from penstock_workflows.engine.ids import Timer
from penstock_workflows.engine.inputs import TurnInput
from penstock_workflows.engine.records import End, Started, TurnAsked, TurnTaken
from penstock_workflows.engine.state import State
from penstock_workflows.journal.journal import Journals

log = logging.getLogger(__name__)

MAX_WAITING: Final = 1000  # the most runs that wait for one key
# The most runs of one user in one queue: without it, one user's runs would leave no place for the
# runs of others.
MAX_OF_USER: Final = 100
SUPERSEDED: Final = "superseded"
TURN: Final = str(Timer("turn"))
MAX_KNOWN: Final = 1000  # the greatest number of entries in `Turns._outer`
MAX_SEARCHED: Final = 100  # the most queues in which a run looks for runs that wait for it


class Queue(Record):
    """KV `workflows`, key `turn.<hash of tenant, workflow and key>`."""

    runs: list[str] = Field([], description="The run under way, then those that wait, in order")
    users: list[str] = Field([], description="The user of each of these runs")
    inside: dict[str, dict[str, str]] = Field(
        {},
        description="For each run that waits and is inside of others with turns of their own: "
        "these runs, by the keys of their queues",
    )

    def keep(self, runs: list[str]) -> None:
        """Keep these runs only, which are in the queue."""
        users = dict(zip(self.runs, self.users, strict=True))
        self.runs, self.users = runs, [users[each] for each in runs]
        self.inside = {run: around for run, around in self.inside.items() if run in users}

    def shown(self, run_id: str, user: str) -> str:
        """Return how an error names one of the runs. A user may not know the runs of others."""
        of = self.users[self.runs.index(run_id)]
        return f"the run {run_id}" if of == user else "a run of another user"


class Outer(NamedTuple):
    """A run around another: the run around itself, and its turn; None for none."""

    parent: str | None
    turn: TurnAsked | None


class Turns:
    """Reads and writes the queues. Each method raises BusError if the bus does not answer."""

    def __init__(self, bus: Bus, children: Children, timers: Timers) -> None:
        self._bus = bus
        self._bucket = bus.bucket(BUCKET)
        self._journals = Journals(bus)
        self._children = children
        self._timers = timers
        self._outer: dict[str, Outer] = {}  # what does not change once a run has begun a step

    async def take(self, state: State, turn: TakeTurn) -> TurnInput | None:
        """Put the run at the end of the queue, unless it is there. Return its input if it is first,
        or is not to wait; else None.

        A caller whose run has ended meanwhile must call `leave`.
        """
        run_id, key = state.run_id, _key(state.started, turn.workflow, turn.key)
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
        around = await self._around(state)
        if inside := [each for each in before if each in around]:
            message = f"the run would wait for {inside[0]}, inside of which it is"
            return TurnInput({"code": "busy", "message": message})
        if turn.when_busy == "refuse":
            message = f"{queue.shown(before[0], user)} has the key {turn.key!r}"
            return TurnInput({"code": "busy", "message": message})
        if turn.when_busy == "interrupt":
            for each in before:
                await self._children.cancel(CancelChild(each, SUPERSEDED, user))
        elif circle := await self._circle(state, key, before[0], around):
            message = (
                f"the run would wait for ever for the key {turn.key!r} of the workflow "
                f"{turn.workflow}: the run that has it waits in turn for the key {circle.key!r} of "
                f"the workflow {circle.workflow}, which a run has that this one is inside of"
            )
            return TurnInput({"code": "busy", "message": message})
        log.info("run %s waits for %d runs with its key", run_id, len(before))
        return None

    async def leave(self, state: State, turn: LeaveTurn) -> None:
        """Take the run out of the queue, and wake the next run."""
        key = _key(state.started, turn.workflow, turn.key)
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

    async def _around(self, state: State) -> dict[str, TurnAsked | None]:
        """Return the runs that a run is inside of, each with its turn. A command's `ancestors` lack
        those around an `always` step, since their stop must not keep the step's run from
        beginning."""
        found: dict[str, TurnAsked | None] = {}
        each = _parent_of(state.started)
        while each is not None:
            outer = self._outer.get(each) or await self._read_outer(each)
            if outer is None:
                break
            found[each], each = outer.turn, outer.parent
        return found

    async def _read_outer(self, run_id: str) -> Outer | None:
        records, _ = await self._journals.read(run_id)
        if not records:
            return None
        assert isinstance(records[0], Started)
        turn = next((each for each in records if isinstance(each, TurnAsked)), None)
        if len(self._outer) >= MAX_KNOWN:
            self._outer.clear()
        self._outer[run_id] = Outer(_parent_of(records[0]), turn)
        return self._outer[run_id]

    async def _circle(
        self, state: State, key: str, holder: str, around: Mapping[str, TurnAsked | None]
    ) -> TurnAsked | None:
        """Write down what the run is inside of. Return the turn of a run around it for whose end
        the run `holder`, under way with `key`, waits, perhaps through others."""
        turns = {
            _key(state.started, turn.workflow, turn.key): turn for turn in around.values() if turn
        }
        outer = {
            _key(state.started, turn.workflow, turn.key): run
            for run, turn in around.items()
            if turn
        }
        if not turns:
            return None

        def note(queue: Queue) -> None:
            if state.run_id in queue.runs:
                queue.inside[state.run_id] = outer

        await self._bucket.change(key, Queue, note)
        seen = set[tuple[str, str]]()
        for first, turn in turns.items():
            to_search = {(first, outer[first])}
            while to_search and len(seen) < MAX_SEARCHED:
                each, run_id = to_search.pop()
                seen.add((each, run_id))
                queue = await self._bucket.load(each, Queue)
                if queue is None or queue.runs[:1] != [run_id]:
                    continue  # the run has ended meanwhile, so nobody waits for it
                for waiting in queue.runs[1:]:
                    inside = queue.inside.get(waiting, {})
                    if inside.get(key) == holder:
                        return turn
                    to_search |= inside.items() - seen
        return None

    async def _wake(self, run_id: str) -> None:
        now_ms = round(self._bus.clock.time() * 1000)
        await self._timers.start(run_id, TURN, now_ms)

    async def _from_first_open(self, runs: list[str], run_id: str = "") -> list[str]:
        """Return the runs from the first one that has not ended, or is the run `run_id`. NATS may
        have lost the end of a run's journal, so that the run never left."""
        for number, each in enumerate(runs):
            if each == run_id or await self._is_open(each):
                return runs[number:]
        return []

    async def _is_open(self, run_id: str) -> bool:
        record = await self._bus.bucket("runs").load(run_id, RunRecord)
        if record is not None:
            return record.status not in ENDED
        # The record of a run that waits for weeks ages out. Its journal is kept.
        try:
            records, _ = await self._journals.read(run_id)
        except ValueError as error:  # Incomplete, or the record of a newer version
            log.warning("run %s counts as under way: its journal cannot be read: %s", run_id, error)
            return True
        return bool(records) and not any(isinstance(each, End) for each in records)


def _parent_of(started: Started) -> str | None:
    """Return the workflow's run that a run is inside of; None for an outermost run."""
    command = started.command
    return command.get("parent_run_id") if command.get("workflow_depth") else None


class Place(NamedTuple):
    """Where a run is in the queue of its key: behind the `before`, each with its user."""

    workflow: str
    key: str
    before: list[tuple[str, str]]


async def place_of(bus: Bus, run_id: str) -> Place | None:
    """Return where a run is, or None if it has asked for no turn. Raises BusError."""
    records, _ = await Journals(bus).read(run_id)
    asked = next((each for each in records if isinstance(each, TurnAsked)), None)
    if asked is None:
        return None
    assert isinstance(records[0], Started)
    key = _key(records[0], asked.workflow, asked.key)
    queue = await bus.bucket(BUCKET).load(key, Queue) or Queue()
    if run_id in queue.runs:
        at = queue.runs.index(run_id)
    elif any(isinstance(each, TurnTaken | End) for each in records):
        at = 0
    else:  # The run is about to enter the queue, which happens after its record
        at = len(queue.runs)
    return Place(asked.workflow, asked.key, list(zip(queue.runs, queue.users, strict=True))[:at])


def _key(started: Started, workflow: str, key: str) -> str:
    tenant = started.command.get("tenant") or ""
    return f"turn.{key_of('turn', tenant, workflow, key)}"
