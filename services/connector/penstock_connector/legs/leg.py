"""Runs one leg: sends one request to an agent server, and stores the response verbatim in RAW.

A leg goes through these phases, and never returns to an earlier phase:
- WAITING: earlier legs of the session have not ended.
- PREPARING: the request is being made; nothing was sent.
- CALLING: the request may have been sent, and the response is read (`LegStream`).
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
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, Final

import httpx

from penstock import telemetry
from penstock.bus import FenceConflict, HistoryLost
from penstock.bus.records.runs import CancelCommand
from penstock.start_fields import NotAccepted
from penstock_connector.legs.leg_span import Milestones
from penstock_connector.legs.leg_stream import LegSpec, LegStream
from penstock_connector.legs.leg_writer import LegWriter
from penstock_connector.legs.outcome import (
    RELEASED,
    TAKEN_OVER,
    Outcome,
    broken_off,
    ended_as_cancelled,
    lost,
    refused,
    unreachable,
)
from penstock_connector.legs.progress import Progress
from penstock_connector.legs.response import text_of
from penstock_connector.secrets import without_secrets
from penstock_connector.upstreams.base import (
    Call,
    CancelAnswer,
    ReattachState,
    Upstream,
    UpstreamRefused,
)


@dataclass(slots=True)
class StopRequests:
    """Requests to stop a leg; they may come at any time and more than once.

    If a leg is both cancelled and released, the connector that takes the leg over cancels the run.
    If a leg is both released and abandoned, only the first request counts.
    """

    cancelled: CancelCommand | None = None
    is_released: bool = False
    abandoned: str | None = None  # the error for the last frame
    _asked: asyncio.Event = field(default_factory=asyncio.Event)

    def cancel(self, command: CancelCommand) -> None:
        self.cancelled = command
        self._asked.set()

    def release(self) -> None:
        """Ask the leg to close its connection without a last frame: another connector takes it
        next."""
        self.is_released = self.abandoned is None
        self._asked.set()

    def abandon(self, error: str) -> None:
        """Ask the leg to close its connection, and to write a `lost` frame with this error."""
        if not self.is_released:
            self.abandoned = self.abandoned or error
        self._asked.set()

    async def wait(self) -> None:
        await self._asked.wait()


log = logging.getLogger(__name__)

HISTORY_LOST: Final = (
    "NATS has lost source frames of this run (a power cut, or an older store that was put back): "
    "nobody can go on with it"
)


class Phase(Enum):
    """The phase of a leg; the module's docstring describes the phases."""

    WAITING = "waiting"
    PREPARING = "preparing"
    CALLING = "calling"
    CLOSING = "closing"
    OVER = "over"


class Leg:
    """A leg that this process holds; `run` carries the leg out and returns the outcome."""

    __slots__ = ("_progress", "_stream", "call", "phase", "spec", "stop_requests", "writer")

    def __init__(self, spec: LegSpec, writer: LegWriter) -> None:
        self.spec = spec
        self.writer = writer
        self.stop_requests = StopRequests()
        self.phase = Phase.WAITING
        self.call: Call | None = None  # the request, once it was made
        self._stream: LegStream | None = None  # from CALLING on
        self._progress = spec.history.progress if spec.history is not None else Progress()
        self._progress.run_id = spec.run_id

    @property
    def called_url(self) -> str:
        return self.call.url if self.call is not None else self.spec.agent.url

    @property
    def milestones(self) -> Milestones:
        return self._stream.milestones if self._stream is not None else ()

    @property
    def can_move_without_loss(self) -> bool:
        if self.phase is Phase.WAITING:
            return self.spec.is_queued
        if self.call is None:
            return False
        return survives_disconnect(self.spec.upstream, self._progress.seen, self.spec.run_id)

    async def run(self) -> Outcome:
        """Wait until the leg may begin, stream the response, and write the leg's last source frame.

        If another connector holds the leg, no last frame is written. Exceptions of the adapter are
        not caught.
        """
        spec = self.spec
        try:
            outcome = await self._outcome()
            if outcome.is_ours:
                self.phase = Phase.CLOSING
                await self._close()
                await self.writer.end(outcome)
        except HistoryLost as error:
            outcome = await self._end_without_history(error)
        except FenceConflict:
            outcome = TAKEN_OVER
        finally:
            self.phase = Phase.OVER
        telemetry.LEGS.labels(outcome.label).inc()
        log.info("run %s leg %d: %s", spec.run_id, spec.number, outcome.label)
        if outcome.is_lost:
            # The error may repeat the agent server's answer, so it is shown on request only.
            text = without_secrets(spec.agent, outcome.facts).get("error")
            log.debug("run %s leg %d: %s", spec.run_id, spec.number, text)
        return outcome

    def lost(self, error: str) -> Outcome:
        code = "upstream_lost" if self._may_have_called else self.spec.not_sent_code
        return lost(code, error)

    async def _outcome(self) -> Outcome:
        # A leg that was first when it joined the queue need not wait, because the first leg stays
        # first.
        if self.spec.is_queued and not await self._turn_comes():
            return self._stopped or self._cancelled(confirmed=True)
        self.phase = Phase.PREPARING
        streaming = asyncio.create_task(self._prepare_and_stream())
        try:
            async with asyncio.timeout(self._time_left_s):
                if not await self._unless_stopped(streaming):
                    return self._stopped or await self._cancel(streaming)
                outcome = streaming.result()
                if outcome.is_lost and self.stop_requests.cancelled is not None:
                    # the cancel may have broken the connection, so the leg ends as cancelled
                    return await self._cancel(streaming)
                return outcome
        except TimeoutError:
            await stop(streaming)
            await self.writer.require_ours()
            await self._ask_to_cancel()
            return lost("timeout", f"Request timeout after {self.spec.agent.timeout_s:g} seconds")
        finally:
            await stop(streaming)

    async def _turn_comes(self) -> bool:
        """Wait until earlier legs have ended; return False if the leg is asked to stop before
        that."""
        turn = asyncio.ensure_future(self.spec.steps.turn())
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
        waiter = asyncio.create_task(self.stop_requests.wait())
        try:
            await asyncio.wait({task, waiter}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            waiter.cancel()
        return task.done()

    @property
    def _time_left_s(self) -> float:
        history = self.spec.history
        return self.spec.agent.timeout_s - (history.spent_s if history is not None else 0.0)

    # PREPARING and CALLING

    async def _prepare_and_stream(self) -> Outcome:
        if self.spec.is_queued:
            # While the leg waited, another connector may have taken it over and called the agent
            # server. In this case, the fence refuses this `claim`.
            await self.writer.claim()
        prepared = await self._prepare()
        if isinstance(prepared, Outcome):
            return prepared
        await self.writer.require_ours()
        self._stream = LegStream(self.spec, prepared, self.writer, self._progress)
        self.phase = Phase.CALLING
        return await self._stream.run()

    async def _prepare(self) -> Call | Outcome:
        """Return the request; if the request cannot be made, return the leg's outcome instead."""
        spec = self.spec
        try:
            self.call = await spec.steps.prepare()
            return self.call
        except UpstreamRefused as error:
            failed = refused(error.status_code, error.detail)
        except httpx.HTTPError as error:
            failed = unreachable(spec.not_sent_code, spec.agent.url, text_of(error))
        except NotAccepted as error:
            log.warning("run %s: its start is not sent: %s", spec.run_id, error)
            failed = lost("not_accepted", f"nothing was sent to the agent server: {error}")
        except Exception as error:
            # The decision or the stored objects do not fit this agent server. Nothing was sent.
            log.exception("run %s: the request cannot be made", spec.run_id)
            failed = lost("internal", f"the request cannot be made: {error!r}")
        if spec.history is None:
            return failed
        return broken_off(str(failed.facts["error"]), was_answered=self._progress.answered)

    # Stopping and cancelling

    @property
    def _stopped(self) -> Outcome | None:
        if (error := self.stop_requests.abandoned) is not None:
            return self.lost(error)
        return RELEASED if self.stop_requests.is_released else None

    def _cancelled(self, *, confirmed: bool) -> Outcome:
        asked = self.stop_requests.cancelled
        return ended_as_cancelled(asked.facts if asked else {}, confirmed=confirmed)

    async def _cancel(self, streaming: asyncio.Task[Outcome]) -> Outcome:
        """Ask the agent server to stop; if it does not end the stream, close the connection."""
        closes_at = time.monotonic() + self.spec.resources.settings.cancel_grace_s
        if not self._may_have_called:
            await stop(streaming)
        cancelled = self.stop_requests.cancelled
        if cancelled is not None and cancelled.budget is not None and self._may_have_called:
            # The agent server's own event about the cancel does not know the budget.
            await self.writer.claim(cancelled=cancelled.facts)
        answer = await self._ask_to_cancel()
        confirmed = answer is CancelAnswer.NOT_CALLED or (
            answer is CancelAnswer.BY_CLOSING and self._closing_stops_the_run
        )
        if answer not in (CancelAnswer.NOT_CALLED, CancelAnswer.BY_CLOSING):
            # A server that has refused the cancel, or has not answered, may still end the stream.
            await asyncio.wait({streaming}, timeout=max(0.0, closes_at - time.monotonic()))
            has_ended = streaming.done() and not streaming.result().is_lost
            # If an Agno server is asked to cancel a run that has not begun, the server closes the
            # stream without a frame. Then no event shows that the run was cancelled, so the leg's
            # last source frame must show the cancel.
            if has_ended and self._stream is not None and self._stream.has_frames:
                return streaming.result()
            confirmed = has_ended and answer is CancelAnswer.ACCEPTED
        await stop(streaming)
        if not confirmed:
            log.warning(
                "run %s leg %d: cancelled, and the agent server may go on with it (cancel: %s)",
                self.spec.run_id,
                self.spec.number,
                answer.value,
            )
        return self._cancelled(confirmed=confirmed)

    @property
    def _may_have_called(self) -> bool:
        return self.spec.history is not None or self._stream is not None

    @property
    def _closing_stops_the_run(self) -> bool:
        """Whether closing this connection stops the run. An earlier holder's may still be open."""
        spec, seen = self.spec, self._progress.seen
        return spec.history is None and not survives_disconnect(spec.upstream, seen, spec.run_id)

    async def _ask_to_cancel(self) -> CancelAnswer:
        if not self._may_have_called:
            return CancelAnswer.NOT_CALLED
        spec = self.spec
        try:
            async with asyncio.timeout(spec.resources.settings.cancel_grace_s):
                if self.call is None:
                    # the agent server runs the leg, but this connector has not reattached yet
                    await self._prepare()
                if self.call is None:
                    return CancelAnswer.NO_ANSWER
                return await spec.upstream.cancel(spec.agent, self.call)
        except (httpx.HTTPError, TimeoutError) as error:
            log.warning("run %s: the upstream did not take the cancel: %r", spec.run_id, error)
        except Exception:
            # If the exception were raised here, a cancelled run would become a failed run.
            log.exception("run %s: the adapter could not cancel", spec.run_id)
        return CancelAnswer.NO_ANSWER

    # CLOSING

    async def _end_without_history(self, error: HistoryLost) -> Outcome:
        """End the leg as lost, because RAW has lost frames that later frames depend on.

        The agent server is asked to cancel only after the fence has accepted a `claim`: the loss
        may hide that another connector has taken the leg over and streams the agent's answer.
        """
        spec, writer = self.spec, self.writer
        outcome, is_ours = lost("history_lost", HISTORY_LOST), False
        while True:
            try:
                await writer.raw.continue_after_loss()
                if not is_ours:
                    await writer.claim()
                    is_ours = True
                    log.error("run %s leg %d: it is ended: %s", spec.run_id, spec.number, error)
                    await self._ask_to_cancel()
                    await self._close()
                await writer.end(outcome)
                return outcome
            except HistoryLost as again:  # NATS has lost frames again meanwhile
                error = again
            except FenceConflict:
                return TAKEN_OVER

    async def _close(self) -> None:
        """Let the adapter finish; its exceptions are logged, and do not change the outcome."""
        if self.call is None:
            return
        await self.writer.require_ours()
        spec = self.spec
        try:
            await spec.upstream.closed(spec.agent, self.call, self._progress.seen)
        except Exception:  # the leg must end in any case, and its `end` is not written yet
            log.exception("run %s leg %d: the adapter could not finish", spec.run_id, spec.number)


def survives_disconnect(upstream: Upstream[Any], seen: ReattachState, run_id: str) -> bool:
    """Return whether the run continues without this connection, and can be reattached to.

    If the adapter raises, the result is False. Otherwise one leg would prevent a stopping connector
    from handing over all its legs.
    """
    try:
        return upstream.survives_disconnect(seen)
    except Exception:
        log.exception("run %s: the adapter fails to say if the run survives a disconnect", run_id)
        return False


async def stop(task: asyncio.Future[Any]) -> None:
    """Cancel the task, and wait until it has ended; its result or exception is dropped."""
    if not task.done():
        task.cancel()
        await asyncio.wait([task])
    if not task.cancelled():
        task.exception()  # otherwise asyncio logs that the exception was never retrieved
