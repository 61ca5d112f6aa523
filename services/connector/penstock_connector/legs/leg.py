"""One leg: one request to an agent server, its body put on the bus verbatim as it comes.

Bytes first, meaning later: what arrives is in RAW before anybody interprets it. While the broker is
slow the upstream is not read. A leg ends in exactly one `end` or `lost`; who lets it go to another
connector writes neither. A leg that another one held is gone on with by the same code that mends a
cut connection.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

import httpx
import orjson

from penstock import telemetry
from penstock.bus import FenceConflict, HistoryLost, RawWriter
from penstock.bus.budget import Budget
from penstock.settings import AgentConfig
from penstock.sse import Frame, FrameTooLarge
from penstock.starts import NotAccepted
from penstock_connector.legs.body import Body, Frames
from penstock_connector.legs.not_a_stream import MAX_BYTES, Beginning
from penstock_connector.settings import ConnectorSettings
from penstock_connector.state.leg_history import Past
from penstock_connector.upstreams.base import Attachment, Call, Refused, Upstream
from penstock_connector.upstreams.secrets import without_secrets

log = logging.getLogger(__name__)

MAX_DETAIL_CHARACTERS = 4000
MAX_DETAIL_BYTES = 4 * MAX_DETAIL_CHARACTERS
DETAIL_S = 5.0
REATTACH_TRIES = 5  # without an event in between
REATTACH_S = 0.5
HISTORY_LOST = (
    "NATS has lost source frames of this run (a power cut, or an older store that was put back): "
    "nobody can go on with it"
)
FRESH_S = 0.5  # after a write nobody can have taken the leg over so soon: asking takes longer

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

    kind: str  # "end" | "lost"; "gone" writes nothing, for the leg is somebody else's
    facts: dict[str, Any]

    @property
    def label(self) -> str:
        """For the metric: eof, cancelled, taken_over, released, or the code of what was lost."""
        return str(self.facts.get("outcome") or self.facts.get("code"))


def ended(outcome: str, **facts: Any) -> Outcome:
    """The body ended cleanly: `eof`, or `cancelled`."""
    return Outcome("end", {"outcome": outcome, **facts})


def lost(code: str, error: str, **facts: Any) -> Outcome:
    """It did not, or could not begin; the codes are lifecycle.failed's."""
    return Outcome("lost", {"code": code, "error": error, **facts})


TAKEN_OVER = Outcome("gone", {"outcome": "taken_over"})  # the fence refused us
RELEASED = Outcome("gone", {"outcome": "released"})  # we let go of it


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
    budget: Budget  # of what all legs together have not stored yet
    frame_budget: Budget  # of the frames that all legs are in the middle of
    prepare: Callable[[], Awaitable[Call]]  # the adapter's start or resume
    turn: Callable[[], Awaitable[None]]  # until the session's earlier legs have ended
    remember: Callable[[str], Awaitable[None]]  # the server's name for the run, for who comes next
    queued: bool = False  # others are before it: its `open` does not say that it calls
    past: Past | None = None  # another connector has called the upstream: come back to it
    why: str = ""  # it is here now
    cancelled: asyncio.Event = field(default_factory=asyncio.Event)
    cancelled_by: dict[str, str] = field(default_factory=dict)
    _attempt: int = 1
    _unanswered_attempt: bool = False
    _answered: bool = False  # the upstream has begun to, whoever heard it
    _seen: Attachment = field(default_factory=Attachment)
    _spoke: bool = False  # the upstream has said something
    _call: Call | None = None
    _told: asyncio.Event = field(default_factory=asyncio.Event)  # to end, in one of three ways
    _letting_go: Outcome | None = None
    _written_at: float = field(default_factory=time.monotonic)

    def __post_init__(self) -> None:
        if self.past is not None:
            self._seen, self._attempt = self.past.seen, self.past.attempt
            self._answered = self.past.answered
            self._unanswered_attempt = self.past.unanswered_attempt

    def cancel(self, by: str, reason: str) -> None:
        """Ask the leg to end; it says when it has."""
        self.cancelled_by = {"by": by, "reason": reason}
        self.cancelled.set()
        self._told.set()

    def release(self) -> None:
        """Let go of the upstream and say nothing: somebody else is about to go on with it."""
        self._let_go(RELEASED)

    def abandon(self, text: str) -> None:
        """Let go of the upstream, and say that it is lost."""
        self._let_go(lost("upstream_lost", text))

    @property
    def called(self) -> str:
        """Where the request went, or would have gone."""
        return self._call.url if self._call is not None else self.agent.url

    @property
    def moves_freely(self) -> bool:
        """Whether another connector can go on with it now as if nothing had been."""
        if self._call is None:
            return self.queued
        return self.upstream.outlives_us(self._seen)

    async def run(self) -> Outcome:
        """Wait for the turn, stream, and write how it ended, unless somebody else has the leg."""
        try:
            outcome = await self._outcome()
            if outcome.kind != "gone":
                await self._close()
                facts = without_secrets(self.agent, outcome.facts)
                await self._write(outcome.kind, orjson.dumps(facts))
        except HistoryLost as error:
            outcome = await self._end_without_history(error)
        except FenceConflict:
            outcome = TAKEN_OVER
        telemetry.LEGS.labels(outcome.label).inc()
        words = f": {outcome.facts.get('error')}" if outcome.kind == "lost" else ""
        log.info("run %s leg %d: %s%s", self.run_id, self.number, outcome.label, words)
        return outcome

    async def _end_without_history(self, error: HistoryLost) -> Outcome:
        """RAW has lost frames of ours, and what follows makes no sense without them."""
        log.error("run %s leg %d: it is ended: %s", self.run_id, self.number, error)
        await self._ask_to_cancel()
        await self._close()
        outcome = lost("history_lost", HISTORY_LOST)
        try:
            await self.writer.go_on()
            await self._write(outcome.kind, orjson.dumps(outcome.facts))
        except FenceConflict:
            return TAKEN_OVER
        return outcome

    def _let_go(self, how: Outcome) -> None:
        self._letting_go = self._letting_go or how
        self._told.set()

    async def _outcome(self) -> Outcome:
        if self.past is None:
            turn = asyncio.ensure_future(self.turn())
            if not await self._unless_told(turn):
                await _stop(turn)
                return self._letting_go or ended("cancelled", **self.cancelled_by, confirmed=True)
            turn.result()
        stream = asyncio.create_task(self._stream())
        try:
            async with asyncio.timeout(self._time_left_s()):
                if not await self._unless_told(stream):
                    return self._letting_go or await self._cancel(stream)
                outcome = stream.result()
                if outcome.kind == "lost" and self.cancelled.is_set():
                    return await self._cancel(stream)  # it is what was asked for
                return outcome
        except TimeoutError:
            await _stop(stream)
            await self._require_ours()
            await self._ask_to_cancel()
            return lost("timeout", f"Request timeout after {self.agent.timeout_s:g} seconds")
        finally:
            await _stop(stream)

    def _time_left_s(self) -> float:
        return self.agent.timeout_s - (self.past.spent_s if self.past is not None else 0.0)

    async def _unless_told(self, task: asyncio.Future[Any]) -> bool:
        """True when the task was done before anybody told the leg to end."""
        waiter = asyncio.create_task(self._told.wait())
        try:
            await asyncio.wait({task, waiter}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            waiter.cancel()
        return task.done()

    async def _cancel(self, stream: asyncio.Task[Outcome]) -> Outcome:
        """Let the upstream end by itself if it can be asked, else close the connection."""
        confirmed = True
        if await self._ask_to_cancel():
            await asyncio.wait({stream}, timeout=self.settings.cancel_grace_s)
            confirmed = stream.done() and stream.result().kind != "lost"
            if confirmed and self._spoke:
                return stream.result()
            # Agno that is asked before it has begun ends without a word
        await _stop(stream)
        return ended("cancelled", **self.cancelled_by, confirmed=confirmed)

    async def _ask_to_cancel(self) -> bool:
        try:
            async with asyncio.timeout(self.settings.cancel_grace_s):
                if self._call is None and self.past is not None:
                    await self._prepare()  # it runs, and we have not come back to it yet
                if self._call is None:
                    return False
                return await self.upstream.cancel(self.client, self.agent, self._call)
        except (httpx.HTTPError, TimeoutError) as error:
            log.warning("run %s: the upstream did not take the cancel: %r", self.run_id, error)
            return False

    async def _stream(self) -> Outcome:
        if self.queued:
            await self._claim()  # somebody may have passed us over, and called
        prepared = await self._prepare()
        if isinstance(prepared, Outcome):
            return prepared
        await self._require_ours()
        return await self._attached(prepared, come_back=self.past is not None)

    async def _prepare(self) -> Call | Outcome:
        """The request; how the leg ended, where there can be none."""
        try:
            self._call = await self.prepare()
            return self._call
        except Refused as error:
            failed = self._refused(error.status_code, error.detail)
        except httpx.HTTPError as error:
            failed = self._unreachable(error)
        except NotAccepted as error:
            log.warning("run %s: its start is not sent: %s", self.run_id, error)
            failed = lost("not_accepted", f"nothing was sent to the agent server: {error}")
        except Exception as error:
            # the decision or the stored objects do not fit this upstream: nothing was sent
            log.exception("run %s: the request cannot be made", self.run_id)
            failed = lost("internal", f"the request cannot be made: {error!r}")
        return failed if self.past is None else self._no_way_back(str(failed.facts["error"]))

    async def _attached(self, call: Call, come_back: bool) -> Outcome:
        """Stream; where the connection breaks and the upstream allows it, go on with another."""
        connection, cuts, in_vain = self.writer.connection, 0, 0
        reason = self.why
        while True:
            before = (self._seen.last_event_index, self._seen.last_id)
            try:
                if not come_back:
                    return await self._respond(call, attached_before=False)
                again = await self._way_back(call)
                if again is None:
                    return self._no_way_back(reason)
                # another response, whose bytes must not be joined with those before
                cuts += 1
                self.writer.connection = f"{connection}.{cuts}"
                if again.produces_again:
                    self._attempt += 1
                    await self._claim(attempt=self._attempt)
                    self._unanswered_attempt = True
                return await self._respond(again, attached_before=True)
            except _Cut as cut:
                reason = f"the connection to the upstream was cut: {cut}"
                if self._seen.over:
                    return ended("eof")
                moved = (self._seen.last_event_index, self._seen.last_id) != before
                in_vain = 0 if moved else in_vain + 1
                if in_vain > REATTACH_TRIES:
                    return self._no_way_back(reason)
                log.warning("run %s: the connection broke (%s), coming back", self.run_id, cut)
                await asyncio.sleep(REATTACH_S * in_vain)
                come_back = True

    async def _way_back(self, call: Call) -> Call | None:
        if self._unanswered_attempt:
            return None  # nobody knows whether it has begun
        try:
            return await self.upstream.reattach(self.client, self.agent, call, self._seen)
        except httpx.HTTPError as error:
            raise _Cut(_words(error)) from error
        except Refused as error:
            raise _Cut(str(error)) from error

    def _no_way_back(self, reason: str) -> Outcome:
        """How a leg ended that cannot be gone on with."""
        if self._answered:
            return lost("upstream_lost", reason)
        return lost("outcome_unknown", f"{reason}; nobody knows whether the upstream has begun")

    async def _respond(self, call: Call, attached_before: bool) -> Outcome:
        request = self.client.build_request(
            call.method,
            call.url,
            # whatever is compressed could not go on verbatim
            headers={"accept-encoding": "identity", **self.agent.headers, **call.headers},
            content=call.content,
        )
        try:
            response = await self.client.send(request, stream=True)
        except httpx.HTTPError as error:
            if isinstance(error, _NOT_SENT) and not attached_before:
                return self._unreachable(error)
            raise _Cut(f"no answer: {_words(error)}") from error
        try:
            if not response.is_success:
                detail = await _detail(response)
                if attached_before:
                    return self._no_way_back(
                        f"{self.why or 'the connection was cut'}, and the agent server answered "
                        f"{response.status_code} to who came back: {detail[:500]}"
                    )
                return self._refused(response.status_code, detail)
            self._answered = self._answered or not attached_before
            self._unanswered_attempt = False
            known = self._seen.run_id
            self.upstream.answered(response.headers, self._seen)
            if self._seen.run_id is not None and self._seen.run_id != known:
                await self.remember(self._seen.run_id)
            outcome = await self._pump(response, attached_before)
            if outcome.label == "eof" and self._seen.says_when_over and not self._seen.over:
                raise _Cut("it ended before the run did")
            return outcome
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

    async def _pump(self, response: httpx.Response, attached_before: bool) -> Outcome:
        """Read and write side by side; what arrives during a write goes into the next one."""
        stamp = self.writer.bus.clock.stamp
        body = Body(self.settings.max_buffered_bytes, self.budget, stamp)
        try:
            return await self._pumped(response, body, attached_before)
        finally:
            body.drop()

    async def _pumped(self, response: httpx.Response, body: Body, attached_before: bool) -> Outcome:
        reading = asyncio.create_task(self._read(response, body, attached_before))
        writing = asyncio.create_task(self._write_out(body))
        try:
            await asyncio.wait({reading, writing}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            await _stop(reading)
            await response.aclose()
            # never cut off in the middle of a write: the next one could not tell what stands
            await asyncio.wait({writing})
        writing.result()
        return reading.result()

    async def _write_out(self, body: Body) -> None:
        while True:
            received, chunk = await body.take()
            if not chunk:
                return
            await self._write("bytes", chunk, received)
            self._answered = True

    async def _read(self, response: httpx.Response, body: Body, attached_before: bool) -> Outcome:
        frames = Frames(self.settings.max_frame_bytes, self.frame_budget)
        limit, read_bytes = self.settings.max_response_bytes, 0
        beginning = Beginning(response.headers.get("content-type", ""))
        try:
            async for chunk in response.aiter_bytes():
                read_bytes += len(chunk)
                if read_bytes > limit:
                    words = f"a response is larger than {limit} bytes"
                    return lost("limit", f"the upstream sent too much: {words}")
                beginning.feed(chunk)
                if beginning.is_other:
                    await body.put(chunk[: MAX_BYTES + len(chunk) - read_bytes])
                    if read_bytes >= MAX_BYTES:
                        break
                    continue
                for frame in await self._parsed(frames, chunk, body):
                    self._spoke = True
                    self.upstream.watch(frame, self._seen)
                if attached_before and self._seen.refusal is not None:
                    return self._no_way_back(
                        f"{self.why or 'the connection was cut'}: {self._seen.refusal}"
                    )
                await body.put(chunk)
                if attached_before and self._seen.over:
                    return ended("eof")  # what we came back by may go on after the leg
            beginning.end()
            if beginning.is_other:
                return self._not_a_stream(response, beginning, attached_before)
            return ended("eof")
        except FrameTooLarge as error:
            return lost("limit", f"the upstream sent too much: {error}")
        except httpx.HTTPError as error:
            raise _Cut(_words(error)) from error
        finally:
            frames.drop()
            body.close()

    def _not_a_stream(
        self, response: httpx.Response, beginning: Beginning, attached_before: bool
    ) -> Outcome:
        error = beginning.error(response.status_code, self.agent.protocol, self.agent.url)
        if attached_before:
            return self._no_way_back(f"{self.why or 'the connection was cut'}, and {error}")
        return lost("not_a_stream", error, detail=beginning.detail)

    async def _parsed(self, frames: Frames, chunk: bytes, body: Body) -> list[Frame]:
        try:
            return frames.feed(chunk)
        except FrameTooLarge:
            await body.put(chunk)  # as it came, also what nobody can read
            raise

    # what stands in RAW

    async def _write(self, kind: str, payload: bytes, received: str | None = None) -> None:
        await self.writer.write(kind, payload, leg=self.number, received=received)
        self._written_at = time.monotonic()
        telemetry.FRAMES.labels(kind).inc()

    async def _claim(self, **facts: Any) -> None:
        """Say that the upstream is called now, unless somebody else has the leg."""
        await self._write("claim", orjson.dumps({"calls": True, **facts}))

    async def _require_ours(self) -> None:
        """Raises FenceConflict when somebody has taken the leg over, as one may who was asleep."""
        if time.monotonic() - self._written_at > FRESH_S and not await self.writer.holds():
            raise FenceConflict(f"run {self.run_id} was taken over")

    async def _close(self) -> None:
        """The adapter puts its things in order; what fails there changes no outcome."""
        if self._call is None:
            return
        await self._require_ours()
        try:
            await self.upstream.closed(self.agent, self._call, self._seen)
        except Exception:
            log.exception("run %s leg %d: not put in order", self.run_id, self.number)


async def _stop(task: asyncio.Future[Any]) -> None:
    if not task.done():
        task.cancel()
        await asyncio.wait([task])
    if not task.cancelled():
        task.exception()  # nobody else asks for it


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
