"""List approvals from an index in memory. Urgent approvals come first.

The index has a row for each person and each role that may see an approval (`audiences.py`). The
list for a caller is made from the rows of the caller's name and roles.

An approval is urgent if it is pending and has a deadline. Urgent approvals are ordered by their
deadlines. All other approvals are ordered by the time of the request, the newest first.

A client that reads page after page must get each approval once, even if approvals are decided
meanwhile. If an approval moved in the list when it was decided, the client could get the approval
twice or never. So a cursor contains the time at which an approval last ceased to be urgent before
the first page was read, `last_urgency_end_ns`. An approval that was urgent at this time keeps its
place among the urgent approvals on all further pages.
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
from penstock_approvals.inbox.audiences import audiences_of
from penstock_approvals.store.records import BUCKET, ApprovalRecords, UnreadableRecord

log = logging.getLogger(__name__)

STATUSES: Final = {
    status: code
    for code, status in enumerate(get_args(ApprovalRecord.model_fields["status"].annotation))
}
NEVER: Final = 2**62  # Stands for the deadline of an approval that has none.
READ_AT_ONCE: Final = 100  # How many records are read before other requests are handled.
_COLUMNS: Final = {
    "user_id": "owner",
    "status": "status",
    "run_id": "run",
    "agent": "agent",
    "session_id": "session",
}


# SQL conditions: `_PENDING` selects the requesters' rows of pending approvals. `_TO_DECIDE` selects
# the rows of audiences that may decide pending approvals without a deadline.
_PENDING: Final = f"main AND status = {STATUSES['pending']}"
_TO_DECIDE: Final = f"decides AND status = {STATUSES['pending']} AND NOT urgent"


@dataclass(frozen=True, slots=True)
class ListPosition:
    """The place of an approval in the list, from which the next page continues.

    `deadline` is in Unix milliseconds. `age` is the negative time of the request in Unix
    milliseconds, so that the newest request comes first. `tie` is a number made from the approval's
    id. Requests of the same millisecond are ordered by `tie`. `last_urgency_end_ns` is in Unix
    nanoseconds, by NATS's clock.
    """

    last_urgency_end_ns: int
    urgent: bool = True  # whether the approval was urgent at `last_urgency_end_ns`
    deadline: int = -NEVER
    age: int = -NEVER
    tie: int = -1

    def cursor(self) -> str:
        """Return the place as a cursor, a text that clients send back."""
        parts = [self.last_urgency_end_ns, int(self.urgent), self.deadline, self.age, self.tie]
        return base64.urlsafe_b64encode(orjson.dumps(parts)).decode().rstrip("=")

    @classmethod
    def parse(cls, text: str) -> ListPosition:
        """Return the place that a cursor contains.

        Raises:
            ValueError: the text is not a cursor.
        """
        try:
            parts = orjson.loads(base64.urlsafe_b64decode(text + "=" * (-len(text) % 4)))
            last_urgency_end_ns, is_urgent, deadline, age, tie = parts
        except (ValueError, TypeError, binascii.Error) as error:
            raise ValueError("not a cursor") from error
        numbers = (last_urgency_end_ns, is_urgent, deadline, age, tie)
        in_range = all(type(each) is int and -NEVER <= each <= NEVER for each in numbers)
        if not in_range or is_urgent not in (0, 1):
            raise ValueError("not a cursor")
        return cls(last_urgency_end_ns, bool(is_urgent), deadline, age, tie)


@dataclass(frozen=True, slots=True)
class Viewer:
    """The caller for whom approvals are listed."""

    # The audiences whose rows are read. The entry None stands for all requesters.
    audiences: tuple[str | None, ...]
    # A function that returns whether the caller may see an approval. The function reads the record
    # itself, so a mistake in the index cannot show an approval that the caller may not see.
    shows: Callable[[ApprovalRecord], bool]
    # The caller's name as a voter, if only approvals that wait for the caller are listed. None
    # lists all approvals.
    waits_for: str | None = None


class ApprovalRows(IndexRows):
    """The rows of all approvals. An approval has one row for each of its `audiences`.

    `owner` is the number of the audience's name (see `number_of`). `main` marks the requester's
    row; each approval has exactly one such row. `decides` says whether this audience may decide.
    `barred` says that this person has voted or is excluded. Such a person may not decide, even if
    one of the person's roles may decide.

    `closed` is the time at which an approval with a deadline ceased to be urgent, in Unix
    nanoseconds by NATS's clock; it is 0 for all other approvals.
    """

    def __init__(self) -> None:
        place = "age, tie, status, closed"
        super().__init__(
            "approvals",
            "CREATE TABLE approvals(key TEXT, owner INT, main INT, decides INT, barred INT,"
            " age INT, tie INT, status INT, agent INT, session INT, run INT, urgent INT,"
            " deadline INT, closed INT, seq INT, UNIQUE(key, owner))",
            f"CREATE INDEX approvals_by_age ON approvals({place}, agent, session, main)",
            f"CREATE INDEX approvals_by_owner ON approvals(owner, {place})",
            f"CREATE INDEX approvals_by_status ON approvals(owner, status, {place}, decides)",
            f"CREATE INDEX approvals_by_agent ON approvals(owner, agent, {place})",
            "CREATE INDEX approvals_by_session ON approvals(session)",
            "CREATE INDEX approvals_by_run ON approvals(run)",
            "CREATE INDEX approvals_urgent ON approvals(deadline, age, tie) WHERE urgent",
            "CREATE INDEX approvals_by_end ON approvals(closed) WHERE closed",
            "CREATE INDEX approvals_urgent_of ON approvals(owner, deadline, age, tie) WHERE urgent",
            f"CREATE INDEX approvals_pending ON approvals(age) WHERE {_PENDING}",
            f"CREATE INDEX approvals_to_decide ON approvals(owner, age, tie) WHERE {_TO_DECIDE}",
            "CREATE INDEX approvals_to_decide_all ON approvals(age, tie)"
            f" WHERE {_TO_DECIDE} AND main",
            "CREATE INDEX approvals_urgent_to_decide ON approvals(owner, deadline, age, tie)"
            " WHERE urgent AND decides",
            "CREATE INDEX approvals_urgent_to_decide_all ON approvals(deadline, age, tie)"
            " WHERE urgent AND decides AND main",
            "CREATE INDEX approvals_by_end_of ON approvals(owner, closed) WHERE closed",
        )

    def put(self, changes: Sequence[Change]) -> None:
        """Apply the changes to the rows; log values that are no records of approvals."""
        rows: dict[str, list[tuple[Any, ...]]] = {}
        for change in changes:
            rows[change.key] = self._rows(change) if change.value is not None else []
        self.write("DELETE FROM approvals WHERE key = ?", [(key,) for key in rows])
        self.write(
            "INSERT INTO approvals VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
            [row for some in rows.values() for row in some],
        )

    def drop(self, key: str, sequence: int) -> None:
        """Drop the rows of an approval, unless they have a later sequence."""
        self.write("DELETE FROM approvals WHERE key = ? AND seq < ?", [(key, sequence)])

    def last_urgency_end_ns(self, owners: Collection[str | None]) -> int:
        """Return the time at which an approval of these owners last ceased to be urgent; 0 if none
        did. None among the owners stands for all requesters."""
        every = "SELECT max(closed) FROM approvals INDEXED BY approvals_by_end WHERE closed"
        one = (
            "SELECT max(closed) FROM approvals INDEXED BY approvals_by_end_of"
            " WHERE owner = ? AND closed"
        )
        found = [
            self.rows(every) if owner is None else self.rows(one, (number_of(owner),))
            for owner in owners
        ]
        return max((rows[0][0] or 0 for rows in found), default=0)

    def pending(self) -> tuple[int, int | None]:
        """Return the number of pending approvals, and the time of the oldest request in Unix
        milliseconds.

        The time is None if no approval is pending.
        """
        [(count, age)] = self.rows(f"SELECT count(*), max(age) FROM approvals WHERE {_PENDING}")
        return count, None if age is None else -age

    def urgent(
        self,
        owner: str | None,
        wanted: Mapping[str, str],
        after: ListPosition,
        limit: int,
        waits_for: str | None = None,
    ) -> list[tuple[int, int, int, str]]:
        """Return approvals that were urgent at `after.last_urgency_end_ns`, as (deadline, age, tie,
        key)."""
        conditions, given = _conditions(_all_of(owner, wanted), owner, waits_for)
        of = "" if owner is None else "_of"
        if waits_for is not None:
            of = "_to_decide_all" if owner is None else "_to_decide"
        narrow = next(
            (f"approvals_by_{by}" for by in ("run", "session") if f"{by}_id" in wanted), ""
        )
        base = "SELECT deadline, age, tie, key FROM approvals INDEXED BY {} WHERE {}"
        tail = f" AND (deadline, age, tie) > (?, ?, ?) {conditions} ORDER BY 1, 2, 3 LIMIT ?"
        given = [after.deadline, after.age, after.tie, *given, limit]
        found = self.rows(base.format(narrow or f"approvals_urgent{of}", "urgent") + tail, given)
        if "status" not in wanted:
            sql = base.format(narrow or f"approvals_by_end{of}", "closed AND closed > ?") + tail
            found += self.rows(sql, (after.last_urgency_end_ns, *given))
        return found

    def others(
        self,
        owner: str | None,
        wanted: Mapping[str, str],
        after: ListPosition,
        limit: int,
        waits_for: str | None = None,
    ) -> tuple[list[tuple[int, int, str]], ListPosition | None]:
        """Search a part of the approvals that were not urgent at `after.last_urgency_end_ns`, the
        newest first.

        Returns the approvals that match `wanted`, as (age, tie, key), and the place from which to
        continue. The place is None if no more approvals match.
        """
        index, by = _index(owner, wanted, waits_for is not None)
        rest = _all_of(owner, wanted)
        found_by, start = _conditions({name: rest.pop(name) for name in by})
        conditions, given = _conditions(rest, owner, waits_for)
        base = f"FROM approvals INDEXED BY {index} WHERE (age, tie) > (?, ?) {found_by}"
        if waits_for is not None:
            base += f" AND {_TO_DECIDE}" + (" AND main" if owner is None else "")
        start = [after.age, after.tie, *start]
        to: ListPosition | None = None
        if (rest or waits_for is not None) and index not in _NARROW:
            sql = f"SELECT age, tie {base} ORDER BY age, tie LIMIT 1 OFFSET {SLICE - 1}"
            if at := self.rows(sql, start):
                to = replace(after, age=at[0][0], tie=at[0][1])
                conditions += " AND (age, tie) <= (?, ?)"
                given += at[0]
        if "status" not in wanted:
            conditions += " AND closed <= ?"
            given.append(after.last_urgency_end_ns)
        sql = f"SELECT age, tie, key {base} AND NOT urgent {conditions} ORDER BY age, tie LIMIT ?"
        found = self.rows(sql, (*start, *given, limit))
        if len(found) == limit:
            to = replace(after, age=found[-1][0], tie=found[-1][1])
        return found, to

    def _rows(self, change: Change) -> list[tuple[Any, ...]]:
        record = _document(change.value or b"")
        audiences = audiences_of(record) if record is not None else {}
        if record is None or not audiences:
            _report(change.key, "it is no record of an approval")
            return []
        pending = record["status"] == "pending"
        deadline = _unix_ms(record["expires_at"]) if record.get("expires_at") else NEVER
        common = (
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
        return [
            (
                *(change.key, number_of(name), name == record["user_id"]),
                *(each.decides, each.barred, *common),
            )
            for name, each in audiences.items()
        ]

    def _closed(self, change: Change) -> int:
        """Return the time at which the approval ceased to be urgent.

        Later writes do not change this time.
        """
        sql = "SELECT closed FROM approvals WHERE key = ? AND closed"
        known = self.rows(sql, (change.key,))
        return int(known[0][0]) if known else _unix_ns(change.stored_at)


@dataclass(frozen=True, slots=True)
class Page:
    """A page of approvals. `next` is the cursor of the next page; None if there is none."""

    approvals: list[ApprovalRecord]
    next: str | None


class ApprovalList:
    """Lists approvals from the index of this process."""

    def __init__(self, bus: Bus, records: ApprovalRecords) -> None:
        self.rows = ApprovalRows()
        self.index = BucketIndex(bus, BUCKET, self.rows)
        self._records = records

    async def page(
        self,
        viewer: Viewer,
        wanted: Mapping[str, str],
        after: ListPosition | None,
        limit: int,
    ) -> Page:
        """Return a page of the approvals that the viewer sees.

        Args:
            viewer: the caller for whom the approvals are listed.
            wanted: the required values of some of the fields `status`, `run_id`, `agent` and
                `session_id`.
            after: the place after which the page begins; None for the first page.
            limit: the greatest number of approvals to return.

        Raises:
            BusError: the approvals cannot be read now.
        """
        await self.index.caught_up()
        waits_for = viewer.waits_for
        if waits_for is not None:
            wanted = {"status": "pending", **wanted}
        place = after or ListPosition(self.rows.last_urgency_end_ns(viewer.audiences))
        found: list[tuple[ListPosition, ApprovalRecord]] = []
        while len(found) <= limit:
            missing = limit + 1 - len(found)
            places = await self._places(viewer.audiences, wanted, place, missing, waits_for)
            records = await self._read([key for _, key in places])
            for each, key in places:
                record = records.get(key)
                if record is None or not viewer.shows(record):
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
        owners: Collection[str | None],
        wanted: Mapping[str, str],
        after: ListPosition,
        limit: int,
        waits_for: str | None,
    ) -> list[tuple[ListPosition, str]]:
        """Return the places and keys of the next approvals.

        The result has fewer than `limit` places only if there are no more approvals.
        """
        found: list[tuple[ListPosition, str]] = []
        if after.urgent and wanted.get("status", "pending") == "pending":
            urgent: list[tuple[int, int, int, str]] = []
            for owner in owners:
                urgent += self.rows.urgent(owner, wanted, after, limit, waits_for)
            # An approval can have several rows for the caller, one for the name and one for each
            # role. `set` removes the duplicates.
            for deadline, age, tie, key in sorted(set(urgent))[:limit]:
                found.append(
                    (ListPosition(after.last_urgency_end_ns, True, deadline, age, tie), key)
                )
        others: list[tuple[int, int, str]] = []
        start = replace(after, urgent=False, age=-NEVER, tie=-1) if after.urgent else after
        for owner in owners if len(found) < limit else ():
            place: ListPosition | None = start
            seen = 0
            while place is not None and seen < limit:
                some, place = self.rows.others(owner, wanted, place, limit - seen, waits_for)
                seen += len(some)
                others += some
                # A filter that matches few approvals reads many rows. So other tasks may run
                # between two reads.
                await asyncio.sleep(0)
        for age, tie, key in sorted(set(others))[: limit - len(found)]:
            found.append((ListPosition(after.last_urgency_end_ns, False, 0, age, tie), key))
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


# `_NARROW` has the names of the indexes by run and by session. A run or a session has so few
# approvals that each page sorts all of them.
_TO_DECIDE_BY: Final = ("approvals_to_decide", ("user_id",))
_NARROW: Final = ("approvals_by_run", "approvals_by_session")


def _index(
    owner: str | None, wanted: Mapping[str, str], waits: bool
) -> tuple[str, tuple[str, ...]]:
    """Return the index with which the fewest rows are read, and the fields that this index
    covers."""
    for name, index in zip(("run_id", "session_id"), _NARROW, strict=True):
        if name in wanted:
            return index, (name,)
    if waits:
        return ("approvals_to_decide_all", ()) if owner is None else _TO_DECIDE_BY
    if owner is None:
        return "approvals_by_age", ()
    for name in ("agent", "status"):
        if name in wanted:
            return f"approvals_by_{name}", ("user_id", name)
    return "approvals_by_owner", ("user_id",)


def _all_of(owner: str | None, wanted: Mapping[str, str]) -> dict[str, str]:
    return dict(wanted) if owner is None else {"user_id": owner, **wanted}


def _conditions(
    wanted: Mapping[str, str], owner: str | None = "", waits_for: str | None = None
) -> tuple[str, list[Any]]:
    """Return SQL conditions and their values.

    If `owner` is None, only the requesters' rows match.
    """
    sql = [f"AND {_COLUMNS[name]} = ?" for name in wanted]
    given = [STATUSES.get(v, -1) if k == "status" else number_of(v) for k, v in wanted.items()]
    if owner is None:
        sql.append("AND main")
    if waits_for is not None:
        sql.append(f"AND decides {_NOT_BARRED}")
        given.append(number_of(waits_for))
    return " ".join(sql), given


_NOT_BARRED: Final = (
    "AND NOT EXISTS (SELECT 1 FROM approvals AS mine"
    " WHERE mine.key = approvals.key AND mine.owner = ? AND mine.barred)"
)


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
    """Return a timestamp of NATS in Unix nanoseconds; 0 if the text is no timestamp."""
    try:
        seconds = int(datetime.fromisoformat(f"{timestamp[:19]}+00:00").timestamp())
    except ValueError:
        return 0
    fraction = timestamp[20:].rstrip("Z")
    return seconds * 10**9 + (int(fraction.ljust(9, "0")[:9]) if fraction.isdigit() else 0)
