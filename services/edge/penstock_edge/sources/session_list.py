"""Lists the sessions of a user from an index in memory (decision 0140).

Since release 0.2, a session's record names its owner. The key of an older record is a hash that
includes the owner, but the record does not name the owner. For an older record, the edge takes the
owner from the session's runs. If the runs have expired, the edge computes the key of a session of
the user who lists sessions. If the computed key is the record's key, this user is the owner. Each
process makes this comparison once for each user.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal, NamedTuple

import orjson
from pydantic import ValidationError

from penstock import telemetry
from penstock.bus import Bus
from penstock.bus.records import RunRecord, SessionRecord
from penstock.bus.state.bucket_index import BucketIndex, Change, IndexRows, number_of
from penstock.bus.subjects import is_run_id, session_key
from penstock_edge.sources.run_list import Row, RunList, RunRows, packed, run_id_of, unix_ms

log = logging.getLogger(__name__)

BUCKET: Final = "sessions"
# the number of records that `assign` compares with a user before other tasks may run; it takes 2 ms
COMPARED: Final = 500
READ_AT_ONCE: Final = 100  # the number of sessions whose records and runs are read at the same time
KNOWN_USERS: Final = 10_000
_PUT: Final = (
    "INSERT INTO sessions VALUES (NULL, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?) ON CONFLICT (key) DO UPDATE"
    " SET owner = coalesce(excluded.owner, owner), agent = excluded.agent,"
    " agent_id = excluded.agent_id, session_id = excluded.session_id, created = excluded.created,"
    " updated = excluded.updated, first = excluded.first, last = excluded.last, seq = excluded.seq"
)
_COUNT_NEW: Final = (
    "INSERT INTO session_counts SELECT new.owner, new.agent, 1 WHERE new.owner IS NOT NULL"
    " ON CONFLICT DO UPDATE SET count = count + 1;"
)
_COUNT_OLD: Final = (
    "UPDATE session_counts SET count = count - 1 WHERE owner = old.owner AND agent = old.agent;"
    " DELETE FROM session_counts WHERE owner = old.owner AND agent = old.agent AND count = 0;"
)

SortedBy = Literal["created", "updated"]


class SessionRow(NamedTuple):
    """A row of the table `sessions`, in the order of the columns after `n`."""

    key: bytes | None
    owner: int | None
    agent: int
    agent_id: str | None
    session_id: str | None
    created: int | None
    updated: int | None
    first: bytes | None
    last: bytes | None
    sequence: int


class KnownRun(NamedTuple):
    """What the index of runs knows of one run; `updated` is in Unix milliseconds."""

    owner: int
    updated: int


class Found(NamedTuple):
    """The key of a session's record, and the ids of the session's first and last run."""

    key: str
    first: str | None
    last: str | None

    @property
    def ends(self) -> list[str]:
        """The ids that are known."""
        return [run for run in (self.first, self.last) if run is not None]


class SessionRows(IndexRows):
    """The index's rows of all sessions, in the same database as the rows of all runs.

    `updated` is the time when the session's last run changed, in Unix milliseconds. `owner` is NULL
    if the owner is not known. Only rows without an owner have an `agent_id` and a `session_id`.
    """

    def __init__(self, runs: RunRows) -> None:
        super().__init__(
            "sessions",
            "CREATE TABLE sessions(n INTEGER PRIMARY KEY AUTOINCREMENT, key BLOB UNIQUE,"
            " owner INT, agent INT, agent_id TEXT, session_id TEXT, created INT, updated INT,"
            " first BLOB, last BLOB, seq INT)",
            "CREATE INDEX sessions_by_created ON sessions(owner, created, n, agent)",
            "CREATE INDEX sessions_by_updated ON sessions(owner, updated, n, agent)",
            "CREATE INDEX sessions_by_last ON sessions(last)",
            "CREATE INDEX sessions_without_owner ON sessions(n) WHERE owner IS NULL",
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
        # With AUTOINCREMENT, a new row never gets the number of a deleted row. For each user,
        # `assign` continues after the last row that was compared with this user. If a new row got
        # an earlier number, `assign` would never compare this row with the user, and the user's
        # list would lack the session.
        runs.on_rows.append(self._on_runs)

    def put(self, changes: Sequence[Change]) -> None:
        """Store the rows of the changed records; log values that are no records of sessions."""
        rows, gone = [], []
        for change in changes:
            row = self._row(change) if change.value is not None else None
            if row is not None:
                rows.append(row)
            else:
                gone.append((_key(change.key),))
        self.write("DELETE FROM sessions WHERE key = ?", gone)
        self.write(_PUT, rows)

    def drop(self, key: str, sequence: int) -> None:
        """Drop the row of a session, unless the row has a later sequence."""
        self.write("DELETE FROM sessions WHERE key = ? AND seq < ?", [(_key(key), sequence)])

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
        """Return sessions in order; with a `limit` of -1, all sessions."""
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

    def assign(self, user_id: str, after: int) -> int | None:
        """Set the owner of those rows without an owner whose session belongs to this user.

        One call compares at most `COMPARED` rows, whose numbers are greater than `after`. The
        result is the number of the last compared row, which is `after` for the next call, or None
        if there are no more rows.
        """
        some = self.rows(
            "SELECT n, key, agent_id, session_id FROM sessions INDEXED BY sessions_without_owner"
            " WHERE owner IS NULL AND n > ? ORDER BY n LIMIT ?",
            (after, COMPARED),
        )
        owner = number_of(user_id)
        mine = [
            (owner, n)
            for n, key, agent, session in some
            if session_key(user_id, agent, session) == key.hex()
        ]
        self.write("UPDATE sessions SET owner = ? WHERE n = ?", mine)
        return int(some[-1][0]) if some else None

    def _on_runs(self, runs: Sequence[Row]) -> None:
        self.write(
            "UPDATE sessions SET updated = ? WHERE last = ?",
            [(run.updated, run.key) for run in runs],
        )

    def _row(self, change: Change) -> SessionRow | None:
        record = _record(change)
        if record is None:
            telemetry.UNREADABLE_RECORDS.labels(BUCKET).inc()
            log.warning(
                "the record %s in KV %s cannot be read; lists of sessions leave the session out. "
                "Repair or delete the record",
                change.key,
                BUCKET,
            )
            return None
        agent, session = record["agent"], record["session_id"]
        runs = [packed(run) for run in record.get("runs") or ()]
        first, last = (runs[0], runs[-1]) if runs else (None, None)
        owner = self._owner(record, change.key, (last, first))
        created = unix_ms(record.get("created_at")) if first is None else _time_ms(first)
        return SessionRow(
            key=_key(change.key),
            owner=owner,
            agent=number_of(agent),
            agent_id=agent if owner is None else None,
            session_id=session if owner is None else None,
            created=created,
            updated=created if last is None else self._updated(last),
            first=first,
            last=last,
            sequence=change.sequence,
        )

    def _owner(self, record: dict[str, Any], key: str, runs: Sequence[bytes | None]) -> int | None:
        """Return the owner that the record names, or that one of its runs has, else None.

        The key proves the named owner, because it is a hash that includes the owner.
        """
        user_id = record.get("user_id")
        ids = record["agent"], record["session_id"]
        if isinstance(user_id, str) and session_key(user_id, *ids) == key:
            return number_of(user_id)
        known = (self._run(run) for run in runs if run is not None)
        return next((run.owner for run in known if run is not None), None)

    def _updated(self, last: bytes) -> int:
        """Return when the last run changed, or when it was created if its record has expired."""
        known = self._run(last)
        return _time_ms(last) if known is None else known.updated

    def _run(self, key: bytes) -> KnownRun | None:
        found = self.rows("SELECT owner, updated FROM runs WHERE key = ?", (key,))
        return KnownRun(int(found[0][0]), int(found[0][1])) if found else None


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
        # maps each user to the number of the last row that was compared with the user
        self._compared: dict[str, int] = {}

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
        """Return a page of the owner's sessions with these agents, and the number of all such
        sessions.

        `first` is the number of sessions before the page. With a `limit` of -1, the page has no
        limit.
        """
        await self._caught_up(owner)
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
        """Return a page, as `page` does, of the sessions whose first message contains `name`.

        `name` must be casefolded. This method takes longer than `page`, because it reads the record
        of the first run of each session of the owner.
        """
        await self._caught_up(owner)
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

    async def _caught_up(self, owner: str) -> None:
        await self.index.caught_up()
        await self._runs.index.caught_up()
        place: int | None = self._compared.get(owner, 0)
        while place is not None:
            if len(self._compared) >= KNOWN_USERS:
                self._compared.clear()
            self._compared[owner] = place
            place = self.rows.assign(owner, place)
            await asyncio.sleep(0)

    async def _read(self, owner: str, found: Sequence[Found]) -> list[ListedSession] | None:
        """Read the sessions' records; None if records were deleted since the rows were looked
        up."""
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
                # The record's key decides whether the user may see the session. A row may have a
                # wrong owner, and a record of an older version does not name its owner.
                if record and key == session_key(owner, record.agent, record.session_id):
                    shown.append(ListedSession(record, runs))
        return shown

    async def _ends(self, found: Sequence[Found]) -> list[tuple[RunRecord, ...]]:
        runs = await self._runs.records(sorted({run for each in found for run in each.ends}))
        return [tuple(runs[run] for run in each.ends if run in runs) for each in found]


def _of_agents(agents: Collection[str]) -> str:
    return f"owner = ? AND agent IN ({', '.join('?' * len(agents))})"


def _record(change: Change) -> dict[str, Any] | None:
    try:
        record = orjson.loads(change.value or b"")
    except orjson.JSONDecodeError:
        return None
    if not isinstance(record, dict) or _key(change.key) is None:
        return None
    runs = record.get("runs") or []
    texts = all(isinstance(record.get(name), str) for name in ("agent", "session_id"))
    listed = isinstance(runs, list) and all(isinstance(run, str) and is_run_id(run) for run in runs)
    return record if texts and listed else None


def _readable(key: str, value: bytes) -> SessionRecord | None:
    try:
        return SessionRecord.model_validate_json(value)
    except ValidationError as error:
        log.warning("the record %s in KV %s cannot be read: %s", key, BUCKET, error)
        return None


def _key(key: str) -> bytes | None:
    try:
        return bytes.fromhex(key)
    except ValueError:
        return None


def _time_ms(run: bytes) -> int:
    """Return the time when a run was created: the first 48 bits of its id are Unix milliseconds."""
    return int.from_bytes(run[:6])
