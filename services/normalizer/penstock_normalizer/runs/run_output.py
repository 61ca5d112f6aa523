"""Writes one run's output: the events, the record in the list of runs, and the pause."""

from __future__ import annotations

from penstock import telemetry
from penstock.bus import Bus
from penstock.events import TERMINAL
from penstock.tracing import spans
from penstock_normalizer.fold.run_fold import RunFold
from penstock_normalizer.runs.pauses import Pauses
from penstock_normalizer.runs.ready_events import ReadyEvents
from penstock_normalizer.runs.run_events import RunEvents
from penstock_normalizer.runs.run_index import RunIndex
from penstock_normalizer.runs.stamps import unix_s


class RunOutput:
    """Publishes each event of a run once, and updates the run's record and pause."""

    __slots__ = ("_bus", "_index", "_pauses", "_run_id", "events")

    def __init__(self, bus: Bus, run_id: str, index: RunIndex, pauses: Pauses) -> None:
        self._bus = bus
        self._run_id = run_id
        self._index = index
        self._pauses = pauses
        self.events = RunEvents(bus, run_id)

    async def store_pause(self, fold: RunFold) -> None:
        """Store the paused run's state; call this before the request for the approval is published.

        Raises MessageTooLarge.
        """
        await self._pauses.store(fold)

    async def publish(
        self, fold: RunFold, ready: ReadyEvents, *, overrule_record: bool = False
    ) -> None:
        """Publish each ready event once, and clear `ready`; if the bus does not answer, wait.

        With `overrule_record`, the record is replaced even if it names a later event, because
        EVENTS has lost that event. Raises StaleFold, MessageTooLarge, and ValueError if the run's
        record cannot be parsed.
        """
        events = [event for event, _ in ready.events]
        is_begun = bool(self.events.first)
        if any(event.type in TERMINAL for event in events):
            await self._pauses.expire(self._run_id)
        if is_begun:
            # The record is written before the events. So a client that has read a run's terminal
            # event also finds the run ended in the list of runs.
            await self._index.update(
                self._run_id, fold, events, self.events.first, overrule=overrule_record
            )
        await self.events.append(fold, ready.events)
        if not is_begun:
            # The record contains the stream sequence of the run's first event, which is known only
            # after the event is published.
            await self._index.update(
                self._run_id, fold, events, self.events.first, overrule=overrule_record
            )
        if fold.is_workflow and not fold.ended:
            await self._pauses.store_workflow(fold)
        self.observe(ready)
        ready.clear()

    def observe(self, ready: ReadyEvents) -> None:
        """Record for the metric how long ago the frames of the published events were received, and
        record the spans that end with these events."""
        for span in ready.spans:
            spans.record(span)
        if ready.received:
            now_s = self._bus.clock.time()
            for received in ready.received:
                telemetry.FOLD_SECONDS.observe(max(0.0, now_s - unix_s(received)))
