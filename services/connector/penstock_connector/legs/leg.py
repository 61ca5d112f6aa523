"""Runs one leg: sends one request to an agent server, and stores the response verbatim in RAW.

A leg goes through these phases, and never returns to an earlier phase:
- WAITING: earlier legs of the session have not ended.
- PREPARING: the request is being made; nothing was sent.
- CALLING: the request may have been sent, and the response is read.
- CLOSING: the response has ended or was given up; the last source frame is being written.
- OVER: the last source frame is written, or another connector holds the leg.

The bytes of the response are in RAW before any code interprets them. While the broker is slow, the
response is not read. A leg ends with exactly one `end` or `lost` frame. A connector that releases a
leg to another connector writes neither frame. The code that continues a stream after a cut
connection also continues a leg that was taken over.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, Final

import httpx
import orjson

from penstock import telemetry
from penstock.bus import FenceConflict, HistoryLost, RawWriter
from penstock.settings import ServerAgent
from penstock.start_fields import NotAccepted
from penstock_connector.legs.history import LegHistory
from penstock_connector.legs.leg_span import Milestones, headers_of, with_milestone
from penstock_connector.legs.outcome import RELEASED, TAKEN_OVER, Outcome, ended, lost
from penstock_connector.legs.progress import Progress
from penstock_connector.legs.response import (
    MAX_DETAIL_CHARACTERS,
    ConnectionCut,
    ReattachRefused,
    Resources,
    ResponseBody,
    detail_of,
    text_of,
)
from penstock_connector.legs.stop_requests import StopRequests
from penstock_connector.legs.tasks import stop
from penstock_connector.secrets import without_secrets
from penstock_connector.state.run_state import FrameKind
from penstock_connector.upstreams.base import (
    Call,
    CancelAnswer,
    ReattachState,
    Upstream,
    UpstreamRefused,
)

log = logging.getLogger(__name__)

# the most tries in a row without a new event; after one more such try, the leg ends
REATTACH_TRIES: Final = 5
# The delay before a try to reattach, in seconds. The delay is multiplied by the number of tries in
# a row that have brought no new event.
REATTACH_S: Final = 0.5
# The number of seconds after an accepted write in which the leg certainly still belongs to this
# connector. A takeover by another connector takes longer than this time.
FRESH_S: Final = 0.5
WAS_CUT: Final = "the connection was cut"
HISTORY_LOST: Final = (
    "NATS has lost source frames of this run (a power cut, or an older store that was put back): "
    "nobody can go on with it"
)

# The errors that httpx raises if it has not sent any byte of the request.
_NOT_SENT: Final = (
    httpx.ConnectError,
    httpx.ConnectTimeout,
    httpx.PoolTimeout,
    httpx.LocalProtocolError,
    httpx.UnsupportedProtocol,
)


class Phase(Enum):
    """The phase of a leg; the module's docstring describes the phases."""

    WAITING = "waiting"
    PREPARING = "preparing"
    CALLING = "calling"
    CLOSING = "closing"
    OVER = "over"


@dataclass(frozen=True, slots=True)
class Steps:
    """Contains the functions of the runner that a leg calls."""

    prepare: Callable[[], Awaitable[Call]]  # makes the request; the result is the same each time
    turn: Callable[[], Awaitable[None]]  # returns when the session's earlier legs have ended
    # Stores the agent server's own id of the run, for a connector that takes the leg over.
    remember: Callable[[str], Awaitable[None]]


@dataclass(slots=True)
class Leg:
    """A leg that this process holds; `run` carries the leg out and returns the outcome.

    `history` is given if another connector has called the agent server for this leg. The leg then
    reattaches to the agent server, and `why` is the reason for the takeover. `is_queued` is True if
    the leg's `open` has `calls: false`, because earlier legs of the session have not ended.
    """

    run_id: str
    number: int
    agent: ServerAgent
    upstream: Upstream[Any]
    writer: RawWriter
    resources: Resources
    steps: Steps
    is_queued: bool = False
    history: LegHistory | None = None
    why: str = ""
    requests: StopRequests = field(default_factory=StopRequests)
    phase: Phase = Phase.WAITING
    _progress: Progress = field(default_factory=Progress)
    call: Call | None = None  # the request that was made
    _has_frames: bool = False  # whether this connector has received a complete frame
    _written_at: float = field(default_factory=time.monotonic)
    # the monotonic time at which the request was sent; None after the first bytes of the answer
    _asked_at: float | None = None
    milestones: Milestones = ()  # the steps that the leg has reached, for the leg's span
    _ending: asyncio.Task[None] | None = None  # writes the leg's last source frame

    def __post_init__(self) -> None:
        if self.history is not None:
            self._progress = self.history.progress
        self._progress.run_id = self.run_id

    @property
    def called_url(self) -> str:
        """The URL of the request; if no request was made, the agent's URL."""
        return self.call.url if self.call is not None else self.agent.url

    @property
    def can_move_without_loss(self) -> bool:
        """Whether another connector could take the leg over now without any loss."""
        if self.phase is Phase.WAITING:
            return self.is_queued
        if self.call is None:
            return False
        return survives_disconnect(self.upstream, self._progress.seen, self.run_id)

    async def run(self) -> Outcome:
        """Wait until the leg may begin, stream the response, and write the leg's last source frame.

        If another connector holds the leg, no last frame is written. Exceptions of the adapter are
        not caught.
        """
        try:
            outcome = await self._outcome()
            if outcome.kind != "gone":
                self.phase = Phase.CLOSING
                await self._close()
                await self.end(outcome)
        except HistoryLost as error:
            outcome = await self._end_without_history(error)
        except FenceConflict:
            outcome = TAKEN_OVER
        finally:
            self.phase = Phase.OVER
        telemetry.LEGS.labels(outcome.label).inc()
        log.info("run %s leg %d: %s", self.run_id, self.number, outcome.label)
        if outcome.kind == "lost":
            # The error may repeat the agent server's answer, so it is shown on request only.
            text = without_secrets(self.agent, outcome.facts).get("error")
            log.debug("run %s leg %d: %s", self.run_id, self.number, text)
        return outcome

    async def end(self, outcome: Outcome) -> None:
        """Write the leg's last source frame, unless this frame is being written or is written.

        If the caller is cancelled, the write goes on: a frame whose acknowledgement nobody waits
        for may be stored, and a second last frame would follow it.

        Raises:
            FenceConflict: another connector holds the leg.
            HistoryLost: RAW has lost the last frame of this leg.
            BusError: the server refuses the frame.
        """
        if self._ending is None or (self._ending.done() and self._ending.exception()):
            kind: FrameKind = "lost" if outcome.kind == "lost" else "end"
            payload = orjson.dumps(without_secrets(self.agent, outcome.facts))
            self._ending = asyncio.create_task(self._write(kind, payload))
        await asyncio.shield(self._ending)

    async def _outcome(self) -> Outcome:
        # A leg that was first when it joined the queue need not wait, because the first leg stays
        # first.
        if self.is_queued and not await self._turn_comes():
            return self._stopped or self._cancelled(confirmed=True)
        self.phase = Phase.PREPARING
        stream = asyncio.create_task(self._stream())
        try:
            async with asyncio.timeout(self._time_left_s()):
                if not await self._unless_stopped(stream):
                    return self._stopped or await self._cancel(stream)
                outcome = stream.result()
                if outcome.kind == "lost" and self.requests.cancelled is not None:
                    # the cancel may have broken the connection, so the leg ends as cancelled
                    return await self._cancel(stream)
                return outcome
        except TimeoutError:
            await stop(stream)
            await self._require_ours()
            await self._ask_to_cancel()
            return lost("timeout", f"Request timeout after {self.agent.timeout_s:g} seconds")
        finally:
            await stop(stream)

    async def _turn_comes(self) -> bool:
        """Wait until earlier legs have ended; return False if the leg is asked to stop before
        that."""
        turn = asyncio.ensure_future(self.steps.turn())
        try:
            if await self._unless_stopped(turn):
                turn.result()
                return True
            return False
        finally:
            # if the task were not stopped, a cancelled leg would keep its subscription to the queue
            await stop(turn)

    async def _unless_stopped(self, task: asyncio.Future[Any]) -> bool:
        """Wait for the task; return False if the leg is asked to stop before the task is done."""
        waiter = asyncio.create_task(self.requests.wait())
        try:
            await asyncio.wait({task, waiter}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            waiter.cancel()
        return task.done()

    def _time_left_s(self) -> float:
        spent_s = self.history.spent_s if self.history is not None else 0.0
        return self.agent.timeout_s - spent_s

    # Cancelling

    def _cancelled(self, *, confirmed: bool) -> Outcome:
        asked = self.requests.cancelled
        return ended("cancelled", **(asked.facts if asked else {}), confirmed=confirmed)

    async def _cancel(self, stream: asyncio.Task[Outcome]) -> Outcome:
        """Ask the agent server to stop; if it does not end the stream, close the connection."""
        closes_at = time.monotonic() + self.resources.settings.cancel_grace_s
        if not self._may_have_called:
            await stop(stream)
        answer = await self._ask_to_cancel()
        confirmed = answer is CancelAnswer.NOT_CALLED or (
            answer is CancelAnswer.BY_CLOSING and self._closing_stops_the_run
        )
        if answer not in (CancelAnswer.NOT_CALLED, CancelAnswer.BY_CLOSING):
            # A server that has refused the cancel, or has not answered, may still end the stream.
            await asyncio.wait({stream}, timeout=max(0.0, closes_at - time.monotonic()))
            has_ended = stream.done() and stream.result().kind != "lost"
            # If an Agno server is asked to cancel a run that has not begun, the server closes the
            # stream without a frame. Then no event shows that the run was cancelled, so the leg's
            # last source frame must show the cancel.
            if has_ended and self._has_frames:
                return stream.result()
            confirmed = has_ended and answer is CancelAnswer.ACCEPTED
        await stop(stream)
        if not confirmed:
            log.warning(
                "run %s leg %d: cancelled, and the agent server may go on with it (cancel: %s)",
                self.run_id,
                self.number,
                answer.value,
            )
        return self._cancelled(confirmed=confirmed)

    def lost(self, error: str) -> Outcome:
        """Return the outcome of a leg that this connector gives up for this reason."""
        return lost("upstream_lost" if self._may_have_called else self._not_sent, error)

    @property
    def _stopped(self) -> Outcome | None:
        """The outcome of a leg that was released or abandoned; None if it was cancelled."""
        if (error := self.requests.abandoned) is not None:
            return self.lost(error)
        return RELEASED if self.requests.is_released else None

    @property
    def _not_sent(self) -> str:
        """The code of a leg whose request was not sent. Only the first leg begins the run: a
        caller may repeat a run that failed with `not_sent`."""
        return "not_sent" if self.number == 1 else "upstream_lost"

    @property
    def _may_have_called(self) -> bool:
        """Whether this connector, or an earlier holder of the leg, may have sent the request."""
        if self.history is not None:
            return True
        return self.call is not None and self.phase not in (Phase.WAITING, Phase.PREPARING)

    @property
    def _closing_stops_the_run(self) -> bool:
        """Whether the server stops the run when this connector closes its connection.

        An earlier holder of the leg may hang, and its connection be open.
        """
        seen = self._progress.seen
        return self.history is None and not survives_disconnect(self.upstream, seen, self.run_id)

    async def _ask_to_cancel(self) -> CancelAnswer:
        if not self._may_have_called:
            return CancelAnswer.NOT_CALLED
        client, grace_s = self.resources.client, self.resources.settings.cancel_grace_s
        try:
            async with asyncio.timeout(grace_s):
                if self.call is None:
                    # the agent server runs the leg, but this connector has not reattached yet
                    await self._prepare()
                if self.call is None:
                    return CancelAnswer.NO_ANSWER
                return await self.upstream.cancel(client, self.agent, self.call)
        except (httpx.HTTPError, TimeoutError) as error:
            log.warning("run %s: the upstream did not take the cancel: %r", self.run_id, error)
        except Exception:
            # If the exception were raised here, a cancelled run would become a failed run.
            log.exception("run %s: the adapter could not cancel", self.run_id)
        return CancelAnswer.NO_ANSWER

    # The upstream

    async def _stream(self) -> Outcome:
        if self.is_queued:
            # While the leg waited, another connector may have taken it over and called the agent
            # server. In this case, the fence refuses this `claim`.
            await self._claim()
        prepared = await self._prepare()
        if isinstance(prepared, Outcome):
            return prepared
        await self._require_ours()
        self.phase = Phase.CALLING
        return await self._follow(prepared)

    async def _prepare(self) -> Call | Outcome:
        """Return the request; if the request cannot be made, return the leg's outcome instead."""
        try:
            self.call = await self.steps.prepare()
            return self.call
        except UpstreamRefused as error:
            failed = self._refused(error.status_code, error.detail)
        except httpx.HTTPError as error:
            failed = self._unreachable(error)
        except NotAccepted as error:
            log.warning("run %s: its start is not sent: %s", self.run_id, error)
            failed = lost("not_accepted", f"nothing was sent to the agent server: {error}")
        except Exception as error:
            # The decision or the stored objects do not fit this agent server. Nothing was sent.
            log.exception("run %s: the request cannot be made", self.run_id)
            failed = lost("internal", f"the request cannot be made: {error!r}")
        return failed if self.history is None else self._cannot_continue(str(failed.facts["error"]))

    async def _follow(self, call: Call) -> Outcome:
        """Read the response; if the connection breaks, reattach where the agent server allows
        it."""
        connection, cuts, fruitless = self.writer.connection, 0, 0
        reason, seen = self.why, self._progress.seen
        reattach = self.history is not None
        while True:
            before = (seen.last_event_index, seen.last_id)
            try:
                if not reattach:
                    return await self._send_and_store(call, reattached=False)
                again = await self._reattachment(call)
                if again is None:
                    return self._cannot_continue(reason)
                # Readers of RAW parse the bytes of each connection separately. The new connection
                # gets a new name, so the bytes of two responses are never joined into one frame.
                cuts += 1
                self.writer.connection = f"{connection}.{cuts}"
                if again.produces_again:
                    await self._begin_attempt()
                return await self._send_and_store(again, reattached=True)
            except ConnectionCut as cut:
                reason = f"the connection to the upstream was cut: {cut}"
                if seen.has_final_event:
                    return ended("eof")
                has_moved = (seen.last_event_index, seen.last_id) != before
                fruitless = 0 if has_moved else fruitless + 1
                if fruitless > REATTACH_TRIES:
                    return self._cannot_continue(reason)
                log.warning("run %s: the connection broke (%s); reattaching", self.run_id, cut)
                await asyncio.sleep(REATTACH_S * fruitless)
                reattach = True

    async def _reattachment(self, call: Call) -> Call | None:
        """Return the request that continues the stream; None if there is no safe request.

        Raises:
            ConnectionCut: the server cannot be asked now.
        """
        if not self._progress.can_reattach:
            return None
        client = self.resources.client
        try:
            return await self.upstream.reattach(client, self.agent, call, self._progress.seen)
        except httpx.HTTPError as error:
            raise ConnectionCut(text_of(error)) from error
        except UpstreamRefused as error:
            raise ConnectionCut(str(error)) from error

    async def _begin_attempt(self) -> None:
        """Write a `claim` that begins a new attempt; the agent server then produces the unfinished
        part of the response again."""
        self._progress.attempt += 1
        await self._claim(attempt=self._progress.attempt)
        self._progress.attempt_unanswered = True

    async def _send_and_store(self, call: Call, *, reattached: bool) -> Outcome:
        """Send the request, and store the response.

        Raises:
            ConnectionCut: the connection broke.
        """
        client = self.resources.client
        request = client.build_request(
            call.method,
            call.url,
            headers=headers_of(self.agent, call, self.call),
            content=call.content,
        )
        self._asked_at = time.monotonic() if not reattached else None
        reached = "reattached" if reattached else "request sent"
        self.milestones = with_milestone(self.milestones, reached)
        try:
            response = await client.send(request, stream=True)
        except httpx.HTTPError as error:
            if isinstance(error, _NOT_SENT) and not reattached:
                return self._unreachable(error)
            raise ConnectionCut(f"no answer: {text_of(error)}") from error
        try:
            if not response.is_success:
                return await self._error_answer(response, reattached=reattached)
            return await self._read(response, reattached=reattached)
        finally:
            await response.aclose()

    async def _read(self, response: httpx.Response, *, reattached: bool) -> Outcome:
        progress, seen = self._progress, self._progress.seen
        progress.answered = progress.answered or not reattached
        progress.attempt_unanswered = False
        known = seen.run_id
        self.upstream.answered(response.headers, seen)
        if seen.run_id is not None and seen.run_id != known:
            await self.steps.remember(seen.run_id)
        body = ResponseBody(
            response,
            self.resources,
            self.agent,
            self.upstream,
            progress,
            self._store,
            reattached=reattached,
        )
        try:
            outcome = await body.pump()
        finally:
            self._has_frames = self._has_frames or body.has_frames
        if isinstance(outcome, ReattachRefused):
            return self._cannot_continue(f"{self.why or WAS_CUT}: {outcome.error}")
        if outcome.label == "eof" and seen.has_final_events and not seen.has_final_event:
            raise ConnectionCut("it ended before the run did")
        return outcome

    # The outcomes of a leg

    async def _error_answer(self, response: httpx.Response, *, reattached: bool) -> Outcome:
        detail = await detail_of(response)
        if not reattached:
            return self._refused(response.status_code, detail)
        return self._cannot_continue(
            f"{self.why or WAS_CUT}, and the agent server answered the reattachment with "
            f"{response.status_code}: {detail[:500]}"
        )

    def _cannot_continue(self, reason: str) -> Outcome:
        if self._progress.answered:
            return lost("upstream_lost", reason)
        return lost("outcome_unknown", f"{reason}; nobody knows whether the upstream has begun")

    def _unreachable(self, error: httpx.HTTPError) -> Outcome:
        return lost(
            self._not_sent,
            f"cannot reach the agent server at {self.agent.url}: {text_of(error)}",
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

    async def _end_without_history(self, error: HistoryLost) -> Outcome:
        """End the leg as lost, because RAW has lost frames that later frames depend on.

        The agent server is asked to cancel only after the fence has accepted a `claim`: the loss
        may hide that another connector has taken the leg over and streams the agent's answer.
        """
        outcome, is_ours = lost("history_lost", HISTORY_LOST), False
        while True:
            try:
                await self.writer.continue_after_loss()
                if not is_ours:
                    await self._claim()
                    is_ours = True
                    log.error("run %s leg %d: it is ended: %s", self.run_id, self.number, error)
                    await self._ask_to_cancel()
                    await self._close()
                await self.end(outcome)
                return outcome
            except HistoryLost as again:  # NATS has lost frames again meanwhile
                error = again
            except FenceConflict:
                return TAKEN_OVER

    async def _close(self) -> None:
        """Let the adapter finish; the adapter's exceptions are logged, and do not change the
        outcome."""
        if self.call is None:
            return
        await self._require_ours()
        try:
            await self.upstream.closed(self.agent, self.call, self._progress.seen)
        except Exception:  # the leg must end in any case, and its `end` is not written yet
            log.exception("run %s leg %d: the adapter could not finish", self.run_id, self.number)

    # RAW

    async def _store(self, chunk: bytes, received: str) -> None:
        if self._asked_at is not None:
            waited_s, self._asked_at = time.monotonic() - self._asked_at, None
            self.milestones = with_milestone(self.milestones, "first bytes")
            telemetry.FIRST_BYTES_SECONDS.labels(telemetry.agent_label(self.agent.id)).observe(
                waited_s
            )
        await self._write("bytes", chunk, received)

    async def _write(self, kind: FrameKind, payload: bytes, received: str | None = None) -> None:
        await self.writer.write(kind, payload, leg=self.number, received=received)
        self._written_at = time.monotonic()
        telemetry.FRAMES.labels(kind).inc()

    async def _claim(self, **facts: Any) -> None:
        """Write a `claim` which states that this connector calls the agent server now.

        Raises:
            FenceConflict: another connector holds the leg.
        """
        await self._write("claim", orjson.dumps({"calls": True, **facts}))

    async def _require_ours(self) -> None:
        """Check that this connector still holds the leg.

        If this process was suspended for longer than its lease, another connector may have taken
        the leg over.

        Raises:
            FenceConflict: another connector holds the leg.
        """
        if time.monotonic() - self._written_at > FRESH_S and not await self.writer.holds():
            raise FenceConflict(f"run {self.run_id} was taken over")


def survives_disconnect(upstream: Upstream[Any], seen: ReattachState, run_id: str) -> bool:
    """Return whether the run continues without this connection, and can be reattached to.

    If the adapter raises an exception, the result is False. If the exception were raised here, one
    leg would prevent a stopping connector from handing over all its legs.
    """
    try:
        return upstream.survives_disconnect(seen)
    except Exception:
        log.exception("run %s: the adapter fails to say if the run survives a disconnect", run_id)
        return False
