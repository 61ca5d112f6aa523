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
_EVERYBODY: Final = 0  # the reader of rows that callers with the right to see everything list
_COLUMNS: Final = {
    "status": "status",
    "run_id": "run",
    "agent": "agent",
    "session_id": "session",
}


@dataclass(frozen=True, slots=True)
class Place:
    """The place of an approval in the list, from which the next page continues.

    `deadline` is in Unix milliseconds. `age` is the negative time of the request in Unix
    milliseconds, so that the newest comes first. `horizon` is in Unix nanoseconds, by NATS's clock.
    """

    horizon: int
    urgent: bool = True  # whether the approval was urgent at the horizon
    deadline: int = -NEVER
    age: int = -NEVER
    key: str = ""

    def cursor(self) -> str:
        """Return the place as text for a client."""
        parts = [self.horizon, int(self.urgent), self.deadline, self.age, self.key]
        return base64.urlsafe_b64encode(orjson.dumps(parts)).decode().rstrip("=")

    @classmethod
    def parse(cls, text: str) -> Place:
        """Return the place of a cursor.

        Raises:
            ValueError: the text is not a cursor.
        """
        try:
            parts = orjson.loads(base64.urlsafe_b64decode(text + "=" * (-len(text) % 4)))
            horizon, is_urgent, deadline, age, key = parts
        except (ValueError, TypeError, binascii.Error) as error:
            raise ValueError("not a cursor") from error
        numbers = (horizon, is_urgent, deadline, age)
        in_range = all(type(each) is int and -NEVER <= each <= NEVER for each in numbers)
        if not in_range or is_urgent not in (0, 1) or not isinstance(key, str):
            raise ValueError("not a cursor")
        return cls(horizon, bool(is_urgent), deadline, age, key)


class ApprovalRows(IndexRows):
    """The rows of all approvals.

    An approval has a row for each reader: for its owner, and for everybody. So a list for other
    readers, such as the approvals that wait for a role, needs further rows and no other query.
    """

    def __init__(self) -> None:
        super().__init__(
            "approvals",
            # `closed`: when an approval with a deadline ceased to be urgent, in Unix nanoseconds by
            # NATS's clock; 0 for all others
            "CREATE TABLE approvals(reader INT, age INT, key TEXT, status INT, agent INT,"
            " session INT, run INT, urgent INT, deadline INT, closed INT, seq INT,"
            " PRIMARY KEY (reader, age, key)) WITHOUT ROWID",
            "CREATE INDEX approvals_by_key ON approvals(key)",
            "CREATE INDEX approvals_by_run ON approvals(run)",
            "CREATE INDEX approvals_urgent ON approvals(reader, deadline, age, key, agent, session)"
            " WHERE urgent",
            "CREATE INDEX approvals_by_end ON approvals(reader, closed) WHERE closed",
        )

    def put(self, changes: Sequence[Change]) -> None:
        """Take over the changes; report values that are no records of approvals."""
        rows: dict[str, list[tuple[Any, ...]]] = {}
        for change in changes:
            rows[change.key] = self._rows(change) if change.value is not None else []
        self.write("DELETE FROM approvals WHERE key = ?", [(key,) for key in rows])
        self.write(
            "INSERT INTO approvals VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
            [row for each in rows.values() for row in each],
        )

    def drop(self, key: str, sequence: int) -> None:
        """Drop the rows of an approval, unless they are of a later sequence."""
        self.write("DELETE FROM approvals WHERE key = ? AND seq < ?", [(key, sequence)])

    def horizon(self, readers: Collection[int]) -> int:
        """Return when the last approval of these readers ceased to be urgent; 0 if none did."""
        sql = "SELECT max(closed) FROM approvals WHERE reader = ? AND closed"
        return max((self.rows(sql, (reader,))[0][0] or 0 for reader in readers), default=0)

    def urgent(
        self, reader: int, wanted: Mapping[str, str], after: Place, limit: int
    ) -> list[tuple[int, int, str]]:
        """Return the approvals that were urgent at the horizon, as (deadline, age, key)."""
        conditions, given = _conditions(wanted)
        base = "SELECT deadline, age, key FROM approvals INDEXED BY {} WHERE reader = ? AND {}"
        tail = f" AND (deadline, age, key) > (?, ?, ?) {conditions} ORDER BY 1, 2, 3 LIMIT ?"
        given = [after.deadline, after.age, after.key, *given, limit]
        by_run = "approvals_by_run" if "run_id" in wanted else ""
        sql = base.format(by_run or "approvals_urgent", "urgent") + tail
        found = self.rows(sql, (reader, *given))
        if "status" not in wanted:
            sql = base.format(by_run or "approvals_by_end", "closed AND closed > ?") + tail
            found += self.rows(sql, (reader, after.horizon, *given))
        return found

    def others(
        self, reader: int, wanted: Mapping[str, str], after: Place, limit: int
    ) -> tuple[list[tuple[int, str]], Place | None]:
        """Look through some approvals that were not urgent at the horizon, the newest first.

        Returns those that fit as (age, key), and the place from which to continue, or None if no
        more approvals fit.
        """
        conditions, given = _conditions(wanted)
        by_run = "INDEXED BY approvals_by_run" if "run_id" in wanted else ""
        base = f"SELECT age, key FROM approvals {by_run} WHERE reader = ? AND (age, key) > (?, ?)"
        start = (reader, after.age, after.key)
        to: Place | None = None
        if wanted and not by_run:  # a run has few approvals
            at = self.rows(f"{base} ORDER BY age, key LIMIT 1 OFFSET {SLICE - 1}", start)
            if at:
                to = replace(after, age=at[0][0], key=at[0][1])
                conditions += " AND (age, key) <= (?, ?)"
                given += at[0]
        if "status" not in wanted:
            conditions += " AND closed <= ?"
            given.append(after.horizon)
        sql = f"{base} AND NOT urgent {conditions} ORDER BY age, key LIMIT ?"
        found = self.rows(sql, (*start, *given, limit))
        if len(found) == limit:
            to = replace(after, age=found[-1][0], key=found[-1][1])
        return found, to

    def _rows(self, change: Change) -> list[tuple[Any, ...]]:
        record = _document(change.value or b"")
        if record is None:
            _report(change.key, "it is no record of an approval")
            return []
        pending = record["status"] == "pending"
        deadline = _unix_ms(record["expires_at"]) if record.get("expires_at") else NEVER
        row = (
            -_unix_ms(record["requested_at"]),
            change.key,
            STATUSES.get(record["status"], -1),
            number_of(str(record.get("agent"))),
            number_of(str(record.get("session_id"))),
            number_of(str(record.get("run_id"))),
            pending and deadline != NEVER,
            deadline,
            0 if pending or deadline == NEVER else self._closed(change),
            change.sequence,
        )
        return [(reader, *row) for reader in (_EVERYBODY, _reader(record["user_id"]))]

    def _closed(self, change: Change) -> int:
        """Return when the approval ceased to be urgent. A later write does not change the time."""
        sql = "SELECT closed FROM approvals WHERE key = ? AND closed LIMIT 1"
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
        readers = [_EVERYBODY] if owners is None else [_reader(owner) for owner in owners]
        place = after or Place(self.rows.horizon(readers))
        found: list[tuple[Place, ApprovalRecord]] = []
        while len(found) <= limit:
            missing = limit + 1 - len(found)
            places = await self._places(readers, wanted, place, missing)
            records = await self._read([each.key for each in places])
            for each in places:
                record = records.get(each.key)
                if record is None or not sees(record.user_id):
                    continue
                if all(getattr(record, name) == value for name, value in wanted.items()):
                    found.append((each, record))
            if len(places) < missing:
                break
            place = places[-1]
        shown = found[:limit]
        following = shown[-1][0].cursor() if len(found) > limit else None
        return Page([record for _, record in shown], following)

    async def _places(
        self, readers: Sequence[int], wanted: Mapping[str, str], after: Place, limit: int
    ) -> list[Place]:
        """Return the next approvals in order; fewer than `limit` only if there are no more."""
        found: list[Place] = []
        if after.urgent and wanted.get("status", "pending") == "pending":
            urgent: set[tuple[int, int, str]] = set()
            for reader in readers:
                urgent.update(self.rows.urgent(reader, wanted, after, limit))
            found = [Place(after.horizon, True, *each) for each in sorted(urgent)[:limit]]
        others: set[tuple[int, str]] = set()
        start = replace(after, urgent=False, age=-NEVER, key="") if after.urgent else after
        for reader in readers if len(found) < limit else ():
            place: Place | None = start
            seen = 0
            while place is not None and seen < limit:
                some, place = self.rows.others(reader, wanted, place, limit - seen)
                seen += len(some)
                others.update(some)
                await asyncio.sleep(0)  # a filter that nothing fits looks through all rows
        rest = sorted(others)[: limit - len(found)]
        return found + [Place(after.horizon, False, 0, *each) for each in rest]

    async def _read(self, keys: Sequence[str]) -> dict[str, ApprovalRecord]:
        records = {}
        for key, entry in (await self.index.values(keys)).items():
            try:
                records[key] = await self._records.of(entry)
            except (ObjectGone, UnreadableRecord) as error:
                _report(key, str(error))
        return records


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


def _reader(user_id: str) -> int:
    return number_of(f"user {user_id}")


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
