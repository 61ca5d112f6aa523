"""Lets the starts of a session begin in the order of their commands in the stream COMMANDS.

The server may deliver any start to any connector. An earlier start of a session may wait at one
connector, for a free leg or for its redelivery. Meanwhile, another connector may get a later start
of the session. The later start must not begin first. All connectors see the same sequences in
COMMANDS. Therefore a connector that gets a start first checks whether an earlier start of the
session still waits in the stream.

The subject of a command does not name the session. So each connector reads every start command
once, and keeps an index from sessions to the sequences of commands. The index may be outdated, so
the connector also asks the stream's leader whether the earlier command still waits.
"""

from __future__ import annotations

import asyncio
import logging
import time
from bisect import bisect_left, insort
from contextlib import suppress
from dataclasses import dataclass

import orjson

from penstock.bus import Bus, ObjectGone, Stored
from penstock.bus.read import direct
from penstock.bus.streams import COMMANDS
from penstock.bus.subjects import command, run_id_of, session_key
from penstock.bus.write import objects
from penstock_connector.state.claims import Claims
from penstock_connector.state.run_state import Runs

log = logging.getLogger(__name__)

STARTS = command("connector", "start", "*")
LAG_S = 0.05  # seconds before a replica that lags behind is read again
# Seconds between two checks: CHECK_S for each earlier start of the session, but at most
# MAX_CHECK_S.
CHECK_S, MAX_CHECK_S = 0.1, 1.0
# The number of starts above which the index is built again. But the index is not built again before
# it has more than twice the starts that it had after the last build. The new index leaves out the
# starts whose commands are finished.
REBUILD_FROM = 10_000


@dataclass(frozen=True, slots=True)
class _Start:
    run_id: str
    session: str | None  # None if the command cannot be read; no start waits for such a command


@dataclass(frozen=True, slots=True)
class EarlierStart:
    """An earlier start of the session, which must begin first."""

    stored: Stored  # the command of the earlier start
    count: int  # the number of the session's earlier starts; some of them may have begun
    waited_s: float  # seconds that the later start has waited for earlier starts


class SessionOrder:
    """Finds, for a start, the earlier starts of its session that still wait."""

    def __init__(self, bus: Bus, runs: Runs, claims: Claims) -> None:
        self._bus = bus
        self._runs = runs
        self._claims = claims
        self._reading = asyncio.Lock()
        self._read_to = 0  # the sequence of the last start command that was read
        self._starts: dict[int, _Start] = {}  # by sequence
        # by session: the sequences of its starts, in ascending order
        self._sequences: dict[str, list[int]] = {}
        self._rebuild_from = REBUILD_FROM
        # by sequence: the monotonic time since which a start has waited for an earlier start
        self._waiting_since: dict[int, float] = {}
        # by session: the event that wakes the starts of the session that wait here
        self._moved: dict[str, asyncio.Event] = {}

    async def before(self, stored: Stored) -> EarlierStart | None:
        """Return the session's first start that must begin before `stored`; None if no start
        must."""
        await self._read(stored)
        mine = self._starts.get(stored.sequence)
        if mine is None or mine.session is None:
            return None
        of_session = self._sequences.get(mine.session, [])
        while of_session and of_session[0] < stored.sequence:
            first = of_session[0]
            waits = await self._still_waits(first)
            if waits is not None:
                since = self._waiting_since.setdefault(stored.sequence, time.monotonic())
                count = bisect_left(of_session, stored.sequence)
                return EarlierStart(waits, count, time.monotonic() - since)
            # another task may have deleted this sequence while `_still_waits` ran
            if of_session and of_session[0] == first:
                del of_session[0]
        self._waiting_since.pop(stored.sequence, None)
        return None

    async def wait(self, stored: Stored, earlier: EarlierStart) -> None:
        """Wait until a start of the session has begun here, or until it is time to check again."""
        mine = self._starts.get(stored.sequence)
        if mine is None or mine.session is None:
            return
        moved = self._moved.setdefault(mine.session, asyncio.Event())
        with suppress(TimeoutError):
            async with asyncio.timeout(min(earlier.count * CHECK_S, MAX_CHECK_S)):
                await moved.wait()

    def wake_next(self, stored: Stored) -> None:
        self._waiting_since.pop(stored.sequence, None)
        mine = self._starts.get(stored.sequence)
        if mine is not None and mine.session is not None:
            moved = self._moved.pop(mine.session, None)
            if moved is not None:
                moved.set()

    async def _still_waits(self, sequence: int) -> Stored | None:
        """Return the command of a start that has not begun; None if no start has to wait for it.

        A run gets its place in the session's queue before its `open` is written, and the queue
        keeps the order from then on. So no start waits for a run that has an `open`, nor for a
        cancelled run, which begins nothing.
        """
        start = self._starts.get(sequence)
        if start is None:
            return None
        stored = await self._bus.at(COMMANDS, sequence)
        if stored is None or run_id_of(stored.subject) != start.run_id:
            return None
        if await self._runs.tail(start.run_id) is not None:
            return None
        claim = await self._claims.read(start.run_id)
        # The command was read from the stream, and was not delivered to this connector. So its
        # count of deliveries is 0.
        stored.delivered = 0
        return stored if claim is None or claim.state != "cancelled" else None

    async def _read(self, start: Stored) -> None:
        upto, run_id = start.sequence, run_id_of(start.subject)
        async with self._reading:
            known = self._starts.get(upto)
            if upto <= self._read_to and (known is None or known.run_id != run_id):
                self._forget_all()  # NATS was restored to an older state
            is_full = upto > self._read_to and len(self._starts) > self._rebuild_from
            if is_full:
                self._forget_all()
            if self._read_to and upto == self._read_to + 1:
                # no other command comes between the last read command and this one
                await self._note(start)
            while self._read_to < upto:
                found, pending = await direct.read(self._bus, COMMANDS, STARTS, self._read_to + 1)
                for each in found:
                    await self._note(each)
                if self._read_to < upto and not pending:
                    if await self._bus.at(COMMANDS, upto) is None:
                        return  # another connector has carried the command out meanwhile
                    await asyncio.sleep(LAG_S)  # a replica that lags behind has answered
            if is_full:
                self._rebuild_from = max(REBUILD_FROM, 2 * len(self._starts))

    async def _note(self, stored: Stored) -> None:
        session = await self._session(stored)
        self._starts[stored.sequence] = _Start(run_id_of(stored.subject), session)
        if session is not None:
            insort(self._sequences.setdefault(session, []), stored.sequence)
        self._read_to = stored.sequence

    async def _session(self, stored: Stored) -> str | None:
        try:
            asked = orjson.loads(await objects.unwrap(self._bus, stored.payload))
            ids = asked.get("user_id", "anonymous"), asked["agent"], asked["session_id"]
        except (ObjectGone, orjson.JSONDecodeError, KeyError, TypeError, AttributeError) as error:
            log.warning("%s: its session cannot be read: %r", stored.subject, error)
            return None
        return session_key(*ids)

    def _forget_all(self) -> None:
        self._read_to = 0
        self._starts.clear()
        self._sequences.clear()
        self._waiting_since.clear()
