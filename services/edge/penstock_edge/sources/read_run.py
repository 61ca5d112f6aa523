"""Reads all stored events of one run, for responses that need the whole run."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Final

import orjson

from penstock.bus import Bus
from penstock.bus.masking import whole
from penstock.bus.read.direct import read
from penstock.bus.records.runs import RunRecord
from penstock.bus.streams import events_for
from penstock.bus.subjects import events_of_run
from penstock.bus.write.objects import unwrapped
from penstock.web.auth import Identity
from penstock.web.read_scheduler import Turn
from penstock_edge.sources.history import BATCH, MAX_READ_BYTES
from penstock_edge.views.audience import PII
from penstock_edge.views.erased import erased_events
from penstock_edge.views.items import type_of

# A run's record is written before the lifecycle event that it names, usually by some milliseconds.
LATE_S: Final = 2.0  # seconds that a request waits for such events
LOOK_AGAIN_S: Final = 0.02  # seconds between two reads meanwhile


@dataclass(slots=True)
class Allowance:
    """How many events and bytes a request may still read, and how long the request may take."""

    events: int
    size_bytes: int
    time_s: float
    _begun: float = field(default_factory=time.monotonic)
    _waits_until_s: float = 0.0

    def spend(self, events: int, size_bytes: int) -> None:
        self.events -= events
        self.size_bytes -= size_bytes

    @property
    def is_spent(self) -> bool:
        late = time.monotonic() - self._begun >= self.time_s
        return late or self.events <= 0 or self.size_bytes <= 0

    def may_wait(self) -> bool:
        """Return whether the request may wait for events that are not stored yet: for `LATE_S` from
        its first such wait on. NATS may have lost these events, and for many runs."""
        self._waits_until_s = self._waits_until_s or time.monotonic() + LATE_S
        return time.monotonic() < self._waits_until_s


# The limits of one request that reads whole runs, such as a session's last ones, the newest first,
# until one of these limits is reached.
RUNS_READ: Final = 50
EVENTS_READ: Final = 50_000
BYTES_READ: Final = 32 * 1024 * 1024
READ_S: Final = 20.0


def request_allowance() -> Allowance:
    return Allowance(EVENTS_READ, BYTES_READ, READ_S)


Take = Callable[[str, dict[str, Any]], None]


async def read_run(
    bus: Bus,
    run: RunRecord,
    allowance: Allowance,
    turn: Turn,
    take: Take | None = None,
    dialect: str = "canonical",
    *,
    who: Identity,
) -> list[dict[str, Any]]:
    """Return the run's events in order; only the first ones if the allowance does not suffice. Each
    batch is read within one `turn`, so that other users do not wait for long. If `take` is given,
    it gets the type and the body of each event, within the turn, and the list is empty. What the
    record says has happened is among the events, unless NATS has lost it. What redactions mask is
    masked, unless the caller `who` has the scope `pii`. Of a run whose content
    was erased, the events are those of `dialect`. Raise ObjectGone if the payload of an event has
    expired."""
    events: list[dict[str, Any]] = []
    sees_all = who.has_scope(PII)
    if run.erasure is not None:
        for event in erased_events(run, run.erasure, dialect):
            if take is None:
                events.append(event)
            else:
                take(f"{event['event']['category']}.{event['event']['action']}", event)
        return events
    stream, pattern = events_for(run.run_id), events_of_run(run.run_id)
    start, last = run.first_event or 1, 0
    while not allowance.is_spent:
        async with turn():
            found, pending = await read(bus, stream, pattern, start, BATCH, MAX_READ_BYTES)
            for stored in found:
                opened = await unwrapped(bus, stored)
                body = whole(opened) if sees_all else opened.payload
                allowance.spend(1, len(body))
                event = orjson.loads(body)
                last = event["sequence"]
                if take is None:
                    events.append(event)
                else:
                    take(type_of(stored), event)
        if found:
            start = found[-1].sequence + 1
        if found and pending:
            continue
        # Without any event, the run has not begun, or all its events have expired.
        if not 0 < last < run.sequence or not allowance.may_wait():
            break
        await asyncio.sleep(LOOK_AGAIN_S)
    return events
