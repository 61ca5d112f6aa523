"""List approvals by an index in memory: the urgent ones first, then all others, the newest first.

An approval is urgent if it is pending and has a deadline; urgent approvals are in the order of
their deadlines. A client that reads page after page gets each approval once, also if approvals are
decided meanwhile. So a cursor has a time, the `horizon`: an approval that was urgent at that time
keeps its place among the urgent ones in all further pages. Without the horizon, an approval that is
decided between two pages would move, and the client would get it twice or never.
"""

from __future__ import annotations

import asyncio
import base64
import binascii
import logging
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from hashlib import blake2b
from typing import Any, Final, get_args

import orjson

from penstock import telemetry
from penstock.bus import Bus, ObjectGone
from penstock.bus.records import ApprovalRecord
from penstock.bus.state.bucket_index import BucketIndex, Change
from penstock.bus.state.index_rows import SLICE, IndexRows, number_of
from penstock_approvals.records import BUCKET, ApprovalRecords, UnreadableRecord

log = logging.getLogger(__name__)

STATUSES: Final = {
    status: code
    for code, status in enumerate(get_args(ApprovalRecord.model_fields["status"].annotation))
}
NEVER: Final = 2**62  # the deadline of an approval without a deadline
READ_AT_ONCE: Final = 100  # other requests are handled between two reads of so many records
_COLUMNS: Final = {
    "user_id": "owner",
    "status": "status",
    "run_id": "run",
    "agent": "agent",
    "session_id": "session",
}


@dataclass(frozen=True, slots=True)
class Place:
    """The place of an approval in the list, from which the next page continues.

    `deadline` is in Unix milliseconds. `age` is the negative time of the request in Unix
    milliseconds, so that the newest comes first. `tie` orders the requests of one millisecond: it
    is a number of the approval's id. `horizon` is in Unix nanoseconds, by NATS's clock.
    """

    horizon: int
    urgent: bool = True  # whether the approval was urgent at the horizon
    deadline: int = -NEVER
    age: int = -NEVER
    tie: int = -1

    def cursor(self) -> str:
        """Return the place as text for a client."""
        parts = [self.horizon, int(self.urgent), self.deadline, self.age, self.tie]
        return base64.urlsafe_b64encode(orjson.dumps(parts)).decode().rstrip("=")

    @classmethod
    def parse(cls, text: str) -> Place:
        """Return the place of a cursor.

        Raises:
            ValueError: the text is not a cursor.
        """
        try:
            parts = orjson.loads(base64.urlsafe_b64decode(text + "=" * (-len(text) % 4)))
            horizon, is_urgent, deadline, age, tie = parts
        except (ValueError, TypeError, binascii.Error) as error:
            raise ValueError("not a cursor") from error
        numbers = (horizon, is_urgent, deadline, age, tie)
        in_range = all(type(each) is int and -NEVER <= each <= NEVER for each in numbers)
        if not in_range or is_urgent not in (0, 1):
            raise ValueError("not a cursor")
        return cls(horizon, bool(is_urgent), deadline, age, tie)


class ApprovalRows(IndexRows):
    """The rows of all approvals.

    `closed`: when an approval with a deadline ceased to be urgent, in Unix nanoseconds by NATS's
    clock; 0 for all others.
    """

    def __init__(self) -> None:
        place = "age, tie, status, closed"
        super().__init__(
            "approvals",
            "CREATE TABLE approvals(key TEXT UNIQUE, owner INT, age INT, tie INT, status INT,"
            " agent INT, session INT, run INT, urgent INT, deadline INT, closed INT, seq INT)",
            f"CREATE INDEX approvals_by_age ON approvals({place}, agent, session)",
            f"CREATE INDEX approvals_by_owner ON approvals(owner, {place})",
            f"CREATE INDEX approvals_by_status ON approvals(owner, status, {place})",
            f"CREATE INDEX approvals_by_agent ON approvals(owner, agent, {place})",
            "CREATE INDEX approvals_by_session ON approvals(session)",
            "CREATE INDEX approvals_by_run ON approvals(run)",
            "CREATE INDEX approvals_urgent ON approvals(deadline, age, tie) WHERE urgent",
            "CREATE INDEX approvals_by_end ON approvals(closed) WHERE closed",
            "CREATE INDEX approvals_urgent_of ON approvals(owner, deadline, age, tie) WHERE urgent",
            "CREATE INDEX approvals_by_end_of ON approvals(owner, closed) WHERE closed",
        )

    def put(self, changes: Sequence[Change]) -> None:
        """Take over the changes; report values that are no records of approvals."""
        rows: dict[str, tuple[Any, ...] | None] = {}
        for change in changes:
            rows[change.key] = self._row(change) if change.value is not None else None
        self.write("DELETE FROM approvals WHERE key = ?", [(key,) for key in rows])
        self.write(
            "INSERT INTO approvals VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
            [row for row in rows.values() if row is not None],
        )

    def drop(self, key: str, sequence: int) -> None:
        """Drop the row of an approval, unless the row is of a later sequence."""
        self.write("DELETE FROM approvals WHERE key = ? AND seq < ?", [(key, sequence)])

    def horizon(self, owners: Collection[str] | None) -> int:
        """Return when the last approval of these owners ceased to be urgent; 0 if none did."""
        every = "SELECT max(closed) FROM approvals INDEXED BY approvals_by_end WHERE closed"
        one = (
            "SELECT max(closed) FROM approvals INDEXED BY approvals_by_end_of"
            " WHERE owner = ? AND closed"
        )
        found = (
            [self.rows(every)]
            if owners is None
            else [self.rows(one, (number_of(owner),)) for owner in owners]
        )
        return max((rows[0][0] or 0 for rows in found), default=0)

    def urgent(
        self, owner: str | None, wanted: Mapping[str, str], after: Place, limit: int
    ) -> list[tuple[int, int, int, str]]:
        """Return the approvals that were urgent at the horizon, as (deadline, age, tie, key)."""
        conditions, given = _conditions(_all_of(owner, wanted))
        of = "" if owner is None else "_of"
        narrow = next(
            (f"approvals_by_{by}" for by in ("run", "session") if f"{by}_id" in wanted), ""
        )
        base = "SELECT deadline, age, tie, key FROM approvals INDEXED BY {} WHERE {}"
        tail = f" AND (deadline, age, tie) > (?, ?, ?) {conditions} ORDER BY 1, 2, 3 LIMIT ?"
        given = [after.deadline, after.age, after.tie, *given, limit]
        found = self.rows(base.format(narrow or f"approvals_urgent{of}", "urgent") + tail, given)
        if "status" not in wanted:
            sql = base.format(narrow or f"approvals_by_end{of}", "closed AND closed > ?") + tail
            found += self.rows(sql, (after.horizon, *given))
        return found

    def others(
        self, owner: str | None, wanted: Mapping[str, str], after: Place, limit: int
    ) -> tuple[list[tuple[int, int, str]], Place | None]:
        """Look through some approvals that were not urgent at the horizon, the newest first.

        Returns those that fit as (age, tie, key), and the place from which to continue, or None if
        no more approvals fit.
        """
        index, by = _index(owner, wanted)
        rest = _all_of(owner, wanted)
        found_by, start = _conditions({name: rest.pop(name) for name in by})
        conditions, given = _conditions(rest)
        base = f"FROM approvals INDEXED BY {index} WHERE (age, tie) > (?, ?) {found_by}"
        start = [after.age, after.tie, *start]
        to: Place | None = None
        if rest and index not in _NARROW:
            sql = f"SELECT age, tie {base} ORDER BY age, tie LIMIT 1 OFFSET {SLICE - 1}"
            if at := self.rows(sql, start):
                to = replace(after, age=at[0][0], tie=at[0][1])
                conditions += " AND (age, tie) <= (?, ?)"
                given += at[0]
        if "status" not in wanted:
            conditions += " AND closed <= ?"
            given.append(after.horizon)
        sql = f"SELECT age, tie, key {base} AND NOT urgent {conditions} ORDER BY age, tie LIMIT ?"
        found = self.rows(sql, (*start, *given, limit))
        if len(found) == limit:
            to = replace(after, age=found[-1][0], tie=found[-1][1])
        return found, to

    def _row(self, change: Change) -> tuple[Any, ...] | None:
        record = _document(change.value or b"")
        if record is None:
            _report(change.key, "it is no record of an approval")
            return None
        pending = record["status"] == "pending"
        deadline = _unix_ms(record["expires_at"]) if record.get("expires_at") else NEVER
        return (
            change.key,
            number_of(record["user_id"]),
            -_unix_ms(record["requested_at"]),
            int.from_bytes(blake2b(change.key.encode(), digest_size=7).digest()),
            STATUSES.get(record["status"], -1),
            number_of(str(record.get("agent"))),
            number_of(str(record.get("session_id"))),
            number_of(str(record.get("run_id"))),
            pending and deadline != NEVER,
            deadline,
            0 if pending or deadline == NEVER else self._closed(change),
            change.sequence,
        )

    def _closed(self, change: Change) -> int:
        """Return when the approval ceased to be urgent. A later write does not change the time."""
        sql = "SELECT closed FROM approvals WHERE key = ? AND closed"
        known = self.rows(sql, (change.key,))
        return int(known[0][0]) if known else _unix_ns(change.stored_at)


@dataclass(frozen=True, slots=True)
class Page:
    """A page of approvals. `next` is the cursor of the next page; None if there is none."""

    approvals: list[ApprovalRecord]
    next: str | None


class ApprovalList:
    """The list of approvals of one process."""

    def __init__(self, bus: Bus, records: ApprovalRecords) -> None:
        self.rows = ApprovalRows()
        self.index = BucketIndex(bus, BUCKET, self.rows)
        self._records = records

    async def page(
        self,
        owners: Collection[str] | None,
        sees: Callable[[str], bool],
        wanted: Mapping[str, str],
        after: Place | None,
        limit: int,
    ) -> Page:
        """Return a page of the approvals of these owners.

        Args:
            owners: the owners of the approvals' runs; None for the approvals of all owners.
            sees: whether the caller may see the approvals of an owner. The function decides by the
                record that is shown, so an error of the index cannot show a foreign approval.
            wanted: what the records have in `status`, `run_id`, `agent` and `session_id`.
            after: the place after which the page begins; None for the first page.
            limit: how many approvals are returned at most.

        Raises:
            BusError: the approvals cannot be read now.
        """
        await self.index.caught_up()
        place = after or Place(self.rows.horizon(owners))
        found: list[tuple[Place, ApprovalRecord]] = []
        while len(found) <= limit:
            missing = limit + 1 - len(found)
            places = await self._places(owners, wanted, place, missing)
            records = await self._read([key for _, key in places])
            for each, key in places:
                record = records.get(key)
                if record is None or not sees(record.user_id):
                    continue
                if all(getattr(record, name) == value for name, value in wanted.items()):
                    found.append((each, record))
            if len(places) < missing:
                break
            place = places[-1][0]
        shown = found[:limit]
        following = shown[-1][0].cursor() if len(found) > limit else None
        return Page([record for _, record in shown], following)

    async def _places(
        self,
        owners: Collection[str] | None,
        wanted: Mapping[str, str],
        after: Place,
        limit: int,
    ) -> list[tuple[Place, str]]:
        """Return the places and keys of the next approvals.

        There are fewer than `limit` only if there are no more.
        """
        each_owner = (None,) if owners is None else tuple(owners)
        found: list[tuple[Place, str]] = []
        if after.urgent and wanted.get("status", "pending") == "pending":
            urgent: list[tuple[int, int, int, str]] = []
            for owner in each_owner:
                urgent += self.rows.urgent(owner, wanted, after, limit)
            for deadline, age, tie, key in sorted(urgent)[:limit]:
                found.append((Place(after.horizon, True, deadline, age, tie), key))
        others: list[tuple[int, int, str]] = []
        start = replace(after, urgent=False, age=-NEVER, tie=-1) if after.urgent else after
        for owner in each_owner if len(found) < limit else ():
            place: Place | None = start
            seen = 0
            while place is not None and seen < limit:
                some, place = self.rows.others(owner, wanted, place, limit - seen)
                seen += len(some)
                others += some
                await asyncio.sleep(0)  # a filter that nothing fits looks through all rows
        for age, tie, key in sorted(others)[: limit - len(found)]:
            found.append((Place(after.horizon, False, 0, age, tie), key))
        return found

    async def _read(self, keys: Sequence[str]) -> dict[str, ApprovalRecord]:
        records = {}
        for begin in range(0, len(keys), READ_AT_ONCE):
            some = keys[begin : begin + READ_AT_ONCE]
            for key, entry in (await self.index.values(some)).items():
                try:
                    records[key] = await self._records.of(entry)
                except (ObjectGone, UnreadableRecord) as error:
                    _report(key, str(error))
        return records


# A run or a session has so few approvals that they are sorted for each page.
_NARROW: Final = ("approvals_by_run", "approvals_by_session")


def _index(owner: str | None, wanted: Mapping[str, str]) -> tuple[str, tuple[str, ...]]:
    """Return the index with the fewest rows to look through, and the fields that it finds."""
    for name, index in zip(("run_id", "session_id"), _NARROW, strict=True):
        if name in wanted:
            return index, (name,)
    if owner is None:
        return "approvals_by_age", ()
    for name in ("agent", "status"):
        if name in wanted:
            return f"approvals_by_{name}", ("user_id", name)
    return "approvals_by_owner", ("user_id",)


def _all_of(owner: str | None, wanted: Mapping[str, str]) -> dict[str, str]:
    return dict(wanted) if owner is None else {"user_id": owner, **wanted}


def _conditions(wanted: Mapping[str, str]) -> tuple[str, list[Any]]:
    sql = " ".join(f"AND {_COLUMNS[name]} = ?" for name in wanted)
    return sql, [STATUSES.get(v, -1) if k == "status" else number_of(v) for k, v in wanted.items()]


def _document(value: bytes) -> dict[str, Any] | None:
    try:
        record = orjson.loads(value)
    except orjson.JSONDecodeError:
        return None
    texts = ("user_id", "requested_at")
    known = isinstance(record, dict) and all(isinstance(record.get(each), str) for each in texts)
    return {"status": "pending", **record} if known else None


def _report(key: str, why: str) -> None:
    telemetry.UNREADABLE_RECORDS.labels(BUCKET).inc()
    log.warning("approval %s is left out of the list: %s", key, why)


def _unix_ms(timestamp: object) -> int:
    """Return the time in Unix milliseconds; 0 for a value that is no time of RFC 3339."""
    try:
        return int(datetime.fromisoformat(str(timestamp)).timestamp() * 1000)
    except (ValueError, OverflowError):
        return 0


def _unix_ns(timestamp: str) -> int:
    """Return a time of NATS in Unix nanoseconds; 0 if it is none."""
    try:
        seconds = int(datetime.fromisoformat(f"{timestamp[:19]}+00:00").timestamp())
    except ValueError:
        return 0
    fraction = timestamp[20:].rstrip("Z")
    return seconds * 10**9 + (int(fraction.ljust(9, "0")[:9]) if fraction.isdigit() else 0)
