"""Counts the open, queued and paused runs of each user and tenant in the whole installation.

Every process that starts runs reads the stream of KV `runs` and counts the runs there. The
normalizer records the end of each run in the same bucket. A process counts a run before it writes
the run's record, so that many concurrent starts cannot exceed the limit.

If a user or a tenant is at the limit, the process reads the records of the oldest runs before it
refuses a start. The process stops counting runs that have ended. A start may also have been
interrupted after the record was written and before the command was published. Such a run never
begins, so the process stops counting it, too.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final, Literal

import orjson
from pydantic import ValidationError

from penstock.bus import Bus, Reader, Stored, subjects
from penstock.bus.records.runs import RunRecord
from penstock.bus.streams import COMMANDS, raw_for
from penstock.turns import Level, TenantUser
from penstock.web.auth import limit_refusal
from penstock.web.auth.identity import ANONYMOUS_USER
from penstock.web.auth.limits import Limited, limited

log = logging.getLogger(__name__)

RUNS: Final = "KV_runs"
PREFIX: Final = "$KV.runs."
# A counted run that is older than this many seconds is looked up, because its start may have been
# interrupted. A start that was not interrupted publishes its command in less time.
LOST_S: Final = 30.0
CHECK_S: Final = 1.0  # The least number of seconds between two look-ups of one owner's runs.
LOOKED_UP: Final = 20  # The greatest number of runs in one look-up.
RETRY_AFTER_S: Final = 5

Status = Literal["starting", "queued", "running", "paused"]
# The states of runs that are counted. A paused run has a limit of its own: no connector works on
# it, but it may wait for weeks, with an approval that all processes of approvals keep in memory.
COUNTED: Final[Mapping[str, Status]] = {
    "queued": "queued",
    "running": "running",
    "paused": "paused",
}
_QUEUED: Final = ("starting", "queued")


@dataclass(slots=True)
class _Open:
    status: Status
    since: float = field(default_factory=time.monotonic)


@dataclass(slots=True)
class _Counts:
    """The runs of one user, or of all users of a tenant."""

    runs: dict[str, _Open] = field(default_factory=dict)
    queued: int = 0  # the number of runs in the states "starting" and "queued"
    paused: int = 0
    looked_at: float = 0.0

    def put(self, run_id: str, status: Status) -> None:
        self.drop(run_id)
        self.runs[run_id] = _Open(status)
        self._add(status, 1)

    def drop(self, run_id: str) -> None:
        known = self.runs.pop(run_id, None)
        if known is not None:
            self._add(known.status, -1)

    def _add(self, status: Status, count: int) -> None:
        if status in _QUEUED:
            self.queued += count
        elif status == "paused":
            self.paused += count


class OpenRuns:
    """Counts the runs of each user and tenant that have not ended, and checks the limits; 0 means
    no limit. A paused run is not open. Runs of the user `anonymous` are not counted."""

    def __init__(
        self,
        bus: Bus,
        max_open: int,
        max_queued: int,
        max_paused: int = 0,
        *,
        tenant_limits: int = 0,
    ) -> None:
        """`tenant_limits` is the setting."""
        self._bus = bus
        self._max_open = max_open
        self._max_queued = max_queued
        self._max_paused = max_paused
        self._tenant_limits = tenant_limits
        self._counts: dict[Level, _Counts] = {}
        self._owners: dict[str, TenantUser] = {}  # maps the ids of counted runs to their users

    async def follow(self) -> None:
        if self._has_limits:
            await Reader(self._bus, RUNS, f"{PREFIX}>", 1, self._on_record).run()

    @property
    def _has_limits(self) -> bool:
        return bool(self._max_open or self._max_queued or self._max_paused)

    def count(self, level: Level) -> tuple[int, int]:
        """Return the number of the open runs of a user or tenant, and how many are queued."""
        counts = self._counts.get(level)
        return (len(counts.runs) - counts.paused, counts.queued) if counts else (0, 0)

    def paused(self, level: Level) -> int:
        counts = self._counts.get(level)
        return counts.paused if counts else 0

    async def has_room(self, user: TenantUser) -> bool:
        """Return whether the user may start one more run."""
        if (full := self._full(user)) is None:
            return True
        await self._look_up(full.level)
        return self._full(user) is None

    def refuse(self, user: TenantUser) -> None:
        """Raise the error for a user who has no room: 429; the text names the limit."""
        level, name, times = self._full(user) or Limited(user, "this user")
        open_, queued = self.count(level)
        if self._max_queued and queued >= self._max_queued * times:
            text = (
                f"{queued} runs of {name} are queued and no more may be; wait until some have "
                "begun, or cancel some"
            )
            raise limit_refusal("queued_runs", text, RETRY_AFTER_S)
        if self._max_paused and (paused := self.paused(level)) >= self._max_paused * times:
            text = (
                f"{paused} runs of {name} wait for decisions and no more may; decide or cancel some"
            )
            raise limit_refusal("paused_runs", text, RETRY_AFTER_S)
        text = (
            f"{open_} runs of {name} are open and no more may be; wait until some have ended, "
            "or cancel some"
        )
        raise limit_refusal("open_runs", text, RETRY_AFTER_S)

    def begin(self, user: TenantUser, run_id: str) -> None:
        """Count a run whose record is about to be written."""
        if self._has_limits and run_id not in self._owners and user.user_id != ANONYMOUS_USER:
            self._count(run_id, user, "starting")

    def forget(self, run_id: str) -> None:
        """Stop counting a run, unless its record was written."""
        user = self._owners.get(run_id)
        if user is not None and self._counts[user].runs[run_id].status == "starting":
            self._drop(run_id)

    def _full(self, user: TenantUser) -> Limited | None:
        """Return whose limit is reached: that of the user, or of the tenant; None if neither is."""
        for found in limited(user, self._tenant_limits):
            level, _, times = found
            open_, queued = self.count(level)
            if (
                (self._max_open and open_ >= self._max_open * times)
                or (self._max_queued and queued >= self._max_queued * times)
                or (self._max_paused and self.paused(level) >= self._max_paused * times)
            ):
                return found
        return None

    async def _on_record(self, stored: Stored) -> None:
        self._note(stored.subject.removeprefix(PREFIX), stored.payload)

    def _note(self, run_id: str, value: bytes) -> None:
        status: Status | None = None
        user = TenantUser("", ANONYMOUS_USER)
        try:
            record = orjson.loads(value) if value else {}
            status = COUNTED.get(record.get("status", ""))
            user = TenantUser.of({"user_id": ANONYMOUS_USER} | record)
        except (orjson.JSONDecodeError, AttributeError, TypeError):
            log.warning("the record of run %s cannot be read; the run is not counted", run_id)
        if status is not None and user.user_id != ANONYMOUS_USER:
            self._count(run_id, user, status)
        else:
            self._drop(run_id)

    def _count(self, run_id: str, user: TenantUser, status: Status) -> None:
        if self._owners.get(run_id, user) != user:
            self._drop(run_id)
        self._owners[run_id] = user
        for level, *_ in limited(user, self._tenant_limits):
            self._counts.setdefault(level, _Counts()).put(run_id, status)

    def _drop(self, run_id: str) -> None:
        user = self._owners.pop(run_id, None)
        if user is None:
            return
        for level, *_ in limited(user, self._tenant_limits):
            counts = self._counts[level]
            counts.drop(run_id)
            if not counts.runs:
                del self._counts[level]

    async def _look_up(self, level: Level) -> None:
        counts, now = self._counts.get(level), time.monotonic()
        if counts is None or now - counts.looked_at < CHECK_S:
            return
        counts.looked_at = now
        old = [id for id, run in counts.runs.items() if now - run.since > LOST_S]
        await asyncio.gather(*(self._check_run(run_id) for run_id in old[:LOOKED_UP]))

    async def _check_run(self, run_id: str) -> None:
        entry = await self._bus.bucket("runs").get(run_id)
        if entry is None or await self._is_lost(run_id, entry.value):
            self._drop(run_id)
        else:
            # The run now has a new age, so the next look-up reads the records of other runs.
            self._note(run_id, entry.value)

    async def _is_lost(self, run_id: str, value: bytes) -> bool:
        """Return whether the run can never begin, because its command was not published. The result
        is also True if the run's record cannot be read."""
        try:
            record = RunRecord.model_validate_json(value)
        except ValidationError as error:
            # If runs with unreadable records were counted, such records could make the edge refuse
            # all starts of a user.
            log.warning("the record of run %s cannot be read; it is not counted: %s", run_id, error)
            return True
        if record.status != "queued":
            return False
        start = subjects.command(record.target or "connector", "start", record.run_id)
        if await self._bus.tail(COMMANDS, start) is not None:
            return False
        # A connector that has claimed the run has written to RAW or is about to write.
        if (
            await self._bus.tail(raw_for(record.run_id), subjects.raw_of_run(record.run_id))
            is not None
        ):
            return False
        log.warning(
            "run %s is queued, but its command was never published; it is not counted",
            record.run_id,
        )
        return True
