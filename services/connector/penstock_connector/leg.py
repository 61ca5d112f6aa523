"""One leg: one request to an agent server, its body put on the bus verbatim as it comes.

Bytes first, meaning later: what arrives is in RAW before anybody interprets it. While the broker is
slow the upstream is not read. A leg ends in exactly one `end` or `lost`.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

import httpx
import orjson

from penstock import telemetry
from penstock.bus import FenceConflict, messages
from penstock.bus.budget import Budget
from penstock.bus.fence import RawWriter
from penstock.settings import AgentConfig
from penstock.sse import FrameTooLarge, Parser
from penstock_connector.settings import ConnectorSettings
from penstock_connector.upstreams.base import Attachment, Call, Refused, Upstream

log = logging.getLogger(__name__)

MAX_DETAIL_CHARACTERS = 4000
MAX_DETAIL_BYTES = 4 * MAX_DETAIL_CHARACTERS
DETAIL_S = 5.0
REATTACH_TRIES = 5  # without an event in between
REATTACH_S = 0.5

# httpx raises these before a byte of the request has left
_NOT_SENT = (
    httpx.ConnectError,
    httpx.ConnectTimeout,
    httpx.PoolTimeout,
    httpx.LocalProtocolError,
    httpx.UnsupportedProtocol,
)


@dataclass(frozen=True, slots=True)
class Outcome:
    """How a leg ended: the kind of its last source frame, and that frame's facts."""

    kind: str  # "end" | "lost"
    facts: dict[str, Any]

    @property
    def label(self) -> str:
        """For the metric: eof, cancelled, taken_over, or the code of what was lost."""
        return str(self.facts.get("outcome") or self.facts.get("code"))


def ended(outcome: str, **facts: Any) -> Outcome:
    """The body ended cleanly: `eof`, or `cancelled`."""
    return Outcome("end", {"outcome": outcome, **facts})


def lost(code: str, error: str, **facts: Any) -> Outcome:
    """It did not, or could not begin; the codes are lifecycle.failed's."""
    return Outcome("lost", {"code": code, "error": error, **facts})


class _Cut(Exception):
    """The connection broke before the body had ended."""


@dataclass(slots=True)
class Leg:
    """A leg that this process holds. `run` does all of it and always returns."""

    run_id: str
    number: int
    agent: AgentConfig
    upstream: Upstream
    client: httpx.AsyncClient
    writer: RawWriter
    settings: ConnectorSettings
    budget: Budget  # of all legs together
    prepare: Callable[[], Awaitable[Call]]  # the adapter's start or resume
    turn: Callable[[], Awaitable[None]]  # until the session's earlier legs have ended
    cancelled: asyncio.Event = field(default_factory=asyncio.Event)
    cancelled_by: dict[str, str] = field(default_factory=dict)
    _seen: Attachment = field(default_factory=Attachment)
    _call: Call | None = None

    def cancel(self, by: str, reason: str) -> None:
        """Ask the leg to end; it says when it has."""
        self.cancelled_by = {"by": by, "reason": reason}
        self.cancelled.set()

    async def run(self) -> Outcome:
        """Wait for the turn, stream, and write how it ended, unless somebody else has ended it."""
        try:
            outcome = await self._outcome()
            await self.writer.write(outcome.kind, orjson.dumps(outcome.facts), leg=self.number)
            telemetry.FRAMES.labels(outcome.kind).inc()
        except FenceConflict:
            outcome = ended("taken_over")
        telemetry.LEGS.labels(outcome.label).inc()
        log.info("run %s leg %d: %s", self.run_id, self.number, outcome.label)
        return outcome

    async def _outcome(self) -> Outcome:
        turn = asyncio.ensure_future(self.turn())
        if not await self._unless_cancelled(turn):
            return ended("cancelled", **self.cancelled_by, confirmed=True)
        turn.result()
        stream = asyncio.create_task(self._stream())
        try:
            async with asyncio.timeout(self.agent.timeout_s):
                if not await self._unless_cancelled(stream, keep=True):
                    return await self._cancel(stream)
                return stream.result()
        except TimeoutError:
            await _stop(stream)
            await self._ask_to_cancel()
            return lost("timeout", f"Request timeout after {self.agent.timeout_s:g} seconds")
        finally:
            await _stop(stream)

    async def _unless_cancelled(self, task: asyncio.Future[Any], keep: bool = False) -> bool:
        """True when the task was done before anybody cancelled the leg."""
        waiter = asyncio.create_task(self.cancelled.wait())
        try:
            await asyncio.wait({task, waiter}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            waiter.cancel()
        if task.done():
            return True
        if not keep:
            await _stop(task)
        return False

    async def _cancel(self, stream: asyncio.Task[Outcome]) -> Outcome:
        """Let the upstream end by itself if it can be asked, else close the connection."""
        asked = await self._ask_to_cancel()
        if asked:
            await asyncio.wait({stream}, timeout=self.settings.cancel_grace_s)
            if stream.done():
                return stream.result()
        await _stop(stream)
        return ended("cancelled", **self.cancelled_by, confirmed=not asked)

    async def _ask_to_cancel(self) -> bool:
        if self._call is None:
            return False
        try:
            async with asyncio.timeout(self.settings.cancel_grace_s):
                return await self.upstream.cancel(self.client, self.agent, self._call)
        except (httpx.HTTPError, TimeoutError) as error:
            log.warning("run %s: the upstream did not take the cancel: %r", self.run_id, error)
            return False

    async def _stream(self) -> Outcome:
        try:
            self._call = await self.prepare()
        except Refused as error:
            return self._refused(error.status_code, error.detail)
        except httpx.HTTPError as error:
            return self._unreachable(error)
        except Exception as error:
            # the decision or the stored objects do not fit this upstream: nothing was sent
            log.exception("run %s: the request cannot be made", self.run_id)
            return lost("internal", f"the request cannot be made: {error!r}")
        try:
            return await self._attached(self._call)
        finally:
            await self.upstream.closed(self.agent, self._call, self._seen)

    async def _attached(self, call: Call) -> Outcome:
        """Stream; where the connection breaks and the upstream allows it, go on with another."""
        connection, cuts, in_vain = self.writer.connection, 0, 0
        while True:
            seen_before = self._seen.last_event_index
            try:
                return await self._respond(call, attached_before=cuts > 0)
            except _Cut as cut:
                in_vain = in_vain + 1 if self._seen.last_event_index == seen_before else 0
                again = self.upstream.reattach(self.agent, call, self._seen)
                if again is None or in_vain > REATTACH_TRIES:
                    return lost("upstream_lost", f"the upstream's stream was cut: {cut}")
                log.warning("run %s: the stream was cut (%s), going on with it", self.run_id, cut)
                await asyncio.sleep(REATTACH_S * in_vain)
                # another response, whose bytes must not be joined with this one's
                cuts += 1
                self.writer.connection = f"{connection}.{cuts}"
                call = again

    async def _respond(self, call: Call, attached_before: bool) -> Outcome:
        request = self.client.build_request(
            "POST",
            call.url,
            # whatever is compressed could not go on verbatim
            headers={"accept-encoding": "identity", **self.agent.headers, **call.headers},
            content=call.content,
        )
        try:
            response = await self.client.send(request, stream=True)
        except httpx.HTTPError as error:
            if attached_before:
                raise _Cut(_words(error)) from error
            if isinstance(error, _NOT_SENT):
                return self._unreachable(error)
            return lost(
                "outcome_unknown",
                "the connection broke before the agent server answered, so that nobody knows "
                f"whether it has begun: {_words(error)}",
            )
        try:
            if not response.is_success:
                return self._refused(response.status_code, await _detail(response))
            return await self._pump(response)
        finally:
            await response.aclose()

    def _unreachable(self, error: httpx.HTTPError) -> Outcome:
        return lost(
            "upstream_lost",
            f"cannot reach the agent server at {self.agent.url}: {_words(error)}",
            retryable=True,
        )

    def _refused(self, status_code: int, detail: str) -> Outcome:
        detail = detail[:MAX_DETAIL_CHARACTERS]
        return lost(
            "upstream_http",
            f"the agent server answered {status_code}: {detail}",
            status_code=status_code,
            detail=detail,
        )

    async def _pump(self, response: httpx.Response) -> Outcome:
        """Read and write side by side; what arrives during a write goes into the next one."""
        body = _Body(self.settings.max_buffered_bytes, self.budget)
        try:
            return await self._pumped(response, body)
        finally:
            body.drop()

    async def _pumped(self, response: httpx.Response, body: _Body) -> Outcome:
        reading = asyncio.create_task(self._read(response, body))
        writing = asyncio.create_task(self._write(body))
        try:
            await asyncio.wait({reading, writing}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            await _stop(reading)
            await response.aclose()
            # never cut off in the middle of a write: the next one could not tell what stands
            await asyncio.wait({writing})
        writing.result()
        return reading.result()

    async def _write(self, body: _Body) -> None:
        while True:
            received, chunk = await body.take()
            if not chunk:
                return
            await self.writer.write("bytes", chunk, leg=self.number, received=received)
            telemetry.FRAMES.labels("bytes").inc()

    async def _read(self, response: httpx.Response, body: _Body) -> Outcome:
        frames = Parser(self.settings.max_frame_bytes)
        try:
            async for chunk in response.aiter_bytes():
                await body.put(chunk)
                for frame in frames.feed(chunk):
                    self.upstream.watch(frame.data, self._seen)
            return ended("eof")
        except FrameTooLarge as error:
            return lost("limit", f"the upstream sent too much: {error}")
        except httpx.HTTPError as error:
            raise _Cut(_words(error)) from error
        finally:
            body.close()


class _Body:
    """Chunks between the reader and the writer, held until they are stored.

    Bounded in bytes for this leg, and with all other legs by their common budget. Who waits for
    room is let go on by its own writer: even where others use up the budget, a leg that has
    nothing unstored may read one chunk more.
    """

    def __init__(self, limit_bytes: int, budget: Budget) -> None:
        self._limit_bytes = limit_bytes
        self._budget = budget
        self._chunks: list[bytes] = []
        self._held_bytes = 0  # of them, and of what is being written
        self._writing_bytes = 0
        self._received = ""
        self._closed = False
        self._changed = asyncio.Event()
        self._room = asyncio.Event()

    async def put(self, chunk: bytes) -> None:
        """Add what has arrived; returns when there is room for more."""
        if not self._chunks:
            self._received = messages.now()
        self._chunks.append(chunk)
        self._held_bytes += len(chunk)
        self._budget.take(len(chunk))
        self._changed.set()
        while self._held_bytes > self._limit_bytes or not self._budget.admits(self._held_bytes):
            self._room.clear()
            await self._room.wait()

    async def take(self) -> tuple[str, bytes]:
        """All that has arrived and when it began to; empty at the end.

        What was taken before is stored by now.
        """
        self._give_back(self._writing_bytes)
        self._writing_bytes = 0
        while not self._chunks and not self._closed:
            self._changed.clear()
            await self._changed.wait()
        self._writing_bytes = self._held_bytes
        chunks, self._chunks = self._chunks, []
        return self._received, b"".join(chunks)

    def close(self) -> None:
        """Nothing more arrives."""
        self._closed = True
        self._changed.set()

    def drop(self) -> None:
        """Hold nothing any more, whatever was not stored."""
        self._writing_bytes = 0
        self._give_back(self._held_bytes)

    def _give_back(self, size_bytes: int) -> None:
        self._held_bytes -= size_bytes
        self._budget.give_back(size_bytes)
        self._room.set()


async def _stop(task: asyncio.Future[Any]) -> None:
    if not task.done():
        task.cancel()
        await asyncio.wait([task])


async def _detail(response: httpx.Response) -> str:
    """The beginning of what an error answer says, as far as it comes."""
    text = b""
    with suppress(httpx.HTTPError, TimeoutError):
        async with asyncio.timeout(DETAIL_S):
            async for chunk in response.aiter_bytes():
                text += chunk
                if len(text) >= MAX_DETAIL_BYTES:
                    break
    return text.decode(response.encoding or "utf-8", "replace")


def _words(error: Exception) -> str:
    return str(error) or type(error).__name__
