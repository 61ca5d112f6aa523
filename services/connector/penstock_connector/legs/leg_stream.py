"""Sends a leg's request to the agent server, stores the response, and reattaches after a cut."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any, Final

import httpx

from penstock import telemetry
from penstock.settings import ServerAgent
from penstock_connector.legs.leg_span import Milestones, headers_of, with_milestone
from penstock_connector.legs.leg_writer import LegWriter
from penstock_connector.legs.outcome import EOF, LegEnd, Outcome, broken_off, refused, unreachable
from penstock_connector.legs.progress import LegHistory, Progress
from penstock_connector.legs.response import (
    ConnectionCut,
    ReattachRefused,
    Resources,
    ResponseBody,
    detail_of,
    text_of,
)
from penstock_connector.upstreams.base import Call, Upstream, UpstreamRefused

log = logging.getLogger(__name__)

# the most tries in a row without a new event; after one more such try, the leg ends
REATTACH_TRIES: Final = 5
# The delay before a try to reattach, in seconds. The delay is multiplied by the number of tries in
# a row that have brought no new event.
REATTACH_S: Final = 0.5
WAS_CUT: Final = "the connection was cut"

# The errors that httpx raises if it has not sent any byte of the request.
_NOT_SENT: Final = (
    httpx.ConnectError,
    httpx.ConnectTimeout,
    httpx.PoolTimeout,
    httpx.LocalProtocolError,
    httpx.UnsupportedProtocol,
)


@dataclass(frozen=True, slots=True)
class Steps:
    """Contains the functions of the runner that a leg calls."""

    prepare: Callable[[], Awaitable[Call]]  # makes the request; the result is the same each time
    turn: Callable[[], Awaitable[None]]  # returns when the session's earlier legs have ended
    # Stores the agent server's own id of the run, for a connector that takes the leg over.
    remember: Callable[[str], Awaitable[None]]


@dataclass(frozen=True, slots=True, kw_only=True)
class LegSpec:
    """What a connector knows of a leg when the leg begins here.

    If another connector has called the agent server for this leg, `history` is set, and the leg
    reattaches to the agent server; `reason` tells why the leg was taken over. `is_queued` is True
    if the leg's `open` has `calls: false`, because earlier legs of the session have not ended.
    """

    run_id: str
    number: int
    agent: ServerAgent
    upstream: Upstream[Any]
    resources: Resources
    steps: Steps
    is_queued: bool = False
    history: LegHistory | None = None
    reason: str = ""

    @property
    def not_sent_code(self) -> str:
        """The code of a leg that was not sent. A caller may repeat a run that failed with
        `not_sent`."""
        return "not_sent" if self.number == 1 else "upstream_lost"


class LegStream:
    """The requests of one leg, from the moment at which the first byte may be sent.

    `call` is the request that opens the leg, or that an earlier holder of the leg has sent. All
    methods but `run` raise ConnectionCut if the connection broke, or the server cannot be asked.
    """

    def __init__(self, spec: LegSpec, call: Call, writer: LegWriter, progress: Progress) -> None:
        self._spec = spec
        self._call = call
        self._writer = writer
        self._progress = progress
        self._connection = writer.raw.connection
        self._cuts = 0
        # the monotonic time at which the request was sent; None after the first bytes of the answer
        self._asked_at: float | None = None
        self.has_frames = False  # whether this connector has received a complete frame
        self.milestones: Milestones = ()  # the steps that the leg has reached, for the leg's span

    async def run(self) -> Outcome:
        """Store the whole response; after each cut, reattach if the agent server allows it."""
        spec, seen = self._spec, self._progress.seen
        reason = spec.reason if spec.history is not None else None  # why the stream was cut
        fruitless = 0
        while True:
            before = (seen.last_event_index, seen.last_id)
            try:
                if reason is None:
                    return await self._send_and_store(self._call, reattached=False)
                return await self._reattach(reason)
            except ConnectionCut as cut:
                reason = f"the connection to the upstream was cut: {cut}"
            if seen.has_final_event:
                return EOF
            has_moved = (seen.last_event_index, seen.last_id) != before
            fruitless = 0 if has_moved else fruitless + 1
            if fruitless > REATTACH_TRIES:
                return self._broken_off(reason)
            log.warning("run %s: %s; reattaching", spec.run_id, reason)
            await asyncio.sleep(REATTACH_S * fruitless)

    async def _reattach(self, reason: str) -> Outcome:
        """Continue the stream by a second request; end the leg if no second request is safe."""
        again = await self._reattachment()
        if again is None:
            return self._broken_off(reason)
        # Readers of RAW parse the bytes of each connection separately. The new connection gets a
        # new name, so the bytes of two responses are never joined into one frame.
        self._cuts += 1
        await self._writer.raw.rename(f"{self._connection}.{self._cuts}")
        if again.produces_again:
            # the agent server produces the unfinished part of the response again
            self._progress.attempt += 1
            await self._writer.claim(attempt=self._progress.attempt)
            self._progress.attempt_unanswered = True
        return await self._send_and_store(again, reattached=True)

    async def _reattachment(self) -> Call | None:
        """Return the request that continues the stream; None if there is no safe request."""
        if not self._progress.can_reattach:
            return None
        spec = self._spec
        try:
            return await spec.upstream.reattach(spec.agent, self._call, self._progress.seen)
        except httpx.HTTPError as error:
            raise ConnectionCut(text_of(error)) from error
        except UpstreamRefused as error:
            raise ConnectionCut(str(error)) from error

    async def _send_and_store(self, call: Call, *, reattached: bool) -> Outcome:
        spec = self._spec
        client = spec.resources.client
        request = client.build_request(
            call.method,
            call.url,
            headers=headers_of(spec.agent, call, self._call, run_id=spec.run_id, leg=spec.number),
            content=call.content,
        )
        self._asked_at = time.monotonic() if not reattached else None
        reached = "reattached" if reattached else "request sent"
        self.milestones = with_milestone(self.milestones, reached)
        try:
            response = await client.send(request, stream=True)
        except httpx.HTTPError as error:
            if isinstance(error, _NOT_SENT) and not reattached:
                return unreachable(spec.not_sent_code, spec.agent.url, text_of(error))
            raise ConnectionCut(f"no answer: {text_of(error)}") from error
        try:
            if not response.is_success:
                return await self._error_answer(response, reattached=reattached)
            return await self._read(response, reattached=reattached)
        finally:
            await response.aclose()

    async def _read(self, response: httpx.Response, *, reattached: bool) -> Outcome:
        spec, progress, seen = self._spec, self._progress, self._progress.seen
        progress.answered = progress.answered or not reattached
        progress.attempt_unanswered = False
        known = seen.run_id
        spec.upstream.answered(response.headers, seen)
        if seen.run_id is not None and seen.run_id != known:
            await spec.steps.remember(seen.run_id)
        body = ResponseBody(
            response,
            resources=spec.resources,
            agent=spec.agent,
            upstream=spec.upstream,
            progress=progress,
            store=self._store,
            reattached=reattached,
        )
        try:
            outcome = await body.pump()
        finally:
            self.has_frames = self.has_frames or body.has_frames
        if isinstance(outcome, ReattachRefused):
            return self._broken_off(f"{spec.reason or WAS_CUT}: {outcome.error}")
        if outcome.end is LegEnd.EOF and seen.has_final_events and not seen.has_final_event:
            raise ConnectionCut("it ended before the run did")
        return outcome

    async def _error_answer(self, response: httpx.Response, *, reattached: bool) -> Outcome:
        detail = await detail_of(response)
        if not reattached:
            return refused(response.status_code, detail)
        return self._broken_off(
            f"{self._spec.reason or WAS_CUT}, and the agent server answered the reattachment with "
            f"{response.status_code}: {detail[:500]}"
        )

    def _broken_off(self, reason: str) -> Outcome:
        return broken_off(reason, was_answered=self._progress.answered)

    async def _store(self, chunk: bytes, received: str) -> None:
        if self._asked_at is not None:
            waited_s, self._asked_at = time.monotonic() - self._asked_at, None
            self.milestones = with_milestone(self.milestones, "first bytes")
            label = telemetry.agent_label(self._spec.agent.id)
            telemetry.FIRST_BYTES_SECONDS.labels(label).observe(waited_s)
        await self._writer.write("bytes", chunk, received)
