"""List approvals from an index in memory. Urgent approvals come first.

The index has a row for each person and each role that may see an approval (`visibility.py`). The
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
import logging
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import astuple, dataclass, replace
from datetime import datetime
from functools import partial
from hashlib import blake2b
from typing import Any, Final, NamedTuple, get_args

from pydantic import BaseModel, ConfigDict, ValidationError, create_model

from penstock import telemetry
from penstock.bus import Bus, ObjectGone
from penstock.bus.records.approvals import ApprovalRecord
from penstock.bus.state.bucket_index import SLICE, BucketIndex, Change, IndexRows, number_of
from penstock.web.answers import cursor_of, cursor_parts
from penstock_approvals.inbox.visibility import Viewer, audiences_of
from penstock_approvals.store.records import (
    BUCKET,
    ApprovalRecords,
    UnreadableRecord,
    first_fault,
)

log = logging.getLogger(__name__)

STATUSES: Final = {
    status: code
    for code, status in enumerate(get_args(ApprovalRecord.model_fields["status"].annotation))
}
NEVER: Final = 2**62  # Stands for the deadline of an approval that has none.
READ_AT_ONCE: Final = 100  # How many records are read before other requests are handled.
# SQL conditions: `_PENDING` selects the requesters' rows of pending approvals. `_TO_DECIDE` selects
# the rows of audiences that may decide pending approvals without a deadline.
_PENDING: Final = f"main AND status = {STATUSES['pending']}"
_TO_DECIDE: Final = f"decides AND status = {STATUSES['pending']} AND NOT urgent"


class _Item(BaseModel):
    """The part of an item that the index reads."""

    tool: Any = None


# The fields of a record that the index reads. The others may be large: a record with 340 kB of
# small values is read in 6.8 ms as a whole, and in 2.7 ms without its items.
_FIELDS: Final[dict[str, Any]] = {
    name: (ApprovalRecord.model_fields[name].annotation, ApprovalRecord.model_fields[name])
    for name in (
        *("user_id", "agent", "session_id", "run_id", "status", "requested_at", "expires_at"),
        *("deciders", "escalations", "escalated", "votes", "remarks", "policy", "rulings"),
    )
} | {"items": (list[_Item], [])}
_read_fields: Callable[[bytes], Any] = create_model(
    "IndexedApproval", __config__=ConfigDict(extra="ignore"), **_FIELDS
).model_validate_json
# The condition for each part of a selection, with the part's value as a parameter of the same name.
_CONDITIONS: Final[Mapping[str, str]] = {
    "everybody": "main",  # only the requesters' rows, one of each approval
    "owner": "owner = :owner",
    "status": "status = :status",
    "run_id": "run = :run_id",
    "agent": "agent = :agent",
    "session_id": "session = :session_id",
    "tool": "instr(labels, :tool)",
    "rule": "instr(labels, :rule)",
    "user_id": "instr(labels, :user_id)",
    "since": "age <= :since",
    "until": "age > :until",
    "waits_for": "decides AND NOT EXISTS (SELECT 1 FROM approvals AS mine WHERE"
    " mine.key = approvals.key AND mine.owner = :waits_for AND mine.barred)",
}


@dataclass(frozen=True, slots=True, order=True)
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
        return cursor_of(*astuple(self))

    @classmethod
    def parse(cls, text: str) -> ListPosition:
        """Return the place that a cursor contains. Raises Problem 422."""
        return cls(*cursor_parts(text, int, bool, int, int, int))


def _label(kind: str, text: str) -> str:
    """Return a text of 9 characters for a tool, a rule or a user. The rows contain labels, because
    an approval can have several tools and rules. `kind` is no hexadecimal digit, so a label cannot
    be found across the end of another one."""
    return f"{kind}{number_of(text) & 0xFFFF_FFFF:08x}"


# How a value of a selection is written in the rows, where it is not by its number.
_CODES: Final[Mapping[str, Callable[[Any], Any]]] = {
    "status": lambda status: STATUSES.get(status, -1),
    "tool": partial(_label, "t"),
    "rule": partial(_label, "r"),
    "user_id": partial(_label, "u"),
    "since": lambda time: -_ms(time),
    "until": lambda time: -_ms(time),
}

Place = tuple[ListPosition, str]  # the place of an approval, and its key


@dataclass(frozen=True, slots=True)
class _View:
    """How SQLite reads the lists of one kind: the index for each of its three queries.

    `covers` names the conditions that all rows of a range of the index `others` fulfil. The rows of
    a list that has further conditions are read in slices, unless `is_narrow`: a run or a session
    has so few approvals that each page sorts all of them.
    """

    urgent: str
    ended: str  # for approvals that were urgent when the first page was read
    others: str
    covers: tuple[str, ...] = ()
    is_narrow: bool = False


_RUN, _SESSION = "approvals_by_run", "approvals_by_session"
_OWN: Final = ("approvals_urgent_of", "approvals_by_end_of")
_EVERY: Final = ("approvals_urgent", "approvals_by_end")
_TO_DECIDE_ALL: Final = ("approvals_urgent_to_decide_all", "", "approvals_to_decide_all")
# The view of a selection that has these conditions. The first that fits reads the fewest rows.
_VIEWS: Final[Sequence[tuple[set[str], _View]]] = (
    ({"run_id"}, _View(_RUN, _RUN, _RUN, is_narrow=True)),
    ({"session_id"}, _View(_SESSION, _SESSION, _SESSION, is_narrow=True)),
    ({"waits_for", "everybody"}, _View(*_TO_DECIDE_ALL, ("everybody",))),
    ({"waits_for"}, _View("approvals_urgent_to_decide", "", "approvals_to_decide", ("owner",))),
    ({"everybody"}, _View(*_EVERY, "approvals_by_age", ("everybody",))),
    ({"agent"}, _View(*_OWN, "approvals_by_agent", ("owner", "agent"))),
    ({"status"}, _View(*_OWN, "approvals_by_status", ("owner", "status"))),
    (set(), _View(*_OWN, "approvals_by_owner", ("owner",))),
)


@dataclass(frozen=True, slots=True)
class Selection:
    """The rows of one audience, or of all requesters if `owner` is None.

    `wanted` has the required values of some of the filters of `ApprovalList.page`. With
    `waits_for`, only rows that this person may decide and has not voted on.
    """

    owner: str | None
    wanted: Mapping[str, Any]
    waits_for: str | None = None

    @property
    def values(self) -> dict[str, Any]:
        texts = {"owner": self.owner, "waits_for": self.waits_for, **self.wanted}
        return {
            name: _CODES.get(name, number_of)(value)
            for name, value in texts.items()
            if value is not None
        }

    @property
    def conditions(self) -> dict[str, str]:
        names = self.values.keys() | ({"everybody"} if self.owner is None else set())
        return {name: sql for name, sql in _CONDITIONS.items() if name in names}

    @property
    def view(self) -> _View:
        names = self.conditions.keys()
        return next(view for needed, view in _VIEWS if needed <= names)


class ApprovalRows(IndexRows):
    """The rows of all approvals. An approval has one row for each of its audiences.

    `owner` is the number of the audience's name (see `number_of`). `main` marks the requester's
    row; each approval has exactly one such row. `decides` and `barred` are as in `Audience`.
    `closed` is the time at which an approval with a deadline ceased to be urgent, in Unix
    nanoseconds by NATS's clock; it is 0 for all other approvals. `labels` has the approval's tools,
    rules and requester.
    """

    def __init__(self) -> None:
        place = "age, tie, status, closed"
        super().__init__(
            "approvals",
            "CREATE TABLE approvals(key TEXT, owner INT, main INT, decides INT, barred INT,"
            " age INT, tie INT, status INT, agent INT, session INT, run INT, urgent INT,"
            " deadline INT, closed INT, seq INT, labels TEXT, UNIQUE(key, owner))",
            f"CREATE INDEX approvals_by_age ON approvals({place}, agent, session, main, labels)",
            f"CREATE INDEX approvals_by_owner ON approvals(owner, {place}, labels)",
            "CREATE INDEX approvals_by_status"
            f" ON approvals(owner, status, {place}, decides, labels)",
            f"CREATE INDEX approvals_by_agent ON approvals(owner, agent, {place}, labels)",
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
        rows: dict[str, list[dict[str, Any]]] = {}
        for change in changes:
            rows[change.key] = self._rows(change) if change.value is not None else []
        self.write("DELETE FROM approvals WHERE key = :key", [{"key": key} for key in rows])
        self.write(
            "INSERT INTO approvals VALUES (:key, :owner, :main, :decides, :barred, :age, :tie,"
            " :status, :agent, :session, :run, :urgent, :deadline, :closed, :seq, :labels)",
            [row for some in rows.values() for row in some],
        )

    def last_urgency_end_ns(self, owners: Collection[str | None]) -> int:
        """Return the time at which an approval of these owners last ceased to be urgent; 0 if none
        did. None among the owners stands for all requesters."""
        every = "SELECT max(closed) FROM approvals INDEXED BY approvals_by_end WHERE closed"
        one = (
            "SELECT max(closed) FROM approvals INDEXED BY approvals_by_end_of"
            " WHERE owner = :owner AND closed"
        )
        found = [
            self.rows(every) if owner is None else self.rows(one, {"owner": number_of(owner)})
            for owner in owners
        ]
        return max((rows[0][0] or 0 for rows in found), default=0)

    def pending(self) -> tuple[int, int | None]:
        """Return the number of pending approvals, and when the oldest was requested in Unix
        milliseconds; None if none is pending."""
        [(count, age)] = self.rows(f"SELECT count(*), max(age) FROM approvals WHERE {_PENDING}")
        return count, None if age is None else -age

    def newest(self, limit: int) -> list[str]:
        """Return the keys of the approvals that were requested last, the newest first."""
        sql = (
            "SELECT key FROM approvals INDEXED BY approvals_by_age"
            " WHERE age > :age AND main ORDER BY age, tie LIMIT :limit"
        )
        return [key for (key,) in self.rows(sql, {"age": -NEVER, "limit": limit})]

    def urgent(self, selection: Selection, after: ListPosition, limit: int) -> list[Place]:
        """Return approvals that were urgent at `after.last_urgency_end_ns`."""
        view, conditions = selection.view, selection.conditions.values()
        values = _values(selection, after, limit)
        place = "(deadline, age, tie) > (:deadline, :age, :tie)"
        queries = [(view.urgent, ["urgent"])]
        if "status" not in selection.wanted:
            queries.append((view.ended, ["closed", "closed > :urgency_end"]))
        found: list[Place] = []
        for index, of_index in queries:
            where = " AND ".join([*of_index, place, *conditions])
            rows = self.rows(
                f"SELECT deadline, age, tie, key FROM approvals INDEXED BY {index}"
                f" WHERE {where} ORDER BY 1, 2, 3 LIMIT :limit",
                values,
            )
            for deadline, age, tie, key in rows:
                found.append((replace(after, deadline=deadline, age=age, tie=tie), key))
        return found

    def others(
        self, selection: Selection, after: ListPosition, limit: int
    ) -> tuple[list[Place], ListPosition | None]:
        """Search a part of the approvals that were not urgent at `after.last_urgency_end_ns`, the
        newest first.

        Returns the approvals that the selection has, and the place from which to continue; None if
        there are no more approvals.
        """
        view, conditions = selection.view, selection.conditions
        values = _values(selection, after, limit)
        covered = [conditions.pop(name) for name in view.covers]
        # The times bound the range of the index that is read, and the place is its beginning.
        covered += [conditions.pop("since")] if "since" in conditions else []
        if conditions.pop("until", None) is not None:
            begin = max((after.age, after.tie), (values["until"], NEVER))
            values |= {"age": begin[0], "tie": begin[1]}
        if selection.waits_for is not None:
            covered.append(_TO_DECIDE)
        where = " AND ".join(["(age, tie) > (:age, :tie)", *covered])
        table = f"FROM approvals INDEXED BY {view.others} WHERE {where}"
        further = ["NOT urgent", *conditions.values()]
        to: ListPosition | None = None
        if conditions and not view.is_narrow:
            slice_ = f"SELECT age, tie {table} ORDER BY age, tie LIMIT 1 OFFSET {SLICE - 1}"
            if at := self.rows(slice_, values):
                to = replace(after, age=at[0][0], tie=at[0][1])
                values |= {"last_age": to.age, "last_tie": to.tie}
                further.append("(age, tie) <= (:last_age, :last_tie)")
        if "status" not in selection.wanted:
            further.append("closed <= :urgency_end")
        rows = self.rows(
            f"SELECT age, tie, key {table} AND {' AND '.join(further)}"
            " ORDER BY age, tie LIMIT :limit",
            values,
        )
        found = [(replace(after, age=age, tie=tie), key) for age, tie, key in rows]
        return found, found[-1][0] if len(found) == limit else to

    def _rows(self, change: Change) -> list[dict[str, Any]]:
        try:
            record: ApprovalRecord = _read_fields(change.value or b"")
        except ValidationError as error:
            _report(change.key, f"it is no record of an approval: {first_fault(error)}")
            return []
        pending = record.status == "pending"
        deadline = _unix_ms(record.expires_at) if record.expires_at else NEVER
        common = {
            "key": change.key,
            "age": -_unix_ms(record.requested_at),
            "tie": int.from_bytes(blake2b(change.key.encode(), digest_size=7).digest()),
            "status": STATUSES.get(record.status, -1),
            "agent": number_of(record.agent),
            "session": number_of(record.session_id),
            "run": number_of(record.run_id),
            "urgent": pending and deadline != NEVER,
            "deadline": deadline,
            "closed": 0 if pending or deadline == NEVER else self._closed(change),
            "seq": change.sequence,
            "labels": "".join(_labels(record)),
        }
        return [
            {
                **common,
                "owner": number_of(name),
                "main": name == record.user_id,
                "decides": each.decides,
                "barred": each.barred,
            }
            for name, each in audiences_of(record).items()
        ]

    def _closed(self, change: Change) -> int:
        """Return the time at which the approval ceased to be urgent. Later writes keep it."""
        sql = "SELECT closed FROM approvals WHERE key = :key AND closed"
        known = self.rows(sql, {"key": change.key})
        return int(known[0][0]) if known else _unix_ns(change.stored_at)


def _values(selection: Selection, after: ListPosition, limit: int) -> dict[str, Any]:
    place = {"deadline": after.deadline, "age": after.age, "tie": after.tie}
    return selection.values | place | {"urgency_end": after.last_urgency_end_ns, "limit": limit}


class Page(NamedTuple):
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
        wanted: Mapping[str, Any],
        after: ListPosition | None,
        *,
        limit: int,
    ) -> Page:
        """Return the page of the viewer's approvals that follows a place.

        `wanted` has the required values of some of the fields `status`, `run_id`, `agent`,
        `session_id` and `user_id`; a `tool` and a `rule` of the approval; and the times `since`
        which, and `until` which, it was requested. Raises BusError.
        """
        await self.index.caught_up()
        waits_for = viewer.waits_for
        if waits_for is not None:
            wanted = {"status": "pending", **wanted}
        compared = {name: value for name, value in wanted.items() if name not in ("since", "until")}
        selections = [Selection(owner, wanted, waits_for) for owner in viewer.audiences]
        place = after or ListPosition(self.rows.last_urgency_end_ns(viewer.audiences))
        found: list[tuple[ListPosition, ApprovalRecord]] = []
        while len(found) <= limit:
            missing = limit + 1 - len(found)
            places = await self._places(selections, place, missing)
            records = await self._read([key for _, key in places])
            for each, key in places:
                record = records.get(key)
                if record is None or not viewer.shows(record):
                    continue
                if all(value in _values_of(record, name) for name, value in compared.items()):
                    found.append((each, record))
            if len(places) < missing:
                break
            place = places[-1][0]
        shown = found[:limit]
        following = shown[-1][0].cursor() if len(found) > limit else None
        return Page([record for _, record in shown], following)

    async def newest(self, limit: int) -> list[ApprovalRecord]:
        """Return the approvals that were requested last, the newest first. Raises BusError."""
        await self.index.caught_up()
        keys = self.rows.newest(limit)
        records = await self._read(keys)
        return [records[key] for key in keys if key in records]

    async def _places(
        self, selections: Sequence[Selection], after: ListPosition, limit: int
    ) -> list[Place]:
        """Return the next approvals, `limit` unless there are fewer."""
        # An approval can have several rows for the caller, one for the name and one for each role.
        # `set` removes the duplicates.
        urgent: set[Place] = set()
        if after.urgent:
            for selection in selections:
                if selection.wanted.get("status", "pending") == "pending":
                    urgent.update(self.rows.urgent(selection, after, limit))
            after = replace(after, urgent=False, deadline=0, age=-NEVER, tie=-1)
        found = sorted(urgent)[:limit]
        others: set[Place] = set()
        for selection in selections if len(found) < limit else ():
            place: ListPosition | None = after
            seen = 0
            while place is not None and seen < limit:
                some, place = self.rows.others(selection, place, limit - seen)
                seen += len(some)
                others.update(some)
                # A filter that matches few approvals reads many rows. So other tasks may run
                # between two reads.
                await asyncio.sleep(0)
        return found + sorted(others)[: limit - len(found)]

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


def _values_of(record: Any, name: str) -> Collection[Any]:
    """Return the values of a record that a filter of this name is compared with."""
    if name == "tool":
        tools = (
            each.tool if isinstance(each, _Item) else each.get("tool") for each in record.items
        )
        return {str(tool) for tool in tools if tool is not None}
    if name == "rule":
        rules = {each.rule_id for each in record.rulings}
        return rules | ({record.policy.rule_id} if record.policy is not None else set())
    return (getattr(record, name),)


def _labels(record: Any) -> list[str]:
    names = ("tool", "rule", "user_id")
    return [_CODES[name](value) for name in names for value in _values_of(record, name)]


def _report(key: str, reason: str) -> None:
    telemetry.UNREADABLE_RECORDS.labels(BUCKET).inc()
    log.warning("approval %s is left out of the list: %s", key, reason)


def _unix_ms(timestamp: object) -> int:
    """Return the time in Unix milliseconds; 0 for a value that is no time of RFC 3339."""
    try:
        return _ms(datetime.fromisoformat(str(timestamp)))
    except (ValueError, OverflowError):
        return 0


def _ms(time: datetime) -> int:
    return int(time.timestamp() * 1000)


def _unix_ns(timestamp: str) -> int:
    """Return a timestamp of NATS in Unix nanoseconds; 0 if the text is no timestamp."""
    try:
        seconds = int(datetime.fromisoformat(f"{timestamp[:19]}+00:00").timestamp())
    except ValueError:
        return 0
    fraction = timestamp[20:].rstrip("Z")
    return seconds * 10**9 + (int(fraction.ljust(9, "0")[:9]) if fraction.isdigit() else 0)
