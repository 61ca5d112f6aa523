"""Feeds a run's source frames to its fold, and collects the events that are not published yet."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterator
from functools import partial
from itertools import chain

from penstock.bus import Message, Stored, subjects
from penstock.bus.connection.retry import with_retries
from penstock.bus.messages import EXPECTED_SEQUENCE, RawFrame
from penstock.bus.records.runs import CancelCommand, Target
from penstock.bus.write.fence import MAX_MESSAGE_BYTES
from penstock.events import TERMINAL
from penstock.off_loop import OFF_LOOP
from penstock.tracing import spans
from penstock.tracing.spans import Span
from penstock.turns import TenantUser
from penstock_normalizer.fold.checking import Question
from penstock_normalizer.fold.envelope import CanonicalEvent
from penstock_normalizer.fold.redacting import Asked, Wait
from penstock_normalizer.fold.run_fold import BLOCKED, Folded, RunFold
from penstock_normalizer.runs.checks import Checks
from penstock_normalizer.runs.context import RunContext
from penstock_normalizer.runs.run_index import CHANGES_RECORD
from penstock_normalizer.runs.run_output import ReadyEvents, RunOutput
from penstock_normalizer.runs.spans import ENDS_OR_BEGINS, CallSpans

log = logging.getLogger(__name__)


class Feeder:
    """Feeds the frames of one run to its fold. Each frame's fence names the previous frame of the
    same writer. So the feeder notices if the fold lacks a frame that another partition has read."""

    __slots__ = (
        *("_calls", "_checks", "_context", "_last_of_writer", "_output", "_run_id", "_unfinished"),
    )

    def __init__(self, context: RunContext, output: RunOutput) -> None:
        self._context = context
        self._run_id = output.run_id
        self._output = output
        # each writer's last frame in the fold: the frame's sequence in RAW
        self._last_of_writer: dict[str, int] = {}
        self._calls = CallSpans(output.run_id) if spans.is_on() else None
        self._checks: Checks | None = None  # made with the first question
        # the frame that `feed_at_once` has begun, and what is left of it
        self._unfinished: tuple[RawFrame, Iterator[Folded]] | None = None

    def restart(self) -> None:
        self._last_of_writer.clear()
        self._checks = self._unfinished = None
        self._calls = CallSpans(self._run_id) if spans.is_on() else None

    def follows(self, stored: Stored, fold: RunFold) -> bool:
        """Return whether the fold has the frame that this frame's fence names."""
        if fold.broken_off:
            return True  # such a fold ignores all frames
        before = stored.headers.get(EXPECTED_SEQUENCE)
        return before is None or int(before) == self._last_of_writer.get(_writer(stored), 0)

    def continue_numbers(self, fold: RunFold, frame: RawFrame) -> None:
        """Continue the numbers of the published events, if this frame comes after their frames.

        Another version of the normalizer may have made more or fewer events from the same frames.
        Without this, the events of this frame could get numbers that are used already, would count
        as published, and would be lost.
        """
        published = self._output
        if published.sequence and published.raw_position < frame.sequence:
            fold.sequence = published.sequence

    def skip(self, stored: Stored) -> None:
        """Record a frame as fed without feeding it, because the frame cannot be parsed."""
        self._last_of_writer[_writer(stored)] = stored.sequence

    async def feed(
        self, fold: RunFold, frame: RawFrame, stored: Stored, ready: ReadyEvents
    ) -> None:
        """Fold a frame, and add its unpublished events to `ready`; publish them when it is full, or
        when the run's checker must see something first."""
        self._last_of_writer[_writer(stored)] = stored.sequence
        if not ready.events:
            self.continue_numbers(fold, frame)
        calls = self._calls
        if calls is not None and "open" in (frame.kind, frame.whole):
            calls.leg_began = frame.received
        await self._collect(fold, frame, fold.events(frame), ready)
        await self.complete(fold, stored, ready)

    async def _collect(
        self, fold: RunFold, frame: RawFrame, events: Iterator[Folded], ready: ReadyEvents
    ) -> None:
        has_new, calls, published = False, self._calls, self._output
        has_ended_run = published.last_type in TERMINAL and frame.sequence == published.raw_position
        for step in events:
            if isinstance(step, CanonicalEvent):
                event = step
            elif (found := await self._event_after(step, fold, events, ready)) is not None:
                event = found
            else:
                break
            ended: tuple[Span, ...] = ()
            if calls is not None and event.type in ENDS_OR_BEGINS:
                ended = calls.ended_by(event, frame, fold)
            if (
                has_ended_run
                or event.sequence <= published.sequence
                or frame.sequence < published.raw_position
            ):
                continue
            if ready.is_full:
                await self._output.publish(fold, ready)
            ready.add(event, frame.sequence)
            if ended:
                ready.spans += ended
            has_new = True
        if has_new:
            ready.received.append(frame.received)
        if has_ended_run:
            # The run may have been blocked at this frame, and may have been ended with other
            # events.
            fold.ended, fold.sequence = published.last_type, published.sequence

    async def _event_after(
        self, step: Asked, fold: RunFold, events: Iterator[Folded], ready: ReadyEvents
    ) -> CanonicalEvent | None:
        """Return the event that follows what the fold has asked for; None if there is none."""
        found: Folded | None = step
        while found is not None and not isinstance(found, CanonicalEvent):
            if found is Wait.THREAD:
                user = TenantUser.of(fold.facts)
                found = await OFF_LOOP.run(user, partial(next, events, None))
                continue
            if isinstance(found, Question):
                await self._check(fold, found, ready)
            else:
                await asyncio.sleep(0)
            found = next(events, None)
        return found

    async def _check(self, fold: RunFold, question: Question, ready: ReadyEvents) -> None:
        if ready.events:
            await self._output.publish(fold, ready)
        if self._checks is None:
            self._checks = Checks(self._context.bus, self._run_id)
        await self._checks.answer(question, fold)

    def feed_at_once(
        self, fold: RunFold, frame: RawFrame, stored: Stored, ready: ReadyEvents
    ) -> bool:
        """Fold a small frame of a run without a checker as `feed` does, but never wait.

        Returns True if the frame's events only need to be published. If the result is False, the
        caller calls `complete`, and then publishes the events with `RunOutput.publish`.
        """
        has_new, is_simple = False, True
        published = self._output
        self._last_of_writer[frame.writer] = frame.sequence
        calls = self._calls
        events = fold.events(frame)
        for event in events:
            if type(event) is not CanonicalEvent:
                self._unfinished = frame, chain((event,), events)
                return False
            ended: tuple[Span, ...] = ()
            if calls is not None and event.type in ENDS_OR_BEGINS:
                ended = calls.ended_by(event, frame, fold)
            if event.sequence <= published.sequence or frame.sequence < published.raw_position:
                continue
            ready.add(event, frame.sequence)
            if ended:
                ready.spans += ended
            has_new = True
            if event.type in CHANGES_RECORD or len(event.body) > MAX_MESSAGE_BYTES:
                is_simple = False
        if has_new:
            ready.received.append(frame.received)
        return is_simple and fold.error is None and fold.pending is None

    async def complete(self, fold: RunFold, stored: Stored, ready: ReadyEvents) -> None:
        """Do the work that must come between folding a frame and publishing its events.

        If `feed_at_once` has left the frame because other runs should work first, fold the rest.
        If the decoder raised an exception on the frame, the frame becomes a dead letter. If the run
        is paused, and the last events of `ready` are from this frame, the state of the fold is
        stored. If a redaction has stopped the run, the service that executes it is told so. While
        the bus does not answer, this waits.
        """
        if self._unfinished is not None:
            (frame, events), self._unfinished = self._unfinished, None
            await self._collect(fold, frame, events, ready)
        if fold.error is not None:
            log.error(
                "run %s: RAW %d cannot be decoded",
                self._run_id,
                stored.sequence,
                exc_info=fold.error,
            )
            await self._context.give_up(stored, fold.error)
        if fold.blocked is not None and ready.last_raw_sequence == stored.sequence:
            await self._stop(fold)
        if fold.pending is not None and ready.last_raw_sequence == stored.sequence:
            await self._context.pauses.store(fold)

    async def _stop(self, fold: RunFold) -> None:
        """Command the service that executes the run to cancel it; a repeat changes nothing."""
        run_id, bus = self._run_id, self._context.bus
        log.warning("run %s: a redaction stops it for a match of kind %s", run_id, fold.blocked)
        cancel = CancelCommand(run_id=run_id, by="policy", reason=BLOCKED)
        target: Target = "workflows" if fold.is_workflow else "connector"
        headers = {"Nats-Msg-Id": f"{run_id}.{BLOCKED}"}
        message = Message(subjects.command(target, "cancel", run_id), cancel.dump(), headers)
        await with_retries(
            partial(bus.publisher.publish, message), f"run {run_id}: it is not stopped yet"
        )


def _writer(stored: Stored) -> str:
    return stored.subject.rpartition(".")[2]
