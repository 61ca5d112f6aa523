"""Lists the sessions of a user from an index in memory (decision 0140).

The key of a session's record is a hash that includes the owner, so the key proves the owner that
the record names.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal, NamedTuple

import orjson
from pydantic import ValidationError

from penstock import telemetry
from penstock.bus import Bus
from penstock.bus.records.legs import SessionRecord
from penstock.bus.records.runs import RunRecord
from penstock.bus.state.bucket_index import BucketIndex, Change, IndexRows, number_of
from penstock.bus.subjects import is_run_id, session_key
from penstock_edge.sources.run_list import Row, RunList, RunRows, packed, run_id_of, unix_ms

log = logging.getLogger(__name__)

BUCKET: Final = "sessions"
READ_AT_ONCE: Final = 100  # the number of sessions whose records and runs are read at the same time
_PUT: Final = (
    "INSERT INTO sessions VALUES (NULL, ?, ?, ?, ?, ?, ?, ?, ?) ON CONFLICT (key) DO UPDATE"
    " SET owner = excluded.owner, agent = excluded.agent, created = excluded.created,"
    " updated = excluded.updated, first = excluded.first, last = excluded.last, seq = excluded.seq"
)
_COUNT_NEW: Final = (
    "INSERT INTO session_counts VALUES (new.owner, new.agent, 1)"
    " ON CONFLICT DO UPDATE SET count = count + 1;"
)
_COUNT_OLD: Final = (
    "UPDATE session_counts SET count = count - 1 WHERE owner = old.owner AND agent = old.agent;"
    " DELETE FROM session_counts WHERE owner = old.owner AND agent = old.agent AND count = 0;"
)

SortedBy = Literal["created", "updated"]


class SessionRow(NamedTuple):
    """A row of the table `sessions`, in the order of the columns after `n`."""

    key: bytes
    owner: int
    agent: int
    created: int
    updated: int
    first: bytes | None
    last: bytes | None
    sequence: int


class Found(NamedTuple):
    """The key of a session's record, and the ids of the session's first and last run."""

    key: str
    first: str | None
    last: str | None

    @property
    def ends(self) -> list[str]:
        return [run for run in (self.first, self.last) if run is not None]


class SessionRows(IndexRows):
    """The index's rows of all sessions, in the same database as the rows of all runs. `updated` is
    the time when the session's last run changed, in Unix milliseconds."""

    def __init__(self, runs: RunRows) -> None:
        super().__init__(
            "sessions",
            "CREATE TABLE sessions(n INTEGER PRIMARY KEY, key BLOB UNIQUE, owner INT, agent INT,"
            " created INT, updated INT, first BLOB, last BLOB, seq INT)",
            "CREATE INDEX sessions_by_created ON sessions(owner, created, n, agent)",
            "CREATE INDEX sessions_by_updated ON sessions(owner, updated, n, agent)",
            "CREATE INDEX sessions_by_last ON sessions(last)",
            # This table has the number of sessions for each owner and agent, so no request has to
            # count rows.
            "CREATE TABLE session_counts(owner INT, agent INT, count INT,"
            " PRIMARY KEY (owner, agent)) WITHOUT ROWID",
            f"CREATE TRIGGER sessions_added AFTER INSERT ON sessions BEGIN {_COUNT_NEW} END",
            f"CREATE TRIGGER sessions_gone AFTER DELETE ON sessions BEGIN {_COUNT_OLD} END",
            "CREATE TRIGGER sessions_moved AFTER UPDATE OF owner, agent ON sessions"
            " WHEN old.owner IS NOT new.owner OR old.agent IS NOT new.agent"
            f" BEGIN {_COUNT_OLD} {_COUNT_NEW} END",
            beside=runs,
        )
        runs.on_rows.append(self._on_runs)

    def put(self, changes: Sequence[Change]) -> None:
        self.upsert(changes, self._rows_of, _PUT)

    def key_of(self, key: str) -> bytes | None:
        try:
            return bytes.fromhex(key)
        except ValueError:
            return None

    def of(
        self,
        owner: str,
        agents: Collection[str],
        sort_by: SortedBy,
        *,
        descending: bool,
        first: int = 0,
        limit: int = -1,
    ) -> list[Found]:
        order = "DESC" if descending else "ASC"
        found = self.rows(
            f"SELECT key, first, last FROM sessions {_BY[sort_by]} WHERE {_of_agents(agents)}"
            f" ORDER BY {sort_by} {order}, n {order} LIMIT ? OFFSET ?",
            (number_of(owner), *map(number_of, agents), limit, first),
        )
        return [
            Found(key.hex(), first and run_id_of(first), last and run_id_of(last))
            for key, first, last in found
        ]

    def count(self, owner: str, agents: Collection[str]) -> int:
        sql = f"SELECT sum(count) FROM session_counts WHERE {_of_agents(agents)}"
        return int(self.rows(sql, (number_of(owner), *map(number_of, agents)))[0][0] or 0)

    def _on_runs(self, runs: Sequence[Row]) -> None:
        self.write(
            "UPDATE sessions SET updated = ? WHERE last = ?",
            [(run.updated, run.key) for run in runs],
        )

    def _rows_of(self, change: Change) -> list[SessionRow]:
        record = _record(change)
        if record is None:
            telemetry.UNREADABLE_RECORDS.labels(BUCKET).inc()
            log.warning(
                "the record %s in KV %s cannot be read; lists of sessions leave the session out. "
                "Repair or delete the record",
                change.key,
                BUCKET,
            )
            return []
        runs = [packed(run) for run in record.get("runs") or ()]
        first, last = (runs[0], runs[-1]) if runs else (None, None)
        created = unix_ms(record.get("created_at")) if first is None else _time_ms(first)
        row = SessionRow(
            key=bytes.fromhex(change.key),
            owner=number_of(record["user_id"]),
            agent=number_of(record["agent"]),
            created=created,
            updated=created if last is None else self._updated(last),
            first=first,
            last=last,
            sequence=change.sequence,
        )
        return [row]

    def _updated(self, last: bytes) -> int:
        """If the run's record has expired, it is the time at which the run was created."""
        found = self.rows("SELECT updated FROM runs WHERE key = ?", (last,))
        return int(found[0][0]) if found else _time_ms(last)


_BY: Final = {
    "created": "INDEXED BY sessions_by_created",
    "updated": "INDEXED BY sessions_by_updated",
}


@dataclass(frozen=True, slots=True)
class ListedSession:
    """A session, with the records of its first and last run if these records still exist."""

    record: SessionRecord
    ends: tuple[RunRecord, ...]


class SessionList:
    """Lists the sessions of users, in one edge."""

    def __init__(self, bus: Bus, runs: RunList) -> None:
        self._runs = runs
        self.rows = SessionRows(runs.rows)
        self.index = BucketIndex(bus, BUCKET, self.rows)

    async def page(
        self,
        owner: str,
        agents: Collection[str],
        sort_by: SortedBy = "created",
        *,
        descending: bool = False,
        first: int = 0,
        limit: int = -1,
    ) -> tuple[list[ListedSession], int]:
        """Return a page of the owner's sessions with these agents, and the number of all such."""
        await self._caught_up()
        while True:
            found = self.rows.of(
                owner, agents, sort_by, descending=descending, first=first, limit=limit
            )
            shown = await self._read(owner, found)
            if shown is not None:
                return shown, self.rows.count(owner, agents)

    async def named(
        self,
        owner: str,
        agents: Collection[str],
        name: str,
        sort_by: SortedBy,
        *,
        descending: bool,
        first: int,
        limit: int,
    ) -> tuple[list[ListedSession], int]:
        """Return a page, as `page` does, of the sessions whose first message contains the
        casefolded `name`. This takes longer: it reads the record of the first run of each session
        of the owner."""
        await self._caught_up()
        fitting: list[Found] = []
        every = self.rows.of(owner, agents, sort_by, descending=descending)
        for begin in range(0, len(every), READ_AT_ONCE):
            some = every[begin : begin + READ_AT_ONCE]
            messages = await self._ends(some)
            fitting += [
                each
                for each, ends in zip(some, messages, strict=True)
                if name in (ends[0].message.casefold() if ends else "")
            ]
        shown = await self._read(owner, fitting[first : first + limit])
        return shown or [], len(fitting)

    async def _caught_up(self) -> None:
        await self.index.caught_up()
        await self._runs.index.caught_up()

    async def _read(self, owner: str, found: Sequence[Found]) -> list[ListedSession] | None:
        """Return None if records were deleted since the rows were looked up."""
        shown: list[ListedSession] = []
        # ADK's list has all sessions of a user. The sessions are read in parts, so that the process
        # can handle other requests between two parts.
        for begin in range(0, len(found), READ_AT_ONCE):
            some = found[begin : begin + READ_AT_ONCE]
            values = await self.index.values([each.key for each in some])
            if len(values) < len(some):
                return None
            ends = await self._ends(some)
            for (key, _, _), runs in zip(some, ends, strict=True):
                record = _readable(key, values[key].value)
                # The row's owner is a number, which two users may share. The key decides.
                if record and key == session_key(owner, record.agent, record.session_id):
                    shown.append(ListedSession(record, runs))
        return shown

    async def _ends(self, found: Sequence[Found]) -> list[tuple[RunRecord, ...]]:
        runs = await self._runs.records(sorted({run for each in found for run in each.ends}))
        return [tuple(runs[run] for run in each.ends if run in runs) for each in found]


def _of_agents(agents: Collection[str]) -> str:
    return f"owner = ? AND agent IN ({', '.join('?' * len(agents))})"


def _record(change: Change) -> dict[str, Any] | None:
    """Return None for anything but a session's record with a proven owner."""
    try:
        record = orjson.loads(change.value or b"")
    except orjson.JSONDecodeError:
        return None
    if not isinstance(record, dict):
        return None
    names: list[Any] = [record.get(name) for name in ("user_id", "agent", "session_id")]
    runs = record.get("runs") or []
    texts = all(isinstance(name, str) for name in names)
    listed = isinstance(runs, list) and all(isinstance(run, str) and is_run_id(run) for run in runs)
    return record if texts and listed and session_key(*names) == change.key else None


def _readable(key: str, value: bytes) -> SessionRecord | None:
    try:
        return SessionRecord.model_validate_json(value)
    except ValidationError as error:
        log.warning("the record %s in KV %s cannot be read: %s", key, BUCKET, error)
        return None


def _time_ms(run: bytes) -> int:
    """Return the first 48 bits of the run's id, the Unix milliseconds of its creation."""
    return int.from_bytes(run[:6])
