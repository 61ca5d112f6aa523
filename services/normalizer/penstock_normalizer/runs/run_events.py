"""Reads the last event of one run from the stream EVENTS, and appends events under the fence."""

from __future__ import annotations

import asyncio
import logging
from collections import Counter as CounterOf
from collections.abc import Callable

from prometheus_client import Counter

from penstock import log_fields, telemetry
from penstock.bus import (
    RETRY_S,
    Bus,
    BusError,
    BusUnavailable,
    FenceConflict,
    Message,
    OutcomeUnknown,
    messages,
    streams,
    subjects,
)
from penstock.bus.errors import StreamFull
from penstock.bus.write import fence, objects
from penstock.bus.write.publisher import MAX_BATCH
from penstock_normalizer.fold.envelope import CanonicalEvent
from penstock_normalizer.fold.run_fold import RunFold
from penstock_normalizer.runs.event_headers import EventHeaders

log = logging.getLogger(__name__)

# The least number of events that are published in one atomic batch. A batch of any size takes 4 to
# 7 ms, so a smaller number of events is published faster one by one.
BATCH_FROM = 50

_COUNTERS: dict[str, Counter] = {}  # by event type; kept, because each call of `labels` takes 1 µs

Placed = tuple[CanonicalEvent, int]  # an event, and the sequence of its frame in RAW


class StaleFold(BusError):
    """The published events do not fit the fold, because the fold lacks some of the run's frames."""


class RunEvents:
    """Knows the last published event of one run, and appends the run's next events.

    The attributes describe the published events; they are 0 or empty if there are no events.
    """

    __slots__ = (
        "_bus",
        "_headers",
        "_pattern",
        "_run_id",
        "first",
        "last",
        "last_type",
        "raw_first",
        "raw_position",
        "sequence",
    )

    def __init__(self, bus: Bus, run_id: str) -> None:
        self._bus = bus
        self._run_id = run_id
        self._pattern = subjects.events_of_run(run_id)
        self._headers = EventHeaders(run_id)
        self.first = 0  # the stream sequence of the run's first event
        # the stream sequence of the last event, which is the fence of the next append
        self.last = 0
        self.sequence = 0  # the last event's number in its run
        self.last_type = ""
        self.raw_first = 0  # the sequence in RAW of the run's first frame
        self.raw_position = 0  # the sequence in RAW of the last event's frame

    async def read_tail(self) -> None:
        """Read the run's last event from the stream; if the bus does not answer, wait."""
        tail = await fence.tail(self._bus, streams.events_for(self._run_id), self._pattern)
        if tail is None:
            # All events have expired, so the fence begins at 0 again. The events' numbers continue.
            self.last = 0
            return
        headers = tail.headers
        self.last = tail.sequence
        self.first = int(headers.get(messages.FIRST, 0)) or tail.sequence
        self.sequence = max(self.sequence, int(headers[messages.SEQUENCE]))
        self.raw_position = int(headers[messages.RAW_POSITION])
        self.raw_first = int(headers[messages.RAW_FIRST])
        self.last_type = headers["ce-type"]
        log_fields.traced(self._run_id, headers.get("traceparent"))

    def post(
        self, fold: RunFold, placed: Placed, settled: Callable[[int | BusError], None]
    ) -> bool:
        """Publish one event without waiting; `settled` gets the event's stream sequence, or the
        error.

        The event must be the run's next event, its body must fit in a message, and `first` must be
        known. Returns False without publishing if the bus cannot accept the event now.
        """
        event, raw_sequence = placed
        message = self._message(fold, event, raw_sequence, event.body)
        return fence.post(self._bus, self._pattern, message, self.last, settled)

    def published(self, fold: RunFold, batch: list[Placed], last: int) -> None:
        """Record that these events are stored; `last` is the last event's stream sequence."""
        event, self.raw_position = batch[-1]
        self.sequence, self.last_type, self.last = event.sequence, event.type, last
        self.first = self.first or last
        self.raw_first = fold.raw_first
        if len(batch) == 1:
            _counter(event.type).inc()
        else:
            for type_, count in CounterOf(event.type for event, _ in batch).items():
                _counter(type_).inc(count)

    async def append(
        self, fold: RunFold, waiting: list[Placed], failed: BusError | None = None
    ) -> None:
        """Publish each of these events once; wait as long as EVENTS refuses events.

        `failed` is the error of an earlier attempt to publish the first of these events. Raises
        StaleFold if another normalizer has published events that do not fit these events, and
        MessageTooLarge.
        """
        level = logging.WARNING
        while waiting:
            # The first event of a run is published alone, because all later events contain its
            # stream sequence.
            size = 1 if len(waiting) < BATCH_FROM or not self.first else MAX_BATCH
            batch = waiting[:size]
            try:
                if failed is not None:
                    error, failed = failed, None
                    raise error
                encoded = [await self._wrapped(fold, event, raw) for event, raw in batch]
                last = await fence.append(self._bus, self._pattern, encoded, self.last)
            except (FenceConflict, OutcomeUnknown):
                # Another normalizer may have published this event. Or an earlier request of this
                # normalizer has published it, and the answer was lost.
                telemetry.CONFLICTS.inc()
                await self.read_tail()
                self._check_fit(waiting)
            except (BusUnavailable, StreamFull) as error:
                log.log(level, "run %s: EVENTS does not take events: %s", self._run_id, error)
                level = logging.DEBUG  # one warning for each run is enough
                await asyncio.sleep(RETRY_S)
                continue
            else:
                self.published(fold, batch, last)
            waiting = [each for each in waiting if each[0].sequence > self.sequence]

    def _check_fit(self, waiting: list[Placed]) -> None:
        """Raise StaleFold if the published events were made from other frames than these events."""
        for event, raw in waiting:
            is_published = event.sequence <= self.sequence
            if raw != self.raw_position and is_published != (raw < self.raw_position):
                raise StaleFold(
                    f"event {event.sequence} in EVENTS was not made from RAW {raw}; "
                    "the run is folded again"
                )

    async def _wrapped(self, fold: RunFold, event: CanonicalEvent, raw_sequence: int) -> Message:
        """Return the message of an event; if the body is too large, it becomes a reference."""
        body = await objects.wrap(self._bus, f"{self._run_id}.{event.sequence}", event.body)
        return self._message(fold, event, raw_sequence, body)

    def _message(
        self, fold: RunFold, event: CanonicalEvent, raw_sequence: int, body: bytes
    ) -> Message:
        headers = self._headers.lines(fold, event, raw_sequence, self.first)
        return Message(subjects.event_input(event.type, self._run_id), body, headers)


def _counter(type_: str) -> Counter:
    counter = _COUNTERS.get(type_)
    if counter is None:
        counter = _COUNTERS[type_] = telemetry.EVENTS.labels(type_)
    return counter
