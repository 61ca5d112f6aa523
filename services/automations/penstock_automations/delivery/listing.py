"""Lists the deliveries of rules, the newest first, using an index in memory.

The index is built at the first request for a list, and kept up to date from then on. So a process
that only delivers needs no memory for an index.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime
from hashlib import blake2b
from typing import Any, Final, Literal, get_args

import orjson
from pydantic import ValidationError

from penstock import telemetry
from penstock.bus import Bus, Entry
from penstock.bus.state.bucket_index import BucketIndex, Change, IndexRows, number_of
from penstock.log_fields import run_of
from penstock_automations.delivery.records import BUCKET, DeliveryRecord

log = logging.getLogger(__name__)

Status = Literal["waiting", "delivered", "failed"]
STATUSES: Final = {status: code for code, status in enumerate(get_args(Status))}
FIRST: Final = (-(2**62), -1)  # the place before all deliveries
LAST_MS: Final = 2**62
RULES_AT_ONCE: Final = 100  # after this many rules, other requests are handled
COUNTED: Final = 100_000  # to count more would make other requests wait
READ_AT_ONCE: Final = 50  # after this many records, other requests are handled


@dataclass(frozen=True, slots=True)
class Selection:
    """A choice of deliveries: by rules, status and the time at which a delivery began.

    A rule is given by its id and its `uid`. The times are Unix milliseconds. A delivery that began
    at `since` is selected; a delivery that began at `until` is not.
    """

    rules: frozenset[tuple[str, str]]
    status: Status | None = None
    since: int = -LAST_MS
    until: int = LAST_MS

    def has(self, record: DeliveryRecord) -> bool:
        is_of_rule = (record.rule, str(record.job.get("uid"))) in self.rules
        return is_of_rule and self.status in (None, record.status)


class DeliveryRows(IndexRows):
    """The index of all deliveries. `age` is the negative of the time when a delivery began (in Unix
    milliseconds), so the newest delivery comes first."""

    def __init__(self) -> None:
        super().__init__(
            "deliveries",
            "CREATE TABLE deliveries(key TEXT UNIQUE, rule INT, age INT, tie INT, status INT,"
            " seq INT)",
            "CREATE INDEX deliveries_by_rule ON deliveries(rule, age, tie)",
            "CREATE INDEX deliveries_by_status ON deliveries(rule, status, age, tie)",
        )

    def put(self, changes: Sequence[Change]) -> None:
        """Apply the changes to the rows; log values that are no records of deliveries."""
        rows: dict[str, tuple[Any, ...] | None] = {}
        for change in changes:
            rows[change.key] = _row(change) if change.value is not None else None
        self.write("DELETE FROM deliveries WHERE key = ?", [(key,) for key in rows])
        self.write(
            "INSERT INTO deliveries VALUES (?, ?, ?, ?, ?, ?)",
            [row for row in rows.values() if row is not None],
        )

    def after(
        self, rule: tuple[str, str], wanted: Selection, place: tuple[int, int], limit: int
    ) -> list[tuple[int, int, str]]:
        """Return the rule's next deliveries, the newest first, as (age, tie, key)."""
        index = "deliveries_by_rule" if wanted.status is None else "deliveries_by_status"
        by_status = "" if wanted.status is None else "AND status = ?"
        statuses = () if wanted.status is None else (STATUSES[wanted.status],)
        return self.rows(
            f"SELECT age, tie, key FROM deliveries INDEXED BY {index} WHERE rule = ? {by_status}"
            " AND (age, tie) > (?, ?) AND age <= ? AND age > ? ORDER BY age, tie LIMIT ?",
            (
                number_of(_rule_of(*rule)),
                *statuses,
                *place,
                -wanted.since,
                -wanted.until,
                limit,
            ),
        )

    def count(
        self, rule: tuple[str, str], status: Status, since: int = -LAST_MS, most: int = -1
    ) -> int:
        """Return how many deliveries of the rule have this status; with `most`, up to so many."""
        [[found]] = self.rows(
            "SELECT count(*) FROM (SELECT 1 FROM deliveries INDEXED BY deliveries_by_status"
            " WHERE rule = ? AND status = ? AND age <= ? LIMIT ?)",
            (number_of(_rule_of(*rule)), STATUSES[status], -since, most),
        )
        return int(found)


@dataclass(frozen=True, slots=True)
class Page:
    """A page of deliveries. `next` is the place of the last delivery; None on the last page."""

    deliveries: list[DeliveryRecord]
    next: tuple[int, int] | None


class DeliveryList:
    """Lists deliveries. `follow` is called once, and must keep the index up to date."""

    def __init__(self, bus: Bus, follow: Callable[[BucketIndex], None]) -> None:
        self._rows = DeliveryRows()
        self._index = BucketIndex(bus, BUCKET, self._rows, is_delivery)
        self._follow: Callable[[BucketIndex], None] | None = follow

    async def page(self, wanted: Selection, after: tuple[int, int] | None, limit: int) -> Page:
        """Return up to `limit` deliveries, the newest first, and the place to continue from. Raises
        BusError."""
        await self._caught_up()
        place = after or FIRST
        found: list[tuple[tuple[int, int], DeliveryRecord]] = []
        while len(found) <= limit:
            missing = min(limit + 1 - len(found), READ_AT_ONCE)
            rows = await self._next(wanted, place, missing)
            values = await self._index.values([key for *_, key in rows])
            for age, tie, key in rows:
                place = (age, tie)
                record = record_of(values[key]) if key in values else None
                if record is not None and wanted.has(record):
                    found.append((place, record))
            if len(rows) < missing:
                break
        shown = found[:limit]
        following = shown[-1][0] if len(found) > limit else None
        return Page([record for _, record in shown], following)

    async def count(self, rule: tuple[str, str], status: Status) -> int:
        """Return how many deliveries of the rule have this status. Raises BusError."""
        await self._caught_up()
        return self._rows.count(rule, status)

    async def outcomes(
        self, rules: Sequence[tuple[str, str]], since: int
    ) -> list[dict[Status, int]]:
        """Return for each rule how many of its deliveries that began at `since` (Unix milliseconds)
        or later have each status, each up to `COUNTED`. Raises BusError."""
        await self._caught_up()
        found = []
        for rule in rules:
            found.append({each: self._rows.count(rule, each, since, COUNTED) for each in STATUSES})
            await asyncio.sleep(0)
        return found

    async def _caught_up(self) -> None:
        if self._follow is not None:
            self._follow(self._index)
            self._follow = None
        await self._index.caught_up()

    async def _next(
        self, wanted: Selection, place: tuple[int, int], limit: int
    ) -> list[tuple[int, int, str]]:
        found: list[tuple[int, int, str]] = []
        for number, rule in enumerate(wanted.rules, 1):
            found += self._rows.after(rule, wanted, place, limit)
            if not number % RULES_AT_ONCE:
                found = sorted(found)[:limit]
                await asyncio.sleep(0)
        return sorted(found)[:limit]


def is_delivery(key: str) -> bool:
    """Return whether a key of the bucket belongs to a delivery, and not to a queue or a plan."""
    return key.count(".") == 1


def record_of(entry: Entry) -> DeliveryRecord | None:
    try:
        return DeliveryRecord.model_validate_json(entry.value)
    except ValidationError:
        log.warning(
            "the record of delivery %s cannot be read, it is not shown",
            entry.key,
            extra=run_of(entry.key),
        )
        return None


def _row(change: Change) -> tuple[Any, ...] | None:
    try:
        record = orjson.loads(change.value or b"")
        rule = _rule_of(record["rule"], record["job"]["uid"])
        age = -began_ms(record["attempts"], record["began_at"])
        status = STATUSES[record["status"]]
    except (ValueError, KeyError, TypeError):
        telemetry.UNREADABLE_RECORDS.labels(BUCKET).inc()
        extra = run_of(change.key)
        log.warning("delivery %s is left out of lists: it is no record", change.key, extra=extra)
        return None
    tie = int.from_bytes(blake2b(change.key.encode(), digest_size=7).digest())
    return change.key, number_of(rule), age, tie, status, change.sequence


def began_ms(attempts: Sequence[dict[str, Any]], began_at: float) -> int:
    """Return when a delivery began, in Unix milliseconds; a replay does not change the time."""
    if attempts:
        return int(datetime.fromisoformat(attempts[0]["at"]).timestamp() * 1000)
    return int(began_at * 1000)


def _rule_of(rule: str, uid: str) -> str:
    # A later rule with the same id may belong to another user, and must not show these deliveries.
    return f"{rule}.{uid}"
