"""Lists runs, the newest first, from an index in memory (decision 0140).

The order of run ids is that of their creation. A request for the next page names the last run of
the page before, so each run is on only one page, even if runs are created or change meanwhile.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Collection, Mapping, Sequence
from datetime import datetime
from typing import Any, Final, NamedTuple, get_args

import orjson
from pydantic import ValidationError

from penstock import telemetry
from penstock.bus import Bus
from penstock.bus.records.runs import ENDED, RunRecord, RunStatus
from penstock.bus.state.bucket_index import SLICE, BucketIndex, Change, IndexRows, number_of
from penstock.bus.subjects import is_run_id

log = logging.getLogger(__name__)

BUCKET: Final = "runs"
COMPLETED: Final = "completed"
STATUSES: Final = {status: code for code, status in enumerate(get_args(RunStatus))}
_OPEN: Final = tuple(code for status, code in STATUSES.items() if status not in ENDED)
# The conditions of partial indexes.
_IS_BELOW: Final = "parent != 0"
_IS_RARE: Final = f"status != {STATUSES[COMPLETED]}"
_IS_ERASED: Final = "erasure != 0"
_PARTIAL: Final = {
    "runs_by_parent": _IS_BELOW,
    "runs_by_any_status": _IS_RARE,
    "runs_by_erasure": _IS_ERASED,
}
MAX_BELOW: Final = 2000  # about as many runs below a run are looked for
# The keys from the first one on, up to the second one, which is not included.
Began = tuple[bytes, bytes]
EVER: Final[Began] = (b"", b"\xff" * 16)
_PUT: Final = (
    "INSERT INTO runs VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?) ON CONFLICT (key) DO UPDATE SET "
    "owner = excluded.owner, agent = excluded.agent, session = excluded.session, "
    "status = excluded.status, updated = excluded.updated, seq = excluded.seq, "
    "parent = excluded.parent, tenant = excluded.tenant, erasure = excluded.erasure, "
    "tags = excluded.tags, "
    "text = excluded.text"
)
# A row whose texts are searched takes about so many times as long as one with numbers alone.
TEXT_COST: Final = 8
_END_OF_TAG: Final = "\x1f"  # no tag contains it

JsonObject = dict[str, Any]
# The values of fields that runs must have, by their names: one, or several of which each fits.
Wanted = Mapping[str, str | Sequence[str]]


class Row(NamedTuple):
    """A row of the table `runs`, in the order of the columns. `updated` is in Unix milliseconds;
    the ids are numbers (`number_of`), and `parent`, `tenant` and `erasure` are 0 for none."""

    key: bytes
    owner: int
    agent: int
    session: int
    status: int
    updated: int
    sequence: int
    parent: int
    tenant: int
    erasure: int
    tags: str
    text: str


class Contained(NamedTuple):
    """What the texts of a run must contain: a text, and tags, each as `key=value`."""

    text: str = ""
    tags: tuple[str, ...] = ()

    @property
    def conditions(self) -> list[tuple[str, str]]:
        """Return columns with a text that each must contain."""
        text = [("text", folded(self.text))] if self.text else []
        return text + [("tags", _between_ends(tag)) for tag in self.tags]


ANYTHING: Final = Contained()


class OpenRun(NamedTuple):
    """A run that has not ended. `revision` is that of its record."""

    run_id: str
    status: str
    revision: int


class RunRows(IndexRows):
    """The index's rows of all runs. The key is the run id as 16 bytes, which keep the ids'
    order."""

    def __init__(self) -> None:
        super().__init__(
            "runs",
            "CREATE TABLE runs(key BLOB PRIMARY KEY, owner INT, agent INT, session INT,"
            " status INT, updated INT, seq INT, parent INT, tenant INT, erasure INT, tags TEXT,"
            " text TEXT) WITHOUT ROWID",
            # It covers what is searched: to look each row up would take three times as long.
            "CREATE INDEX runs_by_owner ON runs"
            "(owner, key, parent, tenant, status, agent, tags, text)",
            "CREATE INDEX runs_by_session ON runs(session, key)",
            "CREATE INDEX runs_by_agent ON runs(owner, agent, key, status)",
            "CREATE INDEX runs_by_status ON runs(owner, status, key, agent)",
            # These two are for those who see all runs. Most runs are completed, and such runs are
            # found without an index.
            "CREATE INDEX runs_by_any_agent ON runs(agent, key, status)",
            f"CREATE INDEX runs_by_any_status ON runs(status, key) WHERE {_IS_RARE}",
            f"CREATE INDEX runs_by_parent ON runs(parent, key) WHERE {_IS_BELOW}",
            f"CREATE INDEX runs_by_erasure ON runs(erasure, key) WHERE {_IS_ERASED}",
        )
        # Functions that are called with the rows of each batch after the batch was stored.
        self.on_rows: list[Callable[[Sequence[Row]], None]] = []
        # By run, while its messages are being deleted: the number of its event `system.erased`.
        self.withheld: dict[str, int] = {}

    def put(self, changes: Sequence[Change]) -> None:
        for change in changes:
            if b'"erasure"' in (change.value or b""):
                self._note_erasure(change)
        rows = self.upsert(changes, _rows, _PUT)
        for follow in self.on_rows:
            follow(rows)

    def _note_erasure(self, change: Change) -> None:
        erasure = (_record(change.value or b"") or {}).get("erasure") or {}
        if erasure.get("erased_at") is None and "sequence" in erasure:
            self.withheld[change.key] = erasure["sequence"]
        else:
            self.withheld.pop(change.key, None)

    def key_of(self, key: str) -> bytes | None:
        return key_of_run(key)

    def slice(
        self,
        owner: str | None,
        wanted: Wanted,
        before: bytes,
        limit: int,
        first: bytes,
        contained: Contained = ANYTHING,
    ) -> tuple[list[bytes], bytes | None]:
        """Search some rows before a key, from the key `first` on; return the keys of the rows that
        fit, the newest first. Also returns the key from which to continue, or None if no more rows
        can fit."""
        index, by = _index(owner, wanted, searches=contained != ANYTHING)
        indexed = f"INDEXED BY {index}" if index else ""
        others = {name: _codes(name, values) for name, values in wanted.items()}
        if owner is not None:
            others["user_id"] = _codes("user_id", owner)
        given = [code for name in by for code in others.pop(name)]
        base = "".join(f"{_COLUMNS[name]} = ? AND " for name in by)
        if index in _PARTIAL:
            # SQLite uses a partial index only for a query with its condition.
            base += f"{_PARTIAL[index]} AND "
        next_before = None
        texts = contained.conditions
        if others or texts:
            sql = f"SELECT key FROM runs {indexed} WHERE {base}key < ? ORDER BY key DESC"
            most = max(1, SLICE // TEXT_COST) if texts else SLICE
            at = self.rows(f"{sql} LIMIT 1 OFFSET {most - 1}", (*given, before))
            next_before = at[0][0] if at and at[0][0] > first else None
        conditions = " ".join(
            # Without the plus, SQLite may choose an index that does not cover the texts.
            [
                f"AND +{_COLUMNS[name]} IN ({', '.join('?' * len(codes))})"
                for name, codes in others.items()
            ]
            + [f"AND instr({column}, ?)" for column, _ in texts]
        )
        found = self.rows(
            f"SELECT key FROM runs {indexed} WHERE {base}key < ? AND key >= ? {conditions}"
            " ORDER BY key DESC LIMIT ?",
            (
                *given,
                before,
                next_before or first,
                *(code for codes in others.values() for code in codes),
                *(piece for _, piece in texts),
                limit,
            ),
        )
        keys = [key for (key,) in found]
        if len(keys) == limit:
            return keys, keys[-1]
        return keys, next_before

    def open_of_session(self, user_id: str, agent: str, session_id: str) -> list[OpenRun]:
        """Return the session's open runs, the oldest first, as far as the index knows."""
        marks = ", ".join("?" * len(_OPEN))
        rows = self.rows(
            "SELECT key, status, seq FROM runs INDEXED BY runs_by_session WHERE session = ? AND "
            f"owner = ? AND agent = ? AND status IN ({marks}) ORDER BY key",
            (*map(number_of, (session_id, user_id, agent)), *_OPEN),
        )
        names = {code: name for name, code in STATUSES.items()}
        return [OpenRun(run_id_of(key), names[status], seq) for key, status, seq in rows]

    def below(self, run_id: str) -> list[str]:
        found: list[str] = []
        level = [run_id]
        while level and len(found) < MAX_BELOW:
            marks = ", ".join("?" * len(level))
            sql = f"SELECT key FROM runs WHERE parent IN ({marks}) AND parent != 0 LIMIT ?"
            rows = self.rows(sql, [*map(number_of, level), MAX_BELOW])
            level = [run_id_of(key) for (key,) in rows]
            found += level
        return found


_COLUMNS: Final = {
    "user_id": "owner",
    "agent": "agent",
    "session_id": "session",
    "status": "status",
    "parent_run_id": "parent",
    "tenant": "tenant",
    "erasure_id": "erasure",
}


def _index(owner: str | None, wanted: Wanted, *, searches: bool) -> tuple[str, tuple[str, ...]]:
    """Return the index for which the fewest rows must be looked at, and its fields, which have one
    value each; "" for the table itself. `searches` means that texts are searched, which only one
    index covers."""
    if wanted.get("parent_run_id"):
        return "runs_by_parent", ("parent_run_id",)
    if "erasure_id" in wanted:
        return "runs_by_erasure", ("erasure_id",)
    if "session_id" in wanted:
        return "runs_by_session", ("session_id",)
    of, kind = ((), "any_") if owner is None else (("user_id",), "")
    # Most runs are completed, so the index by status finds too many rows for the status
    # `completed`, if something else is looked for, too.
    status = wanted.get("status", COMPLETED)
    is_rare = isinstance(status, str) and status != COMPLETED
    is_one = "status" in wanted and isinstance(status, str)
    if is_rare or (of and is_one and "agent" not in wanted and not searches):
        return f"runs_by_{kind}status", (*of, "status")
    if "agent" in wanted and not searches:
        return f"runs_by_{kind}agent", (*of, "agent")
    return ("runs_by_owner" if of else ""), of


class RunList:
    """Lists the runs of all users, in one edge."""

    def __init__(self, bus: Bus) -> None:
        self.rows = RunRows()
        self.index = BucketIndex(bus, BUCKET, self.rows)

    async def page(
        self,
        owners: Collection[str] | None,
        may_see: Callable[[str], bool],
        wanted: Wanted,
        before: str | None,
        limit: int,
        began: Began = EVER,
        contained: Contained = ANYTHING,
    ) -> tuple[list[JsonObject], bool]:
        """Return the newest runs of these owners (None: of all), and whether more runs follow.

        `may_see` is asked about the owner in the record that is shown, so an error of the index
        cannot show a run that the caller may not see. `wanted` are values of the records' `agent`,
        `session_id`, `status` (one, or several of which each fits), `tenant`, `parent_run_id` and
        `erasure_id`; an empty `parent_run_id` or `tenant` is that of a run without one. Only runs
        that have begun in the time `began` and are older than the run id `before` are returned.
        """
        await self.index.caught_up()
        found: list[JsonObject] = []
        first, end = began
        place = end if before is None else min(packed(before), end)
        while len(found) <= limit:
            missing = limit + 1 - len(found)
            keys = await self._keys(owners, wanted, place, missing, first, contained)
            ids = [run_id_of(key) for key in keys]
            values = await self.index.values(ids)
            for run_id in ids:
                record = _record(values[run_id].value) if run_id in values else None
                if record is None or not may_see(record["user_id"]):
                    continue
                if all(_value(record, name) in _values(each) for name, each in wanted.items()):
                    found.append(record)
            if len(keys) < missing:
                break
            place = keys[-1]
        return found[:limit], len(found) > limit

    async def records(self, run_ids: Sequence[str]) -> dict[str, RunRecord]:
        found: dict[str, RunRecord] = {}
        for run_id, entry in (await self.index.bucket.many(run_ids)).items():
            try:
                found[run_id] = RunRecord.model_validate_json(entry.value)
            except ValidationError as error:
                log.warning("the record of run %s cannot be read: %s", run_id, error)
        return found

    async def _keys(
        self,
        owners: Collection[str] | None,
        wanted: Wanted,
        before: bytes,
        limit: int,
        first: bytes,
        contained: Contained,
    ) -> list[bytes]:
        keys: list[bytes] = []
        for owner in owners if owners is not None else (None,):
            for each in _searches(wanted):
                keys += await self._keys_of(owner, each, before, limit, first, contained)
        return sorted(keys, reverse=True)[:limit]

    async def _keys_of(
        self,
        owner: str | None,
        wanted: Wanted,
        before: bytes,
        limit: int,
        first: bytes,
        contained: Contained,
    ) -> list[bytes]:
        keys: list[bytes] = []
        place: bytes | None = before
        while place is not None and len(keys) < limit:
            missing = limit - len(keys)
            some, place = self.rows.slice(owner, wanted, place, missing, first, contained)
            keys += some
            # Other tasks may run here. If no run fits the filter, this loop checks all rows, which
            # takes long.
            await asyncio.sleep(0)
        return keys


def _rows(change: Change) -> list[Row]:
    record = _record(change.value or b"")
    if record is None or not is_run_id(change.key):
        telemetry.UNREADABLE_RECORDS.labels(BUCKET).inc()
        log.warning(
            "run %s: its record in KV %s cannot be read; lists of runs leave the run out. Repair "
            "or delete the record",
            change.key,
            BUCKET,
        )
        return []
    row = Row(
        packed(change.key),
        number_of(record["user_id"]),
        number_of(str(record.get("agent"))),
        number_of(str(record.get("session_id"))),
        STATUSES.get(str(record.get("status")), -1),
        unix_ms(record.get("updated_at")),
        change.sequence,
        number_of(str(parent)) if (parent := record.get("parent_run_id")) else 0,
        number_of(str(tenant)) if (tenant := record.get("tenant")) else 0,
        number_of(str(erasure)) if (erasure := _value(record, "erasure_id")) else 0,
        _between_ends(*(f"{key}={value}" for key, value in (record.get("tags") or {}).items())),
        folded(str(record.get("message") or "")),
    )
    return [row]


def _between_ends(*tags: str) -> str:
    return "".join(f"{_END_OF_TAG}{tag}{_END_OF_TAG}" for tag in tags)


def folded(text: str) -> str:
    """Return a text as it is searched: without case, and with one space for all spaces."""
    return " ".join(text.casefold().split())


def _record(value: bytes) -> JsonObject | None:
    try:
        record = orjson.loads(value)
    except orjson.JSONDecodeError:
        return None
    known = isinstance(record, dict) and isinstance(record.get("user_id"), str)
    return record if known and isinstance(record.get("run_id"), str) else None


def _value(record: JsonObject, name: str) -> Any:
    """Return what a record has of a filter; an empty text for none."""
    found = (record.get("erasure") or {}).get("id") if name == "erasure_id" else record.get(name)
    return found or ""


def _searches(wanted: Wanted) -> list[Wanted]:
    """Return selections with one search of the index each. Runs that have not completed are few,
    and each status of theirs has an index; a search that takes completed runs, too, looks at most
    rows anyway."""
    statuses = _values(wanted.get("status", ()))
    if len(statuses) < 2 or COMPLETED in statuses:
        return [wanted]
    return [{**wanted, "status": each} for each in statuses]


def _values(values: str | Sequence[str]) -> Sequence[str]:
    return (values,) if isinstance(values, str) else values


def _codes(name: str, values: str | Sequence[str]) -> list[int]:
    if name == "status":
        return [STATUSES.get(value, -1) for value in _values(values)]
    return [number_of(value) if value else 0 for value in _values(values)]


def began_between(since: datetime | None, until: datetime | None) -> Began:
    """Return the ids of runs that have begun from one time to the other, which is not included."""
    first, end = EVER
    return _key_at(since) if since else first, _key_at(until) if until else end


def _key_at(time: datetime) -> bytes:
    # The first six bytes of a run's id are the time of its start.
    ms = int(time.timestamp() * 1000)
    return min(max(ms, 0), 2**48 - 1).to_bytes(6, "big") + bytes(10)


def packed(run_id: str) -> bytes:
    """Return a run id as 16 bytes; the bytes have the same order as the ids."""
    return bytes.fromhex(run_id.replace("-", ""))


def key_of_run(key: str) -> bytes | None:
    return packed(key) if is_run_id(key) else None


def run_id_of(key: bytes) -> str:
    text = key.hex()
    return f"{text[:8]}-{text[8:12]}-{text[12:16]}-{text[16:20]}-{text[20:]}"


def unix_ms(timestamp: object) -> int:
    try:
        return int(datetime.fromisoformat(str(timestamp)).timestamp() * 1000)
    except (ValueError, OverflowError):
        return 0
