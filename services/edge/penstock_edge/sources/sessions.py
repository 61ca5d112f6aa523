"""Reads the records of runs and sessions, and finds out whether a session is idle."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Final
from weakref import WeakKeyDictionary

import orjson
from pydantic import ValidationError

from penstock.bus import Bus, ObjectGone, Stored
from penstock.bus.connection.retry import with_retries
from penstock.bus.messages import FIRST, SEQUENCE
from penstock.bus.read.direct import read, replay
from penstock.bus.records.legs import MAX_SESSION_RUNS, SessionRecord
from penstock.bus.records.runs import ENDED, RunRecord
from penstock.bus.streams import events_for
from penstock.bus.subjects import events_of_run, session_key
from penstock.bus.subjects import run_id_of as subject_run
from penstock.bus.write.objects import unwrap
from penstock.events.catalogue import TERMINAL
from penstock.log_fields import run_of
from penstock_edge.sources.locate import lifecycle_of
from penstock_edge.views.items import type_of

log = logging.getLogger(__name__)

CREATED_AT: Final = (
    "created_at"  # a further field of a record that was created before its first run
)
NEWEST: Final = 20
READ_AT_ONCE: Final = 100  # the number of records that one request reads at the same time
KNOWN_OWNERS: Final = 20_000

_AT_REST: Final = TERMINAL | {"lifecycle.paused"}


@dataclass(frozen=True, slots=True)
class Session:
    """A session of one owner. `agents` has the id of one agent, or `SessionShards.agents`.
    `any_agent` is True if the session has the runs of all agents."""

    owner: str
    session_id: str
    agents: tuple[str, ...]
    any_agent: bool
    shard: int = 0  # the shard of all runs of the session; see `SessionShards`

    @property
    def key(self) -> tuple[str, ...]:
        return (self.owner, self.session_id, *(("*",) if self.any_agent else self.agents))

    def has(self, record: RunRecord) -> bool:
        return (
            record.session_id == self.session_id
            and record.user_id == self.owner
            and (self.any_agent or record.agent in self.agents)
        )


class RunRecords:
    """Caches the records of runs, because the owner, agent and session of a run never change."""

    def __init__(
        self,
        bus: Bus,
        withheld: Mapping[str, int] | None = None,
        has_all: Callable[[], bool] = lambda: True,
    ) -> None:
        """`withheld` has runs whose content is being erased, with the number of their event
        `system.erased`; `has_all` says whether it has all of them, which it lacks after a start."""
        self._bus = bus
        self._withheld = withheld if withheld is not None else {}
        self._has_all = has_all
        self._known: dict[str, RunRecord] = {}

    async def withholds(self, stored: Stored) -> bool:
        """Return whether nobody may get this event, because its run's content is being erased."""
        if not self._withheld and self._has_all():
            return False
        run_id = subject_run(stored.subject)
        return await self.withholds_number(run_id, int(stored.headers[SEQUENCE]))

    async def withholds_number(self, run_id: str, sequence: int) -> bool:
        """Return what `withholds` returns of the run's event of this number."""
        erased = self._withheld.get(run_id)
        if erased is None and not self._has_all():
            record = await self.of(run_id)
            if record is not None and record.erasure is not None:
                erased = record.erasure.sequence
        return erased is not None and sequence < erased

    async def of(self, run_id: str) -> RunRecord | None:
        """Return the run's record; None if there is none, or if the record cannot be read. The
        status in the record may be outdated. If the bus does not answer, the method waits."""
        known = self._known.get(run_id)
        if known is None:
            try:
                known = await with_retries(
                    lambda: self._bus.bucket("runs").load(run_id, RunRecord),
                    f"the record of run {run_id} cannot be read now",
                )
            except ValidationError as error:
                log.warning("the record of run %s cannot be read: %s", run_id, error)
                return None
            if known is None:
                return None
            if len(self._known) >= KNOWN_OWNERS:
                self._known.clear()
            self._known[run_id] = known
        return known


async def records_of(bus: Bus, session: Session) -> list[SessionRecord]:
    keys = [session_key(session.owner, agent, session.session_id) for agent in session.agents]
    return [*map(SessionRecord.model_validate_json, await _values(bus, "sessions", keys))]


async def run_records(bus: Bus, run_ids: Sequence[str]) -> list[RunRecord]:
    return [*map(RunRecord.model_validate_json, await _values(bus, "runs", run_ids))]


async def _values(bus: Bus, bucket: str, keys: Sequence[str]) -> list[bytes]:
    """Read the values one by one: a read of many keys may lack a key that was just written."""
    found = []
    for first in range(0, len(keys), READ_AT_ONCE):
        some = keys[first : first + READ_AT_ONCE]
        found += await asyncio.gather(*map(bus.bucket(bucket).get, some))
    return [entry.value for entry in found if entry is not None]


async def create_session(
    bus: Bus, user_id: str, agent: str, session_id: str
) -> SessionRecord | None:
    """Return None if the session exists."""
    record = SessionRecord.model_validate(
        {
            "agent": agent,
            "session_id": session_id,
            "user_id": user_id,
            CREATED_AT: bus.clock.stamp(),
        }
    )
    key = session_key(user_id, agent, session_id)
    created = await bus.bucket("sessions").create(key, record.dump())
    return record if created is not None else None


async def newest_run(bus: Bus, session: Session) -> RunRecord | None:
    """Return the newest run, also if no connector has listed it in the session's record yet."""
    listed = [record.runs[-1] for record in await records_of(bus, session) if record.runs]
    active = [record.run_id for record in await active_runs(bus) if session.has(record)]
    newest = max((*listed, *active), default=None)
    return await bus.bucket("runs").load(newest, RunRecord) if newest is not None else None


async def has_expired_events(bus: Bus, records: Sequence[SessionRecord]) -> bool:
    for record in records:
        if len(record.runs) >= MAX_SESSION_RUNS or (
            record.runs and await _is_run_cut(bus, record.runs[0])
        ):
            return True
    return False


async def _is_run_cut(bus: Bus, run_id: str) -> bool:
    record = await bus.bucket("runs").load(run_id, RunRecord)
    begun = 1
    if record is not None:
        first = record.first_event
        if first is None:
            lifecycle = await lifecycle_of(bus, run_id)
            if lifecycle is None:
                return False  # the run has not begun, so no event can have expired
            first = int(lifecycle.headers.get(FIRST, lifecycle.sequence))
        # The read begins at the run's first event. If it began at the stream's first message, the
        # NATS server would have to count the run's events in the whole stream, which takes 20 ms or
        # more.
        begun = first
    found, _ = await read(bus, events_for(run_id), events_of_run(run_id), begun, 1)
    return not found or found[0].headers[SEQUENCE] != "1"


async def idle_since(bus: Bus, session: Session) -> int | None:
    """Return the stream sequence of the last event that ended or paused a run of the session: None
    while a leg is active or queued, 0 if there is no such event. A client that has read this event
    gets no further one before the next start or decision: a paused run waits for a person, so it
    counts as idle until its approval is decided."""
    records = await records_of(bus, session)
    if any(record.queue for record in records):
        return None
    newest = [run_id for record in records for run_id in record.runs[-NEWEST:]]
    # A stream that waits for a queued run makes this check twice a second. The check is cheap, so
    # it comes before the look-ups below.
    if await _is_queued(bus, session, set(newest)):
        return None
    last = await asyncio.gather(*(lifecycle_of(bus, run_id) for run_id in newest))
    found = [stored for stored in last if stored is not None]
    if any(type_of(stored) not in _AT_REST for stored in found):
        return None
    if any(await asyncio.gather(*(_is_decided(bus, stored) for stored in found))):
        return None
    return max((stored.sequence for stored in found), default=0)


async def _is_decided(bus: Bus, lifecycle: Stored) -> bool:
    if type_of(lifecycle) != "lifecycle.paused":
        return False
    try:
        paused = orjson.loads(await unwrap(bus, lifecycle.payload))
        entry = await bus.bucket("approvals").get(str(paused["data"].get("approval_id")))
        if entry is None:
            return False
        return bool(orjson.loads(await unwrap(bus, entry.value))["status"] == "decided")
    except ObjectGone:
        return False  # the pause can no longer be decided


async def _is_queued(bus: Bus, session: Session, known: set[str]) -> bool:
    """Return whether a started run is not in the session's record yet."""
    return any(
        record.run_id not in known and session.has(record) for record in await active_runs(bus)
    )


RUNS: Final = "KV_runs"
# The pattern matches all keys. With a narrower pattern, the NATS server would have to count the
# matching messages at each request.
PATTERN: Final = ">"
OLDEST_S: Final = 600.0  # a record that was read longer ago than these seconds is dropped
_INACTIVE: Final = ENDED | {"paused"}


class ActiveRuns:
    """Reads the records of the runs that neither have ended nor pause, and changed in ten minutes:
    once for all streams with `until=idle`, each of which needs them twice a second."""

    def __init__(self) -> None:
        self._next = 0
        self._lock = asyncio.Lock()
        # Maps a record's subject to a pair: the time when the record was read, and the record. The
        # pairs are in the order in which the records were read.
        self._records: dict[str, tuple[float, RunRecord]] = {}

    async def now(self, bus: Bus) -> list[RunRecord]:
        async with self._lock:
            if not self._next:
                since = bus.clock.now() - timedelta(seconds=OLDEST_S)
                first = await bus.since(RUNS, since)
                if first is None:
                    return []
                self._next = first.sequence
            async for stored in replay(bus, RUNS, PATTERN, self._next):
                self._next = stored.sequence + 1
                self._learn(stored.subject, stored.payload)
        self._forget()
        return [record for _, record in self._records.values()]

    def _learn(self, subject: str, payload: bytes) -> None:
        self._records.pop(subject, None)
        if not payload:
            return
        try:
            record = RunRecord.model_validate_json(payload)
        except ValidationError as error:
            # If this error were raised, one bad record would fail the requests of all sessions.
            log.warning("%s cannot be read: %s", subject, error, extra=run_of(subject))
            return
        if record.status not in _INACTIVE:
            self._records[subject] = (time.monotonic(), record)

    def _forget(self) -> None:
        oldest = time.monotonic() - OLDEST_S
        for subject, (read_at, _) in list(self._records.items()):
            if read_at >= oldest:
                return
            del self._records[subject]


_of: WeakKeyDictionary[Bus, ActiveRuns] = WeakKeyDictionary()


async def active_runs(bus: Bus) -> list[RunRecord]:
    return await _of.setdefault(bus, ActiveRuns()).now(bus)
