"""Writes one run's output: the events, the record in the list of runs, and the pause."""

from __future__ import annotations

import asyncio
import logging
from collections import Counter as CounterOf
from collections.abc import Callable
from dataclasses import dataclass, field

from prometheus_client import Counter

from penstock import log_fields, telemetry
from penstock.bus import (
    RETRY_S,
    BusError,
    BusUnavailable,
    FenceConflict,
    Message,
    OutcomeUnknown,
    StreamFull,
    messages,
    streams,
    subjects,
)
from penstock.bus.messages import header_lines
from penstock.bus.write import fence, objects
from penstock.bus.write.publisher import MAX_BATCH
from penstock.dialects.base import JsonObject
from penstock.dialects.usage import TOOL_RESULT, USAGE
from penstock.events import TERMINAL
from penstock.tracing import spans
from penstock.tracing.spans import Span
from penstock_normalizer.fold.envelope import CanonicalEvent
from penstock_normalizer.fold.run_fold import RunFold
from penstock_normalizer.runs.context import RunContext
from penstock_normalizer.runs.run_index import unix_s
from penstock_normalizer.runs.usage_metrics import count_cost, count_usage


class EventHeaders:
    """Encodes the headers of one run's events.

    The lines that are the same for all events of the run are encoded once. The headers of an event
    then take 1 µs. If a dict of headers were encoded for each event, the headers would take 9 µs.
    """

    __slots__ = ("_common", "_facts", "_first", "_raw_first", "_run_id")

    def __init__(self, run_id: str) -> None:
        self._run_id = run_id
        self._facts: JsonObject | None = None
        self._first = 0
        self._raw_first = 0
        self._common = ""  # the lines that are the same for all events

    def lines(self, fold: RunFold, event: CanonicalEvent, raw_sequence: int, first: int) -> bytes:
        """Return the header lines of an event (see `header_lines`).

        `raw_sequence` is the sequence of the event's frame in RAW. `first` is the stream sequence
        of the run's first event; 0 if this event is the first.
        """
        if (
            fold.facts is not self._facts
            or fold.raw_first != self._raw_first
            or first != self._first
        ):
            self._facts, self._raw_first, self._first = fold.facts, fold.raw_first, first
            self._common = self._common_lines()
        # No value of these lines can contain a line end. The values are numbers, the run's id, the
        # event's type, which is also a part of the subject, and a time from a header of RAW.
        sequence = event.sequence
        cost = ""
        if event.type == TOOL_RESULT and event.data.get("cost") is not None:
            cost = f"{messages.COST}: 1\r\n"
        return (
            f"{self._common}{cost}{messages.SEQUENCE}: {sequence}\r\n"
            f"{messages.RAW_POSITION}: {raw_sequence}\r\nce-id: {self._run_id}.{sequence}\r\n"
            f"ce-type: {event.type}\r\nce-time: {event.timestamp}\r\n"
        ).encode()

    def _common_lines(self) -> str:
        facts = self._facts or {}
        headers = {
            messages.RAW_FIRST: str(self._raw_first),
            "ce-specversion": "1.0",
            "ce-source": f"/penstock/{facts['agent']}",
            "ce-datacontenttype": "application/json",
        }
        if self._first:
            headers[messages.FIRST] = str(self._first)
        if "traceparent" in facts:
            headers["traceparent"] = facts["traceparent"]
        return header_lines(headers).decode()


log = logging.getLogger(__name__)

# The least number of events that are published in one atomic batch. A batch of any size takes 4 to
# 7 ms, so a smaller number of events is published faster one by one.
BATCH_FROM = 50

_COUNTERS: dict[str, Counter] = {}  # by event type; kept, because each call of `labels` takes 1 µs

Placed = tuple[CanonicalEvent, int]  # an event, and the sequence of its frame in RAW
# If this number of events or bytes is reached, the folded events are published before more frames
# are folded. While one run folds, all other runs of the process wait; folding 500 events takes
# about 20 ms.
MAX_EVENTS = 500
MAX_BYTES = 4 * 1024 * 1024


class StaleFold(BusError):
    """The published events do not fit the fold, because the fold lacks some of the run's frames."""


@dataclass(slots=True)
class ReadyEvents:
    """Folded events, each with the sequence of its frame in RAW."""

    events: list[Placed] = field(default_factory=list)
    # the times at which the events' frames were received
    received: list[str] = field(default_factory=list)
    size_bytes: int = 0
    # the spans of the tool calls that end with these events; none while tracing is off
    spans: tuple[Span, ...] = ()

    @property
    def is_full(self) -> bool:
        return len(self.events) >= MAX_EVENTS or self.size_bytes >= MAX_BYTES

    @property
    def ends_in_request(self) -> bool:
        return bool(self.events) and self.events[-1][0].type == "approval.requested"

    @property
    def last_raw_sequence(self) -> int:
        return self.events[-1][1] if self.events else 0

    def add(self, event: CanonicalEvent, raw_sequence: int) -> None:
        self.events.append((event, raw_sequence))
        self.size_bytes += len(event.body)

    def clear(self) -> None:
        self.events.clear()
        self.received.clear()
        self.size_bytes = 0
        self.spans = ()


class RunOutput:
    """Publishes each event of a run once under the fence, and updates the run's record and pause.

    The attributes without an underscore describe the published events; they are 0 or empty if there
    are no events.
    """

    __slots__ = (
        "_context",
        "_headers",
        "_pattern",
        "first",
        "last",
        "last_type",
        "raw_first",
        "raw_position",
        "run_id",
        "sequence",
    )

    def __init__(self, context: RunContext, run_id: str) -> None:
        self._context = context
        self._pattern = subjects.events_of_run(run_id)
        self._headers = EventHeaders(run_id)
        self.run_id = run_id
        self.first = 0  # the stream sequence of the run's first event
        # the stream sequence of the last event, which is the fence of the next append
        self.last = 0
        self.sequence = 0  # the last event's number in its run
        self.last_type = ""
        self.raw_first = 0  # the sequence in RAW of the run's first frame
        self.raw_position = 0  # the sequence in RAW of the last event's frame

    async def publish(
        self, fold: RunFold, ready: ReadyEvents, *, overrule_record: bool = False
    ) -> None:
        """Publish each ready event once, and clear `ready`; wait while the bus does not answer.

        With `overrule_record`, the record is replaced even if it names a later event, because
        EVENTS has lost that event. Raises StaleFold, MessageTooLarge, and ValueError if the run's
        record cannot be parsed.
        """
        events = [event for event, _ in ready.events]
        is_begun = bool(self.first)
        if any(event.type in TERMINAL for event in events):
            await self._context.pauses.expire(self.run_id)
        if is_begun:
            # The record is written before the events. So a client that has read a run's terminal
            # event also finds the run ended in the list of runs.
            await self._context.index.update(
                self.run_id, fold, events, self.first, overrule=overrule_record
            )
        await self.append(fold, ready.events)
        if not is_begun:
            # The record contains the stream sequence of the run's first event, which is known only
            # after the event is published.
            await self._context.index.update(
                self.run_id, fold, events, self.first, overrule=overrule_record
            )
        if fold.is_workflow and not fold.ended:
            await self._context.pauses.store_workflow(fold)
        self.observe(ready)
        ready.clear()

    def observe(self, ready: ReadyEvents) -> None:
        """Measure how long ago the published events' frames came, and record the spans that end."""
        for span in ready.spans:
            spans.record(span)
        if ready.received:
            now_s = self._context.bus.clock.time()
            for received in ready.received:
                telemetry.FOLD_SECONDS.observe(max(0.0, now_s - unix_s(received)))

    async def read_tail(self) -> None:
        """Read the run's last event from the stream; wait while the bus does not answer."""
        tail = await fence.tail(self._context.bus, streams.events_for(self.run_id), self._pattern)
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
        log_fields.traced(self.run_id, headers.get("traceparent"))

    def post(
        self,
        fold: RunFold,
        placed: Placed,
        settled: Callable[[int | BusError], None],
        *,
        is_patient: bool,
    ) -> bool:
        """Publish one event without waiting; `settled` gets its stream sequence, or the error.

        The event must be the run's next event, its body must fit in a message, and `first` must be
        known. Returns False without publishing if the bus cannot accept the event now. For
        `is_patient` see `Publisher.post`.
        """
        event, raw_sequence = placed
        message = self._message(fold, event, raw_sequence, event.body)
        return fence.post(
            *(self._context.bus, self._pattern, message, self.last, settled), is_patient=is_patient
        )

    def published(self, fold: RunFold, batch: list[Placed], last: int) -> None:
        """Record that these events are stored; `last` is the last event's stream sequence."""
        event, self.raw_position = batch[-1]
        self.sequence, self.last_type, self.last = event.sequence, event.type, last
        self.first = self.first or last
        self.raw_first = fold.raw_first
        for each, _ in batch:
            for found in each.redactions:
                telemetry.REDACTIONS.labels(found["kind"]).inc(found["count"])
            if each.type == USAGE:
                count_usage(fold.facts.get("agent", ""), each.data)
            elif each.type == TOOL_RESULT and each.data.get("cost") is not None:
                count_cost(fold.facts.get("agent", ""), each.data["tool"], each.data["cost"])
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
                last = await fence.append(self._context.bus, self._pattern, encoded, self.last)
            except (FenceConflict, OutcomeUnknown):
                # Another normalizer may have published this event. Or an earlier request of this
                # normalizer has published it, and the answer was lost.
                telemetry.CONFLICTS.inc()
                await self.read_tail()
                self._check_fit(waiting)
            except (BusUnavailable, StreamFull) as error:
                log.log(level, "run %s: EVENTS does not take events: %s", self.run_id, error)
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
        name = f"{self.run_id}.{event.sequence}"
        body = await objects.wrap(self._context.bus, name, event.body, self.run_id)
        return self._message(fold, event, raw_sequence, body)

    def _message(
        self, fold: RunFold, event: CanonicalEvent, raw_sequence: int, body: bytes
    ) -> Message:
        headers = self._headers.lines(fold, event, raw_sequence, self.first)
        return Message(subjects.event_input(event.type, self.run_id), body, headers)


def _counter(type_: str) -> Counter:
    counter = _COUNTERS.get(type_)
    if counter is None:
        counter = _COUNTERS[type_] = telemetry.EVENTS.labels(type_)
    return counter
