"""Rebuilds the fold of a run from its frames in RAW, or from its stored pause.

A normalizer rebuilds a fold after a failure, and when it takes over a run from another normalizer.
"""

from __future__ import annotations

import asyncio

from penstock.bus import streams, subjects
from penstock.bus.messages import RawFrame, raw_frame
from penstock.bus.write import fence
from penstock.events import TERMINAL
from penstock_normalizer.fold.run_fold import RunFold
from penstock_normalizer.runs.backlog import replay
from penstock_normalizer.runs.context import RunContext
from penstock_normalizer.runs.ending import WRITER, Ending
from penstock_normalizer.runs.feeder import Feeder
from penstock_normalizer.runs.run_output import ReadyEvents, RunOutput

# the writer of frames before the first `open`: the edge may cancel a run that is not open yet
EARLY_WRITER = "edge"
UPSTREAM_KINDS = frozenset({"open", "bytes", "part", "end", "lost"})


class Rebuild:
    """Rebuilds the fold of one run."""

    def __init__(self, context: RunContext, output: RunOutput, feeder: Feeder) -> None:
        self._context = context
        self._bus = context.bus
        self._output = output
        self._feeder = feeder
        self._run_id = output.run_id
        self._ending = Ending(context, output)

    async def before(self, frame: RawFrame) -> RunFold:
        """Return the fold of all frames before this one; publish events that are missing in EVENTS.
        If frames that the fold needs are lost, the fold is broken off, and the run is ended."""
        fold, published = self._context.new_fold(self._run_id), self._output
        self._feeder.restart()
        if frame.opens_run and not published.first and not await self._has_earlier_frames(frame):
            return fold  # if the frame was published before, the fence refuses its events
        await published.read_tail()
        await self._show_in_index()
        is_begun = frame.opens_run
        async for stored in replay(self._bus, self._run_id, published.raw_first, frame.sequence):
            try:
                earlier = raw_frame(stored)
            except (KeyError, ValueError):
                self._feeder.skip(stored)  # the frame is a dead letter already
                continue
            if not is_begun and not earlier.opens_run:
                await self._context.pauses.restore(fold)  # the run's first frames have expired
            is_begun = True
            ready = ReadyEvents()
            await self._feeder.feed(fold, earlier, stored, ready)
            await self._output.publish(fold, ready)
            await asyncio.sleep(0)  # let other runs work, even if nothing is published
        if not is_begun:
            await self._context.pauses.restore(fold)
        self._feeder.continue_numbers(fold, frame)
        if published.last_type in TERMINAL and published.raw_position < frame.sequence:
            fold.ended = published.last_type
        # The terminal event may be from this frame or a later one. In this case the fold ends when
        # it gets that frame again. If the fold ended now, the fold would make fewer events from
        # that frame. Later events would then get numbers that are used already, and would be lost.
        if not await self._is_complete(fold, frame):
            await self._ending.break_off(fold, frame)
        return fold

    async def after_deletion(self, frame: RawFrame) -> RunFold:
        """End a run whose earlier frames were deleted before they were read; return the run's
        fold."""
        fold, published = self._context.new_fold(self._run_id), self._output
        await published.read_tail()
        self._feeder.continue_numbers(fold, frame)
        if published.last_type in TERMINAL:
            fold.ended = published.last_type
        await self._ending.break_off(fold, frame)
        return fold

    async def _has_earlier_frames(self, frame: RawFrame) -> bool:
        """Return whether the edge wrote a frame of the run before a connector opened the run."""
        pattern = subjects.raw_stored(self._run_id, EARLY_WRITER)
        early = await fence.tail(self._bus, streams.raw_for(self._run_id), pattern)
        return early is not None and early.sequence < frame.sequence

    async def _show_in_index(self) -> None:
        """Update the run's record to the run's last lifecycle event.

        A run's record is written after the run's first events are published. The normalizer that
        published them may have failed, or lost the partition, before it wrote the record. The
        events are not published again, so no other code would write the record.
        """
        if self._output.first:
            pattern = subjects.event("lifecycle.*", self._run_id)
            if (
                last := await fence.tail(self._bus, streams.events_for(self._run_id), pattern)
            ) is not None:
                await self._context.index.update_from_stored(self._run_id, last)

    async def _is_complete(self, fold: RunFold, frame: RawFrame) -> bool:
        """Return whether the fold has every frame before this one; False if frames are lost."""
        published = self._output
        lost, raw = self._bus.continuity, streams.raw_for(self._run_id)
        if lost.covers(raw, published.raw_first) or lost.covers(raw, published.raw_position):
            return False
        if published.raw_first and (fold.raw_first or frame.sequence) != published.raw_first:
            return False
        if frame.kind in UPSTREAM_KINDS:
            return frame.leg <= fold.leg + ("open" in (frame.kind, frame.whole))
        if fold.leg:
            return True
        record = await self._context.index.record(self._run_id)
        return frame.writer != WRITER and (record is None or not record.sequence)
