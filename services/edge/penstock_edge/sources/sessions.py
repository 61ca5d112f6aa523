"""Whose run is whose: the runs of a session, and when none of them is under way."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import orjson
from pydantic import ValidationError

from penstock.bus import Bus, BusError, ObjectGone, Stored
from penstock.bus.messages import SEQUENCE
from penstock.bus.read.direct import read
from penstock.bus.records import RunRecord, SessionRecord
from penstock.bus.streams import EVENTS
from penstock.bus.subjects import events_of_run, session_key
from penstock.bus.write.objects import unwrap
from penstock.events.catalogue import TERMINAL
from penstock_edge.sources.locate import lifecycle_of
from penstock_edge.sources.unsettled import unsettled
from penstock_edge.views.items import type_of

log = logging.getLogger(__name__)

RETRY_S: Final = 0.5
NEWEST: Final = 20
KNOWN_OWNERS: Final = 20_000
# What the connector keeps of a session's runs; of one with more, the first are forgotten.
LISTED: Final = 1000

_SETTLED: Final = TERMINAL | {"lifecycle.paused"}


@dataclass(frozen=True, slots=True)
class Session:
    """A session id of one owner; `agents`: the ids of one agent, or of all."""

    owner: str
    session_id: str
    agents: tuple[str, ...]
    any_agent: bool

    def has(self, record: RunRecord) -> bool:
        """Whether the run is one of its runs."""
        return (
            record.session_id == self.session_id
            and record.user_id == self.owner
            and (self.any_agent or record.agent in self.agents)
        )


class Records:
    """Records of runs that many listeners ask for: what never changes of them is remembered."""

    def __init__(self, bus: Bus) -> None:
        self._bus = bus
        self._known: dict[str, RunRecord] = {}

    async def of(self, run_id: str) -> RunRecord | None:
        """Owner, agent and session of a run; None when nothing is on record. Waits for the bus."""
        known = self._known.get(run_id)
        while known is None:
            try:
                entry = await self._bus.bucket("runs").get(run_id)
            except BusError as error:
                log.warning("whose is run %s: %s", run_id, error)
                await asyncio.sleep(RETRY_S)
                continue
            if entry is None:
                return None
            try:
                known = RunRecord.model_validate_json(entry.value)
            except ValidationError as error:
                log.warning("the record of run %s cannot be read: %s", run_id, error)
                return None
            if len(self._known) >= KNOWN_OWNERS:
                self._known.clear()
            self._known[run_id] = known
        return known


async def records_of(bus: Bus, session: Session) -> list[SessionRecord]:
    """What KV says of it: a record for each agent that has it."""
    keys = [session_key(session.owner, agent, session.session_id) for agent in session.agents]
    entries = await asyncio.gather(*(bus.bucket("sessions").get(key) for key in keys))
    return [SessionRecord.model_validate_json(entry.value) for entry in entries if entry]


async def is_cut(bus: Bus, records: Sequence[SessionRecord]) -> bool:
    """Whether the beginning of the session is not kept any more."""
    for record in records:
        if len(record.runs) >= LISTED or (record.runs and await _is_run_cut(bus, record.runs[0])):
            return True
    return False


async def _is_run_cut(bus: Bus, run_id: str) -> bool:
    found, _ = await read(bus, EVENTS, events_of_run(run_id), 1, 1)
    if found:
        return found[0].headers[SEQUENCE] != "1"
    entry = await bus.bucket("runs").get(run_id)
    # nothing at all: it is over and gone, unless it has not begun
    return entry is None or RunRecord.model_validate_json(entry.value).first_event is not None


async def settled(bus: Bus, session: Session) -> int | None:
    """None while a leg of the session is under way or waits for its turn.

    Otherwise the stream sequence of the last event that ended or paused a run, 0 when there is
    none: whoever has read as far has seen all until somebody starts or decides something. A paused
    run waits for a person, not we for it.
    """
    records = await records_of(bus, session)
    if any(record.queue for record in records):
        return None
    newest = [run_id for record in records for run_id in record.runs[-NEWEST:]]
    # before all that costs more: who waits for a queued run asks twice a second
    if await _is_queued(bus, session, set(newest)):
        return None
    last = await asyncio.gather(*(lifecycle_of(bus, run_id) for run_id in newest))
    found = [stored for stored in last if stored is not None]
    if any(type_of(stored) not in _SETTLED for stored in found):
        return None
    if any(await asyncio.gather(*(_goes_on(bus, stored) for stored in found))):
        return None
    return max((stored.sequence for stored in found), default=0)


async def _goes_on(bus: Bus, lifecycle: Stored) -> bool:
    """Whether the run was answered, and its next leg is on its way."""
    if type_of(lifecycle) != "lifecycle.paused":
        return False
    try:
        paused = orjson.loads(await unwrap(bus, lifecycle.payload))
        entry = await bus.bucket("approvals").get(str(paused["data"].get("approval_id")))
        if entry is None:
            return False
        return bool(orjson.loads(await unwrap(bus, entry.value))["status"] == "decided")
    except ObjectGone:
        return False  # nobody can answer it any more


async def _is_queued(bus: Bus, session: Session, known: set[str]) -> bool:
    """Whether a run was started that no connector has taken yet."""
    return any(
        record.run_id not in known and session.has(record) for record in await unsettled(bus)
    )
