"""Reads the histories of many runs of a stream: each run separately, or all runs in one pass.

To read one run, the server looks at every message between the run's first and its last one. When
1,000 followers of 1,000 active runs begin at the same time, these reads take the server 5 ms each,
one after the other. One pass over the stream reads each message once, for all followers. This
module estimates the cost of both ways and takes the cheaper one.
"""

from __future__ import annotations

import asyncio
import itertools
from collections import deque
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from penstock.bus.connection.incoming import Headers, Incoming
from penstock.bus.connection.jetstream import HasJetStream
from penstock.bus.errors import BusError, BusUnavailable, OutcomeUnknown
from penstock.bus.messages import Stored
from penstock.bus.read.direct import BATCH, read_raw

# the most single runs that are read at once; the server handles these reads one after the other
AT_ONCE = 16
# The cost in microseconds of CPU time, for the server and this process together: for one read of a
# single run, for each message that the server passes over in such a read, and for each message in a
# pass.
ONE_READ_US, PASSED_OVER_US, IN_A_PASS_US = 300.0, 0.18, 25.0
MAX_PASS = 50_000  # the most stream sequences that one pass covers
PASS_BATCH = 1000  # the most messages in each answer of a pass
# The most bytes of messages that are kept after a pass, for followers that begin soon afterwards.
MAX_KEPT_BYTES = 48 * 1024 * 1024
KEPT_S = 2.0  # seconds that the messages of a pass are kept
KEPT_OVERHEAD_BYTES = 400  # the bytes of memory that a kept message needs besides its content
# the most requests whose cost is estimated; further requests only make a pass cheaper
MAX_ESTIMATED = 256
ANSWERS_AT_ONCE = 8  # the number of followers that get their messages in one turn of the event loop

Found = tuple[list[Stored], int]


@dataclass(slots=True, eq=False)
class _Request:
    run: str  # the last token of the subjects; empty if a pass cannot serve the request
    start: int
    newest: int
    alone: Callable[[], Awaitable[Found]]
    answer: asyncio.Future[Found]


class Histories:
    """Reads the histories of one stream for all followers of one connection."""

    def __init__(self, bus: HasJetStream, stream: str) -> None:
        self._bus = bus
        self._stream = stream
        self._waiting: deque[_Request] = deque()
        self._slots = asyncio.Semaphore(AT_ONCE)
        self._dispatching: asyncio.Task[None] | None = None
        self._reading: set[asyncio.Task[None]] = set()
        self._kept = _StoredRange()
        self._forgetting: asyncio.TimerHandle | None = None

    async def read(
        self, pattern: str, start: int, newest: int, alone: Callable[[], Awaitable[Found]]
    ) -> Found:
        """Return messages under the pattern from stream sequence `start` on, and how many follow.

        `newest` is the sequence of the last message under the pattern. `alone` reads the messages
        for this caller only. A lagging replica may answer, as in `direct.read`.
        """
        loop = asyncio.get_running_loop()
        run = _run_of(pattern) if newest - start < MAX_PASS else ""
        request = _Request(run, start, newest, alone, loop.create_future())
        self._waiting.append(request)
        if self._dispatching is None:
            self._dispatching = loop.create_task(self._dispatch())
        return await request.answer

    async def _dispatch(self) -> None:
        try:
            while self._waiting:
                await self._slots.acquire()
                if begin := self._begin_of_pass():
                    self._slots.release()
                    await self._answer_in_one_pass(begin)
                    continue
                task = asyncio.create_task(self._read_alone(self._waiting.popleft()))
                self._reading.add(task)
                task.add_done_callback(self._read_ended)
        finally:
            self._dispatching = None

    def _read_ended(self, task: asyncio.Task[None]) -> None:
        self._reading.discard(task)
        self._slots.release()

    async def _read_alone(self, request: _Request) -> None:
        if request.answer.done():
            return  # the follower was stopped meanwhile
        try:
            _set_result(request, await request.alone())
        except Exception as error:
            _fail(request, error)

    def _begin_of_pass(self) -> int:
        """Return the sequence at which a pass should begin; 0 if single reads are cheaper."""
        some = [each for each in itertools.islice(self._waiting, MAX_ESTIMATED) if each.run]
        if not some:
            return 0
        begin, end = min(each.start for each in some), max(each.newest for each in some)
        if end - begin >= MAX_PASS:
            return 0
        continues = self._kept.continues(begin)
        if len(some) == 1 and not continues:
            return 0
        left = end + 1 - (self._kept.end if continues else begin)
        alone_us = sum(ONE_READ_US + (each.newest - each.start) * PASSED_OVER_US for each in some)
        return begin if left * IN_A_PASS_US < alone_us else 0

    async def _answer_in_one_pass(self, begin: int) -> None:
        waiting, self._waiting = self._waiting, deque()
        together: list[_Request] = []
        for each in waiting:
            (together if each.run and each.start >= begin else self._waiting).append(each)
        try:
            kept = await self._pass(begin, max(each.newest for each in together))
        except Exception as error:
            for each in together:
                _fail(each, error)
            return
        for number, each in enumerate(together, 1):
            if each.start < kept.begin:  # the run's first messages are not kept any more
                each.run = ""
            if not each.run or kept is not self._kept:
                self._waiting.append(each)
                continue
            try:
                found = kept.of_run(each.run, each.start)
                await self._bus.jetstream.content.open(*found[0])
                _set_result(each, found)
            except (KeyError, ValueError, BusError) as error:
                _fail(each, error)
            if number % ANSWERS_AT_ONCE == 0:
                await asyncio.sleep(0)
        self._forget_later()

    async def _pass(self, begin: int, end: int) -> _StoredRange:
        if not self._kept.continues(begin):
            self._kept = _StoredRange(begin)
        kept = self._kept
        while kept.end <= end and kept is self._kept:
            found, pending = await read_raw(self._bus, self._stream, ">", kept.end, PASS_BATCH)
            for message in found:
                kept.add(message)
            if not found or not pending:
                break  # a lagging replica has answered; the followers ask again
        return kept

    def _forget_later(self) -> None:
        if self._forgetting:
            self._forgetting.cancel()
        self._forgetting = asyncio.get_running_loop().call_later(KEPT_S, self.forget)

    def forget(self) -> None:
        """Drop all messages of earlier passes. After a reconnect, the stream may have lost its end,
        so a pass that is under way is also repeated."""
        self._kept = _StoredRange()


class _StoredRange:
    """All messages of a stream from sequence `begin` up to, and without, `end`."""

    def __init__(self, begin: int = 1) -> None:
        self.begin = self.end = begin
        self._runs: dict[str, deque[tuple[int, Incoming]]] = {}
        # sequence, run and bytes of each message
        self._order: deque[tuple[int, str, int]] = deque()
        self._bytes = 0

    def continues(self, start: int) -> bool:
        """Return whether a pass from `start` on can continue at `end`."""
        return self.begin <= start <= self.end != self.begin

    def add(self, message: Incoming) -> None:
        headers = Headers(message.block)
        sequence, run = int(headers["Nats-Sequence"]), headers["Nats-Subject"].rpartition(".")[2]
        size = len(message.data) + len(message.block) + KEPT_OVERHEAD_BYTES
        self.end = sequence + 1
        self._runs.setdefault(run, deque()).append((sequence, message))
        self._order.append((sequence, run, size))
        self._bytes += size
        while self._bytes > MAX_KEPT_BYTES:
            self._drop_oldest()

    def _drop_oldest(self) -> None:
        sequence, run, size = self._order.popleft()
        self._bytes -= size
        self.begin = sequence + 1
        messages = self._runs[run]
        messages.popleft()
        if not messages:
            del self._runs[run]

    def of_run(self, run: str, start: int) -> Found:
        """Return the first messages of a run from `start` on, and how many follow."""
        found = [message for at, message in self._runs.get(run, ()) if at >= start]
        return [message.stored() for message in found[:BATCH]], max(0, len(found) - BATCH)


def _run_of(pattern: str) -> str:
    """Return the run of a pattern `*.*.<run>`; empty for any other pattern."""
    run = pattern.removeprefix("*.*.")
    return run if run != pattern and not set(run) & set(".*>") else ""


def _set_result(request: _Request, found: Found) -> None:
    if not request.answer.done():
        request.answer.set_result(found)


def _fail(request: _Request, error: Exception) -> None:
    if request.answer.done():
        return
    # Each follower gets a separate error object, because a traceback grows each time that the same
    # error object is raised.
    own = isinstance(error, BusUnavailable | OutcomeUnknown)
    request.answer.set_exception(type(error)(str(error)) if own else error)
    request.answer.exception()  # asyncio would log an exception that nobody waits for


def histories(bus: HasJetStream, stream: str) -> Histories:
    """Return the object that reads this stream's histories for all followers of the connection."""
    shared = bus.jetstream.shared
    name = f"histories of {stream}"
    if name not in shared:
        shared[name] = made = Histories(bus, stream)
        bus.jetstream.on_reconnect(made.forget)
    found = shared[name]
    assert isinstance(found, Histories)
    return found
