"""Lets the events of a user's flood wait in NATS, outside of the consumer that all users share.

The events stay in their stream. A scheduled message names up to `AT_MOST` of them by their stream
sequences. When the message is due, the events are matched as if they came from the server again.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Final, Self

import orjson

from penstock.bus import Bus, Stored, subjects
from penstock.bus.read.work_queue import GiveUp
from penstock.bus.write.schedules import schedule
from penstock.turns import TenantUser
from penstock_automations.jobs.return_times import ReturnTimes

log = logging.getLogger(__name__)

SERVICE: Final = "automations-events"  # the service's name in subjects in SCHEDULES
AT_MOST: Final = 100  # how many events one scheduled message names
EVENTS_PER_S: Final = 500  # how many events of one owner return in a second
# The TTL in seconds of a message that is due. By default, events are kept for a week, and later
# there is nothing to match.
DUE_TTL_S: Final = 8 * 86_400.0


@dataclass(frozen=True, slots=True)
class Waiting:
    """Events of one owner's runs that wait to be matched. `sequences` are those in the stream."""

    tenant: str
    owner: str
    stream: str
    sequences: tuple[int, ...]

    def dump(self) -> bytes:
        return orjson.dumps(asdict(self))

    @classmethod
    def parse(cls, payload: bytes) -> Self:
        """Parse what `dump` wrote.

        Raises:
            ValueError: the payload is something else.
        """
        try:
            fields = orjson.loads(payload)
            sequences = tuple(map(int, fields["sequences"]))
            tenant, owner = str(fields.get("tenant", "")), str(fields["owner"])
            return cls(tenant, owner, str(fields["stream"]), sequences)
        except (LookupError, TypeError) as error:
            raise ValueError(f"not a list of waiting events: {error!r}") from error


class Backlog:
    """Stores waiting events, and has them matched when their time has come."""

    def __init__(
        self,
        bus: Bus,
        match: Callable[[Stored], Awaitable[None]],
        has_room: Callable[[TenantUser], bool],
        give_up: GiveUp,
    ) -> None:
        """`has_room` returns whether more events of an owner can be matched now."""
        self._bus = bus
        self._match = match
        self._has_room = has_room
        self._give_up = give_up
        self._times = ReturnTimes(EVENTS_PER_S)

    async def put(self, owner: TenantUser, stream: str, sequences: Sequence[int]) -> None:
        """Have these events come again. Each second, `EVENTS_PER_S` events of an owner come. After
        a repeated call, the events come twice, which does no harm. Raises BusError."""
        for begin in range(0, len(sequences), AT_MOST):
            waiting = Waiting(*owner, stream, tuple(sequences[begin : begin + AT_MOST]))
            count = len(waiting.sequences)
            wait_s = self._times.reserve_wait_s(owner, time.monotonic(), count=count)
            # Messages that begin with the same event may name others after it, so each message has
            # a subject of its own.
            key = secrets.token_hex(16)
            at, due = self._bus.clock.time() + wait_s, subjects.due(SERVICE, key)
            await schedule(
                self._bus, subjects.schedule(SERVICE, key), due, at, waiting.dump(), DUE_TTL_S
            )

    async def handle(self, stored: Stored) -> None:
        """Have the events of a message that is due matched. Raises BusError."""
        try:
            waiting = Waiting.parse(stored.payload)
        except ValueError as error:
            await self._give_up(stored, error)
            return
        owner = TenantUser(waiting.tenant, waiting.owner)
        if not self._has_room(owner):  # so the events need not be read
            await self.put(owner, waiting.stream, waiting.sequences)
            return
        events = await asyncio.gather(
            *(self._bus.at(waiting.stream, each) for each in waiting.sequences)
        )
        found = [each for each in events if each is not None]
        if (missing := len(events) - len(found)) > 0:
            text = "%d events of %s expired before rules could act on them"
            log.warning(text, missing, waiting.owner)
        results = await asyncio.gather(*map(self._match, found), return_exceptions=True)
        # An error is raised when all events have ended. Otherwise, the repeated call would match
        # the other events while they are still being matched.
        for result in results:
            if isinstance(result, BaseException):
                raise result
