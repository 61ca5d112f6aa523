"""How many runs of each user are open or queued, in the whole installation.

Counted from the stream of KV `runs`, which every edge follows: it is the normalizer that ends a
run, whoever has started it. A run that is about to be started is counted here first, so that many
starts at once are not more than the limit. What the count says is not trusted against a user: at
the limit, runs that have been counted for long are looked up, and what is over or was lost (its
edge died between the record and the command) frees its place.
"""

from __future__ import annotations

import asyncio
import logging
import time
from dataclasses import dataclass, field
from typing import Final, Literal

import orjson

from penstock.bus import Bus, Reader, Stored, subjects
from penstock.bus.records import RunRecord
from penstock.bus.streams import COMMANDS, RAW
from penstock.web.auth import beyond
from penstock.web.auth.identity import ANONYMOUS_USER

log = logging.getLogger(__name__)

RUNS: Final = "KV_runs"
PREFIX: Final = "$KV.runs."
# A run that waits for a decision holds nothing but records, so it is not counted.
COUNTED: Final = frozenset({"queued", "running"})
LOST_S: Final = 30.0  # a start takes less from the record to the command, or has failed
LOOK_S: Final = 1.0  # how often a user's runs are looked up at the limit
LOOKED_UP: Final = 20  # of them at a time, those that are counted for longest
RETRY_S: Final = 5

Status = Literal["starting", "queued", "running"]


@dataclass(slots=True)
class _Open:
    status: Status
    since: float = field(default_factory=time.monotonic)


@dataclass(slots=True)
class _User:
    runs: dict[str, _Open] = field(default_factory=dict)
    queued: int = 0  # of them, also those that are about to be started
    looked_at: float = 0.0

    def put(self, run_id: str, status: Status) -> None:
        self.drop(run_id)
        self.runs[run_id] = _Open(status)
        self.queued += status != "running"

    def drop(self, run_id: str) -> None:
        known = self.runs.pop(run_id, None)
        if known is not None:
            self.queued -= known.status != "running"


class OpenRuns:
    """The count, and the two limits; a limit of 0 is none. Nothing is counted for `anonymous`."""

    def __init__(self, bus: Bus, max_open: int, max_queued: int) -> None:
        self._bus = bus
        self._max_open = max_open
        self._max_queued = max_queued
        self._users: dict[str, _User] = {}
        self._owners: dict[str, str] = {}  # of the runs that are counted
        self._reader = Reader(bus, RUNS, f"{PREFIX}>", 1, self._on_record)

    async def follow(self) -> None:
        """Read what stands in KV `runs` and what is written there, until cancelled."""
        if self._limits:
            await self._reader.run()

    @property
    def _limits(self) -> bool:
        return bool(self._max_open or self._max_queued)

    def count(self, user_id: str) -> tuple[int, int]:
        """Open and, among them, queued runs of the user."""
        user = self._users.get(user_id)
        return (len(user.runs), user.queued) if user else (0, 0)

    async def has_room(self, user_id: str) -> bool:
        """Whether one run more of the user may be started. Raises BusError."""
        if self._fits(user_id):
            return True
        await self._look_up(user_id)
        return self._fits(user_id)

    def refuse(self, user_id: str) -> None:
        """Raises Refused 429 that says which limit it is."""
        open_, queued = self.count(user_id)
        if self._max_queued and queued >= self._max_queued:
            text = (
                f"{queued} runs of this user are queued and no more may be; wait until some have "
                "begun, or cancel some"
            )
            raise beyond("queued_runs", text, RETRY_S)
        text = (
            f"{open_} runs of this user are open and no more may be; wait until some have ended, "
            "or cancel some"
        )
        raise beyond("open_runs", text, RETRY_S)

    def begin(self, user_id: str, run_id: str) -> None:
        """A run is about to be written down: it counts from here on."""
        if self._limits and run_id not in self._owners and user_id != ANONYMOUS_USER:
            self._count(run_id, user_id, "starting")

    def forget(self, run_id: str) -> None:
        """It was not written down after all; one that is on record stays counted."""
        user = self._users.get(self._owners.get(run_id, ""))
        if user is not None and user.runs[run_id].status == "starting":
            self._drop(run_id)

    def _fits(self, user_id: str) -> bool:
        open_, queued = self.count(user_id)
        return not (
            (self._max_open and open_ >= self._max_open)
            or (self._max_queued and queued >= self._max_queued)
        )

    async def _on_record(self, stored: Stored) -> None:
        self._note(stored.subject.removeprefix(PREFIX), stored.payload)

    def _note(self, run_id: str, value: bytes) -> None:
        try:
            record = orjson.loads(value) if value else {}
            status, user_id = record.get("status"), record.get("user_id", ANONYMOUS_USER)
        except (orjson.JSONDecodeError, AttributeError):
            log.warning("the record of run %s cannot be read", run_id)
            return
        if status in COUNTED and user_id != ANONYMOUS_USER:
            self._count(run_id, user_id, status)
        else:
            self._drop(run_id)

    def _count(self, run_id: str, user_id: str, status: Status) -> None:
        if self._owners.get(run_id, user_id) != user_id:
            self._drop(run_id)
        self._owners[run_id] = user_id
        self._users.setdefault(user_id, _User()).put(run_id, status)

    def _drop(self, run_id: str) -> None:
        user_id = self._owners.pop(run_id, None)
        if user_id is None:
            return
        user = self._users[user_id]
        user.drop(run_id)
        if not user.runs:
            del self._users[user_id]

    async def _look_up(self, user_id: str) -> None:
        """See whether the runs that are counted for longest are still what they were."""
        user, now = self._users.get(user_id), time.monotonic()
        if user is None or now - user.looked_at < LOOK_S:
            return
        user.looked_at = now
        old = [id for id, run in user.runs.items() if now - run.since > LOST_S]
        await asyncio.gather(*(self._look_at(run_id) for run_id in old[:LOOKED_UP]))

    async def _look_at(self, run_id: str) -> None:
        entry = await self._bus.bucket("runs").get(run_id)
        if entry is None or await self._is_lost(RunRecord.model_validate_json(entry.value)):
            self._drop(run_id)
        else:
            self._note(run_id, entry.value)  # and the next time others are looked at

    async def _is_lost(self, record: RunRecord) -> bool:
        """Whether it is queued and nobody will ever take it: its command was not published."""
        if record.status != "queued":
            return False
        start = subjects.command("connector", "start", record.run_id)
        if await self._bus.tail(COMMANDS, start) is not None:
            return False
        # whoever has taken the command has written to RAW, or is about to
        if await self._bus.tail(RAW, subjects.raw_of_run(record.run_id)) is not None:
            return False
        log.warning("run %s: queued, but no command of it stands; it is not counted", record.run_id)
        return True
