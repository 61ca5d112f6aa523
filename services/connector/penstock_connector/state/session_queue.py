"""Lets the legs of one session run one after another: KV `sessions`, one record for each session.

The record has the queue of the session's legs, the session's runs, and the agent server's id of the
session. The key is a hash of owner, agent and session. Every write is a compare-and-set.
"""

from __future__ import annotations

import asyncio
import logging
from bisect import insort
from collections.abc import Sequence
from functools import partial
from typing import Final, NamedTuple

from penstock.bus import Bus, Msg
from penstock.bus.connection.retry import with_retries
from penstock.bus.records.legs import MAX_SESSION_RUNS, PauseRecord, QueuedLeg, SessionRecord
from penstock.bus.records.runs import ENDED
from penstock.bus.streams import raw_for
from penstock.bus.subjects import raw_stored, session_turn
from penstock.bus.write.fence import tail
from penstock.start_fields import NotAccepted, Refusal
from penstock_connector.state.connectors import Connectors
from penstock_connector.state.leg_record import LegRecords
from penstock_connector.state.run_state import CLOSED, WRITER, Runs, is_over, kind_of

log = logging.getLogger(__name__)

CHECK_AGAIN_S = 2.0  # seconds between two checks of the first leg in the queue, if no notice comes


class Joined(NamedTuple):
    """The place of a leg in its session's queue."""

    is_first: bool  # whether no other leg is before this one
    thread_id: str  # the agent server's id of the session


class SessionQueue:
    """Reads and writes the queues of all sessions."""

    def __init__(self, bus: Bus, connectors: Connectors, leg_records: LegRecords) -> None:
        self._bus = bus
        self._connectors = connectors
        self._leg_records = leg_records
        self._bucket = bus.bucket("sessions")

    async def join(
        self,
        key: str,
        agent: str,
        session_id: str,
        thread_id: str,
        mine: QueuedLeg,
        *,
        owner: str,
        lists_open_runs: bool = False,
    ) -> Joined:
        """Put the leg into the queue; return its place, and the agent server's id of the session.

        A new session gets the id `thread_id`, which this leg and all later legs use. With
        `lists_open_runs`, the record also lists the runs that may wait for a decision; `other_runs`
        returns these runs later.
        """

        def change(record: SessionRecord) -> None:
            record.user_id = owner
            if not record.thread_id:
                record.thread_id = thread_id
            if mine not in record.queue:
                # Two connectors may join in an order that differs from the order of their commands.
                # So a leg goes behind the last one whose command is earlier, wherever the user has
                # moved that one. The first leg may be running already, so it stays first.
                earlier = [
                    n
                    for n, queued_leg in enumerate(record.queue)
                    if n == 0 or queued_leg.sequence <= mine.sequence
                ]
                record.queue.insert(earlier[-1] + 1 if earlier else 0, mine)
            if lists_open_runs:
                others = (each for each in record.open if each != mine.run_id)
                record.open = [*others, mine.run_id]
            if mine.run_id not in record.runs:
                insort(record.runs, mine.run_id)  # run ids are ordered by their time of creation
                del record.runs[:-MAX_SESSION_RUNS]

        new = SessionRecord(agent=agent, session_id=session_id)
        record = await self._bucket.change(key, SessionRecord, change, new)
        assert record is not None
        # The compare-and-set has shown that this is the stored record, so it is not read again.
        return Joined(_is_first(record, mine), record.thread_id)

    async def thread_id(self, key: str) -> str | None:
        """Return the agent server's id of the session; None if no connector has chosen it."""
        record = await self._bucket.load(key, SessionRecord)
        return record.thread_id or None if record is not None else None

    async def other_runs(self, key: str, run_id: str) -> list[str]:
        """Return the session's other runs that have begun and may wait for a decision."""
        record = await self._bucket.load(key, SessionRecord)
        if record is None:
            return []
        # A run whose first leg is in the queue has not begun, so the result leaves the run out. A
        # run with a later leg in the queue still waits, because its decision is queued behind the
        # leg of `run_id`.
        queued = {queued_leg.run_id for queued_leg in record.queue if queued_leg.leg == 1} | {
            run_id
        }
        return [each for each in record.open if each not in queued]

    async def forget_ended(self, key: str, run_ids: Sequence[str]) -> None:
        """Remove ended runs from the list of open runs, so that `other_runs` leaves them out."""

        def change(record: SessionRecord) -> None:
            record.open = [each for each in record.open if each not in run_ids]

        await self._bucket.change(key, SessionRecord, change)

    async def take_over(self, key: str, mine: QueuedLeg) -> bool:
        """Take the place of the leg's earlier holder; return True if no other leg is before it. The
        places of the run's earlier legs, which have ended, are deleted."""

        def change(record: SessionRecord) -> None:
            others = [
                queued_leg
                for queued_leg in record.queue
                if queued_leg.run_id != mine.run_id or queued_leg.leg >= mine.leg
            ]
            places = [n for n, queued_leg in enumerate(others) if _is_same_leg(queued_leg, mine)]
            record.queue = [
                queued_leg for queued_leg in others if not _is_same_leg(queued_leg, mine)
            ]
            # If the queue has this leg more than once, the leg keeps the first place. If the queue
            # does not have this leg, another leg has deleted it from the queue and runs now. Then
            # this leg gets the place behind the running leg.
            record.queue.insert(places[0] if places else 1, mine)

        record = await self._bucket.change(key, SessionRecord, change)
        return record is None or _is_first(record, mine)

    async def wait(self, key: str, mine: QueuedLeg) -> None:
        """Wait until the leg is first in the queue.

        Places before it that no connector will delete any more are deleted. Otherwise one connector
        that died at the wrong moment would block the session for ever.
        """
        moved = asyncio.Event()

        async def on_move(msg: Msg) -> None:
            moved.set()

        if await self._is_first(key, mine):
            return
        subscription = await self._bus.subscribe(session_turn(key), on_move)
        try:
            while not await self._is_first(key, mine):
                try:
                    async with asyncio.timeout(CHECK_AGAIN_S):
                        await moved.wait()
                except TimeoutError:
                    await self._pass_over(key, mine)
                moved.clear()
        finally:
            await subscription.unsubscribe()

    async def leave(self, key: str, run_id: str, pod: str, leg: int | None) -> None:
        """Delete the place of a leg that has ended, and notify the connectors that wait.

        Only the place of this leg is deleted, because the same pod may hold a later leg of the run;
        if `leg` is None, all places of the run that belong to the pod.
        """

        def change(record: SessionRecord) -> None:
            record.queue = [
                queued_leg
                for queued_leg in record.queue
                if (queued_leg.run_id, queued_leg.pod) != (run_id, pod)
                or leg not in (None, queued_leg.leg)
            ]

        record = await self._bucket.change(key, SessionRecord, change)
        # if the queue is empty, no leg waits for the notice
        if record is not None and record.queue:
            await self._bus.client.publish(session_turn(key))

    async def _is_first(self, key: str, mine: QueuedLeg) -> bool:
        record = await self._bucket.load(key, SessionRecord)
        return record is None or _is_first(record, mine)

    async def _pass_over(self, key: str, mine: QueuedLeg) -> None:
        while True:
            record = await self._bucket.load(key, SessionRecord)
            queue = record.queue if record is not None else []
            if mine not in queue or queue[0] == mine:
                return
            first = queue[0]
            # If the first place belongs to the same leg, another connector has made this place, and
            # the fence has refused that connector. This connector's `open` is in RAW, so no other
            # connector can run this leg.
            if not _is_same_leg(first, mine) and not await self._is_abandoned(first):
                return
            log.warning("run %s leg %d: its turn is passed over", first.run_id, first.leg)

            def change(record: SessionRecord, first: QueuedLeg = first) -> None:
                record.queue = [queued_leg for queued_leg in record.queue if queued_leg != first]

            await self._bucket.change(key, SessionRecord, change)
            await self._bus.client.publish(session_turn(key))

    async def _is_abandoned(self, queued_leg: QueuedLeg) -> bool:
        """Return whether the leg has ended, or has a dead connector and no leg record.

        RAW shows whether the leg has ended. The connector may have died, or may hang, before it
        deleted the leg's place. If a dead connector's leg is open and has a record, the place
        stays, because the reaper continues the leg.
        """
        last = await tail(
            self._bus, raw_for(queued_leg.run_id), raw_stored(queued_leg.run_id, WRITER)
        )
        if last is not None and is_over(last, queued_leg.leg):
            return True
        if await self._connectors.is_alive(queued_leg.pod):
            return False
        return not await self._leg_records.exists(queued_leg.run_id, queued_leg.pod)


def _is_first(record: SessionRecord, mine: QueuedLeg) -> bool:
    return mine not in record.queue or record.queue[0] == mine


def _is_same_leg(queued_leg: QueuedLeg, other: QueuedLeg) -> bool:
    return (queued_leg.run_id, queued_leg.leg) == (other.run_id, other.leg)


# the most seconds to wait until the normalizer has found out whether the run of an ended leg is
# paused
SETTLES_S: Final = 20.0
CHECK_S: Final = 0.1  # seconds between two reads of such a run's record
BY_CALL: Final = "tool"  # the style of an answer that names its tool call


async def require_at_rest(bus: Bus, runs: Runs, run_ids: Sequence[str]) -> list[str]:
    """Return the runs that have ended; raise NotAccepted if a new run would disturb another one.

    An AG-UI server may run a graph that has only one current place for a whole thread. While an
    earlier run waits at this place for a person, a new run may move the graph, and the person's
    answer would continue it at the wrong place. So the new run is not sent before the earlier run
    is decided or cancelled, nor while it is unknown whether the earlier run waits. An answer that
    names a tool call, as AG-UI servers of Agno expect it, always reaches the call that was decided,
    so it does not hold back a new run.
    """
    ended = []
    for run_id in run_ids:
        if await with_retries(partial(_has_ended, bus, runs, run_id)):
            ended.append(run_id)
        elif await with_retries(partial(_waits_as_a_thread, bus, run_id)):
            raise _refused(f"run {run_id} of it waits for a decision; decide it, or cancel it")
    return ended


async def _has_ended(bus: Bus, runs: Runs, run_id: str) -> bool:
    """Return whether the run has ended; False if it waits for a decision, or has not begun."""
    deadline = asyncio.get_running_loop().time() + SETTLES_S
    while True:
        record = await runs.record(run_id)
        if record is None:
            # A run's record is kept for 30 days, but its pause is kept as long as the run waits. So
            # a run without a record and without a pause has ended.
            return await bus.bucket("pauses").get(run_id) is None
        if record.status in ENDED:
            return True
        if record.status == "paused":
            return False
        last = await runs.tail(run_id)
        if last is None or kind_of(last) not in CLOSED:
            return False  # the run waits for its turn in the session
        if asyncio.get_running_loop().time() >= deadline:
            raise _refused(f"it is not known whether run {run_id} of it waits for a decision")
        await asyncio.sleep(CHECK_S)


async def _waits_as_a_thread(bus: Bus, run_id: str) -> bool:
    pause = await bus.bucket("pauses").load(run_id, PauseRecord)
    if pause is None:
        return False
    items = pause.resume.get("items", {}).values()
    return any(item.get("style") != BY_CALL for item in items)


def _refused(reason: str) -> NotAccepted:
    return NotAccepted([Refusal(("session_id",), reason)])
