"""Implements leases in KV: a lease shows that a process runs, or that it works on a partition.

A lease only saves duplicate work; fences keep the results right without any lease. A holder counts
its lease as held for one TTL after the holder sent the last renewal that the server answered.
The holder measures this time with its own monotonic clock.
"""

from __future__ import annotations

import asyncio
import logging
import time
from contextlib import suppress

from penstock.bus.errors import BusError
from penstock.bus.state.kv import Buckets, Entry
from penstock.bus.state.peers import ANSWERS

log = logging.getLogger(__name__)

PARTS = ".parts"  # the end of a key that holds the number of a group's parts


class Lease:
    """A lease is one key of the bucket `leases`; the value of the key is the holder's name.

    `owner` is a name that no other process has or had, so a lease with this name belongs to this
    process. The next renewal writes `note` after the name. With `answers`, the holder answers
    requests to `alive.<owner>`. If another process gets "no responders" for this subject, the other
    process may end the lease (see `peers`).
    """

    def __init__(
        self,
        bus: Buckets,
        key: str,
        owner: str,
        ttl_s: float,
        note: str = "",
        *,
        answers: bool = False,
    ) -> None:
        self._bus = bus
        self._bucket = bus.bucket("leases")
        self._headers = {ANSWERS: "1"} if answers else {}
        self.key = key
        self.note = note
        self._owner = owner
        self._ttl_s = ttl_s
        self._revision = 0
        self._renewed_at = 0.0
        self._steady_since = 0.0  # no renewal has been late since this time

    @property
    def sees_others(self) -> bool:
        """Whether a missing lease of another process means that the other process has ended.

        False while this process does not hold its lease. Also False for half a TTL after this lease
        was taken or was renewed late: the bus may have been away for all processes, and the other
        processes may be about to renew their leases. Also False for one TTL after a jump of NATS's
        clock, because the jump may have expired all leases at once. Call `Clock.refresh` first.
        """
        steady = time.monotonic() >= self._steady_since + self._ttl_s / 2
        return self.is_held and steady and self._bus.clock.has_been_steady_for(self._ttl_s)

    @property
    def renewed_at(self) -> float:
        """When the last answered renewal was sent, on this process's monotonic clock."""
        return self._renewed_at

    @property
    def is_held(self) -> bool:
        return bool(self._revision) and time.monotonic() < self._renewed_at + self._ttl_s

    async def acquire(self) -> bool:
        """Take the lease if no process holds it; return whether this process holds it now."""
        return await self._take(0)

    async def renew(self) -> bool:
        """Renew the lease; return False when this process no longer holds the lease. While the bus
        is away, this process still holds the lease until the TTL has passed."""
        try:
            if not await self._take(self._revision):
                self._revision = 0
        except BusError as error:
            log.warning("lease %s is renewed later, or expires: %s", self.key, error)
        return self.is_held

    async def _take(self, revision: int) -> bool:
        asked_at = time.monotonic()
        value = f"{self._owner} {self.note}".strip().encode()
        taken = await self._write(value, revision)
        if taken is None:
            # The answer to an earlier write of this process may have been lost although the write
            # was stored. In this case, the key has a revision that this process does not know. The
            # TTL of the earlier write has begun earlier, so the lease is written once more.
            entry = await self._bucket.get(self.key)
            if entry is not None and owner_of(entry) == self._owner:
                taken = await self._write(value, entry.revision)
        if taken is None:
            return False
        if asked_at > self._renewed_at + self._ttl_s / 2:
            self._steady_since = time.monotonic()
        self._revision, self._renewed_at = taken, asked_at
        return True

    async def _write(self, value: bytes, revision: int) -> int | None:
        return await self._bucket.update(self.key, value, revision, self._ttl_s, self._headers)

    async def hold(self, renew_s: float) -> None:
        """Hold the lease until cancelled; take it again after a loss, and release it at the end.

        The lease is renewed every `renew_s` seconds, and at once after a reconnect: during the
        disconnection others may have concluded that the holder has ended.
        """
        is_back = asyncio.Event()
        stop_listening = self._bus.jetstream.on_reconnect(is_back.set)
        try:
            while True:
                try:
                    if self.is_held:
                        await self.renew()
                    elif not await self.acquire():
                        log.warning("lease %s is held by another process", self.key)
                except BusError as error:
                    log.warning("lease %s is taken later: %s", self.key, error)
                with suppress(TimeoutError):
                    async with asyncio.timeout(renew_s):
                        await is_back.wait()
                is_back.clear()
        finally:
            stop_listening()
            await asyncio.shield(self.release())

    async def release(self) -> None:
        if self._revision:
            revision, self._revision = self._revision, 0
            try:
                if not await self._bucket.delete(self.key, revision):
                    await self._release_unknown()
            except BusError as error:
                log.warning("lease %s expires by itself: %s", self.key, error)

    async def _release_unknown(self) -> None:
        """Release the lease if a write of this process that was not acknowledged has stored it.

        A renewal that is cancelled may have been stored. Without this method, the lease would then
        be held until its TTL has passed.
        """
        entry = await self._bucket.get(self.key)
        if entry is not None and owner_of(entry) == self._owner:
            await self._bucket.delete(self.key, entry.revision)


def owner_of(entry: Entry) -> str:
    return entry.value.decode().partition(" ")[0]


def note_of(entry: Entry) -> str:
    return entry.value.decode().partition(" ")[2]


async def end_all(bus: Buckets) -> None:
    """End every lease. Only a caller that knows that all holders have ended may call this."""
    if not await bus.jetstream.has("KV_leases"):
        return
    bucket = bus.bucket("leases")
    for key in await bucket.keys():
        if not key.endswith(PARTS):  # `<group>.parts` holds a number, not a lease
            await bucket.delete(key)
