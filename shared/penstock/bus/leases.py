"""Leases in KV: who lives, and who works on which partition.

A lease only saves work; the fence keeps it right. It counts as held until its TTL has passed on the
holder's own clock since the last renewal that was answered.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Sequence
from typing import TYPE_CHECKING

from penstock.bus.errors import BusError

if TYPE_CHECKING:
    from penstock.bus.client import Bus

log = logging.getLogger(__name__)


class Lease:
    """One key of the bucket `leases`, whose value is its holder's name.

    `owner` must be a name that nobody else has, nor had: what bears it counts as ours.
    """

    def __init__(self, bus: Bus, key: str, owner: str, ttl_s: float) -> None:
        self._bucket = bus.bucket("leases")
        self.key = key
        self._owner = owner.encode()
        self._ttl_s = ttl_s
        self._revision = 0
        self._renewed_at = 0.0

    @property
    def held(self) -> bool:
        """True while the TTL since the last renewal has not passed."""
        return bool(self._revision) and time.monotonic() < self._renewed_at + self._ttl_s

    async def acquire(self) -> bool:
        """Take it when nobody has it."""
        return await self._take(0)

    async def renew(self) -> bool:
        """Keep it; False when it is lost. A bus that is away changes nothing until the TTL ends."""
        try:
            if not await self._take(self._revision):
                self._revision = 0
        except BusError as error:
            log.warning("lease %s: %s", self.key, error)
        return self.held

    async def _take(self, revision: int) -> bool:
        asked_at = time.monotonic()
        taken = await self._bucket.update(self.key, self._owner, revision, self._ttl_s)
        if taken is None:
            # an earlier write of ours, whose answer was lost, may have moved the revision on; its
            # TTL has begun earlier, so that it has to be written once more
            entry = await self._bucket.get(self.key)
            if entry is not None and entry.value == self._owner:
                taken = await self._bucket.update(
                    self.key, self._owner, entry.revision, self._ttl_s
                )
        if taken is None:
            return False
        self._revision, self._renewed_at = taken, asked_at
        return True

    async def release(self) -> None:
        """Give it back at once."""
        if self._revision:
            revision, self._revision = self._revision, 0
            try:
                await self._bucket.delete(self.key, revision)
            except BusError as error:
                log.warning("lease %s runs out by itself: %s", self.key, error)


async def keep(lease: Lease, renew_s: float) -> None:
    """Hold a lease for as long as this runs, taking it again when it was lost; then release it."""
    try:
        while True:
            try:
                if lease.held:
                    await lease.renew()
                elif not await lease.acquire():
                    log.warning("lease %s is held by somebody else", lease.key)
            except BusError as error:
                log.warning("lease %s: %s", lease.key, error)
            await asyncio.sleep(renew_s)
    finally:
        await asyncio.shield(lease.release())


class FairShare:
    """Divides keys among the members that live, by leases.

    Each member holds `<group>.member.<name>`, and as many of `<group>.part.<key>` as its share:
    the members sorted by name, the first ones take what does not divide evenly. `start` is
    awaited with each key that was gained, `stop` with each that was lost or must be given up.
    """

    def __init__(
        self,
        bus: Bus,
        group: str,
        member: str,
        parts: Sequence[int],
        *,
        start: Callable[[int], Awaitable[None]],
        stop: Callable[[int], Awaitable[None]],
        ttl_s: float = 6.0,
        renew_s: float = 2.0,
    ) -> None:
        self._bus = bus
        self._bucket = bus.bucket("leases")
        self._group = group
        self._member = member
        self._parts = parts
        self._start = start
        self._stop = stop
        self._ttl_s = ttl_s
        self._renew_s = renew_s
        self._membership = Lease(bus, f"{group}.member.{member}", member, ttl_s)
        self._held: dict[int, Lease] = {}

    @property
    def held(self) -> frozenset[int]:
        """The keys that are ours now."""
        return frozenset(self._held)

    async def run(self) -> None:
        """Take part until cancelled; then give everything back."""
        try:
            while True:
                try:
                    await self._turn()
                except BusError as error:
                    log.warning("%s: %s", self._group, error)
                await asyncio.sleep(self._renew_s / 2 if len(self._held) == 0 else self._renew_s)
        finally:
            for part in tuple(self._held):
                await asyncio.shield(self._give_up(part))
            await asyncio.shield(self._membership.release())

    async def _turn(self) -> None:
        await self._renew_parts()
        if not (self._membership.held and await self._membership.renew()):
            await self._membership.acquire()
        taken = await self._bucket.keys(f"{self._group}.>")
        prefix = f"{self._group}.member."
        members = sorted({key.removeprefix(prefix) for key in taken if key.startswith(prefix)})
        share = self._share(members)
        for part in sorted(self._held)[share:]:
            await self._give_up(part)
        for part in self._parts:
            if len(self._held) >= share:
                break
            key = f"{self._group}.part.{part}"
            if key in taken or part in self._held:
                continue
            lease = Lease(self._bus, key, self._member, self._ttl_s)
            if await lease.acquire():
                self._held[part] = lease
                await self._start(part)

    async def _renew_parts(self) -> None:
        held = tuple(self._held.items())
        # side by side, since a bus that hangs would let those expire that come last
        kept = await asyncio.gather(*(lease.renew() for _, lease in held))
        for (part, _), is_kept in zip(held, kept, strict=True):
            if not is_kept:
                log.warning("%s: lost part %d", self._group, part)
                del self._held[part]
                await self._stop(part)

    def _share(self, members: list[str]) -> int:
        if self._member not in members:
            return len(self._held)
        even, rest = divmod(len(self._parts), len(members))
        return even + (members.index(self._member) < rest)

    async def _give_up(self, part: int) -> None:
        # stop before the lease goes: the successor should not find us at work
        lease = self._held.pop(part)
        await self._stop(part)
        await lease.release()
