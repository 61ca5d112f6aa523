"""Dividing the parts of a group's work, such as partitions, fairly among its living members."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Sequence

from penstock.bus.errors import BusError
from penstock.bus.messages import Stored
from penstock.bus.read.reader import Reader
from penstock.bus.state.kv import Buckets, Entry
from penstock.bus.state.leases import Lease, note_of, owner_of
from penstock.bus.state.peers import Peers

log = logging.getLogger(__name__)

SETTLE_S = 0.03  # members come and go in groups: wait shortly, and balance once for all of them
ANSWER_AGAIN_S = 0.25
RENEW_AGAIN_S = 0.5


class FairShare:
    """Divides parts (numbers) among the living members of a group, by leases.

    Each member holds `<group>.member.<name>`, and `<group>.part.<number>` for each part of its
    share. Where the parts do not divide evenly, the first members in the order of their names take
    one more. `start` is awaited with each part that is gained, `stop` with each that is lost or
    must be released.

    The parts are `parts`, or 0 to n - 1 where the key `<group>.parts` holds n. A member writes the
    number that it knows as the note of its lease, and shares with the members that know the same
    number. So every part has a taker while a change spreads, and beside an older version that
    cannot learn of the change.

    A member acts on changes of the group at once; `renew_s` is how often it renews its leases. A
    member whose process is found dead loses its leases within two seconds, a member that hangs
    loses them when they expire.
    """

    def __init__(
        self,
        bus: Buckets,
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
        self._unnoted = len(parts)  # the number of parts of a member without a note
        self._start = start
        self._stop = stop
        self._ttl_s = ttl_s
        self._renew_s = renew_s
        key = f"{group}.member.{member}"
        self._membership = Lease(bus, key, member, ttl_s, f"{len(parts)}", answers=True)
        self._others = Peers(bus, f"{group}.member.", member, on_dead=self._on_dead)
        self._renew_at = 0.0
        self._is_renewed = False  # whether the last attempt renewed all leases
        self._held: dict[int, Lease] = {}
        self._seen: dict[str, bytes] = {}  # the group's keys, with their last known values
        self._changed = asyncio.Event()
        self._step: asyncio.Task[None] | None = None  # the last attempt

    @property
    def held(self) -> frozenset[int]:
        """The parts of this member."""
        return frozenset(self._held)

    async def run(self) -> None:
        """Take part until cancelled; then release all leases."""
        watch = Reader(self._bus, "KV_leases", f"$KV.leases.{self._group}.>", 1, self._on_change)
        await self._answer()
        beside = {asyncio.create_task(watch.run()), asyncio.create_task(self._others.run())}
        stop_listening = self._bus.jetstream.on_reconnect(self._on_reconnect)
        try:
            while True:
                self._renew_at = time.monotonic() + self._renew_s
                await self._attempt(self._renew)
                if not self._is_renewed:
                    # Perhaps an election: retry soon, so that its length is all that is lost.
                    self._renew_at = time.monotonic() + min(self._renew_s, RENEW_AGAIN_S)
                await self._attempt(self._balance)
                while await self._something_changes():
                    await self._attempt(self._balance)
        finally:
            stop_listening()
            for task in beside:
                task.cancel()
            await asyncio.shield(self._leave())
            await asyncio.wait(beside)

    async def _answer(self) -> None:
        while True:
            try:
                return await self._others.answer()
            except BusError as error:
                log.warning("%s: %s", self._group, error)
                await asyncio.sleep(ANSWER_AGAIN_S)

    def _on_reconnect(self) -> None:
        # Other members may have taken this one for dead: renew at once.
        self._renew_at = 0.0
        self._changed.set()

    async def _on_dead(self, member: str) -> None:
        """Free the parts of a dead member, whose leases would last for some seconds more."""
        parts = await self._bucket.entries(f"{self._group}.part.*")
        theirs = [entry for entry in parts if owner_of(entry) == member]
        await asyncio.gather(
            *(self._bucket.delete(entry.key, entry.revision) for entry in theirs),
            return_exceptions=True,  # a lease that could not be deleted expires
        )

    async def _attempt(self, step: Callable[[], Awaitable[None]]) -> None:
        async def attempted() -> None:
            try:
                await step()
            except BusError as error:
                log.warning("%s: %s", self._group, error)

        # Shielded: a step that is cancelled half-way would leave leases that nobody remembers.
        self._step = asyncio.create_task(attempted())
        await asyncio.shield(self._step)

    async def _something_changes(self) -> bool:
        """Wait for a change of the group; False when it is time to renew."""
        try:
            async with asyncio.timeout(self._renew_at - time.monotonic()):
                await self._changed.wait()
                await asyncio.sleep(SETTLE_S)
        except TimeoutError:
            return False
        return True

    async def _on_change(self, stored: Stored) -> None:
        self._others.saw(stored)
        # Most messages are renewals. An expired or deleted key comes with an empty value.
        if self._seen.get(stored.subject) != stored.payload:
            self._seen[stored.subject] = stored.payload
            self._changed.set()
        if not stored.payload:
            del self._seen[stored.subject]

    async def _renew(self) -> None:
        self._is_renewed = False
        begun_at = time.monotonic()
        held = tuple(self._held.items())
        # Concurrently: one after another, the last leases would expire while the bus hangs.
        kept = await asyncio.gather(*(lease.renew() for _, lease in held))
        lost = [part for (part, _), is_kept in zip(held, kept, strict=True) if not is_kept]
        for part in lost:
            log.warning("%s: lost part %d", self._group, part)
            del self._held[part]
        # Concurrently, too: each `stop` may have to wait for the bus.
        await asyncio.gather(*map(self._stop, lost))
        if not (self._membership.held and await self._membership.renew()):
            await self._membership.acquire()
        leases = (self._membership, *self._held.values())
        self._is_renewed = all(lease.renewed_at >= begun_at for lease in leases)

    async def _balance(self) -> None:
        self._changed.clear()
        found = {entry.key: entry for entry in await self._bucket.entries(f"{self._group}.>")}
        await self._learn(found.get(f"{self._group}.parts"))
        peers = self._peers(found)
        if self._member not in peers:
            return
        place = peers.index(self._member)
        even, rest = divmod(len(self._parts), len(peers))
        share = even + (place < rest)
        kept = sorted(part for part in self._held if part in self._parts)[:share]
        await self._give_up(*(self._held.keys() - kept))
        free = [
            part
            for part in self._parts
            if part not in self._held and f"{self._group}.part.{part}" not in found
        ]
        # Members begin with different parts, so that they seldom compete for the same one.
        free.sort(key=lambda part: part % len(peers) != place)
        await self._take(free[: share - len(self._held)])

    async def _learn(self, parts: Entry | None) -> None:
        if parts is None:
            return
        if not parts.value.isdigit():
            log.warning("%s: KV leases, %s is no number, ignored", self._group, parts.key)
            return
        if int(parts.value) == len(self._parts):
            return
        self._parts = range(int(parts.value))
        log.info("%s: there are %d parts now", self._group, len(self._parts))
        self._membership.note = f"{len(self._parts)}"
        await self._membership.renew()
        self._changed.set()  # the members to share with may be others now

    def _peers(self, found: dict[str, Entry]) -> list[str]:
        """The members that know the same number of parts as this one, sorted."""
        prefix = f"{self._group}.member."
        known = f"{len(self._parts)}"
        return sorted(
            key.removeprefix(prefix)
            for key, entry in found.items()
            if key.startswith(prefix) and (note_of(entry) or f"{self._unnoted}") == known
        )

    async def _take(self, parts: Sequence[int]) -> None:
        leases = [
            Lease(self._bus, f"{self._group}.part.{part}", self._member, self._ttl_s)
            for part in parts
        ]
        taken = await asyncio.gather(*(lease.acquire() for lease in leases), return_exceptions=True)
        for part, lease, got in zip(parts, leases, taken, strict=True):
            if got is True:
                self._held[part] = lease
                await self._start(part)
            elif isinstance(got, BaseException):
                log.warning("%s: part %d: %s", self._group, part, got)

    async def _give_up(self, *parts: int) -> None:
        async def give_up(part: int) -> None:
            # Stop before the release: the successor must not meet this process still at work.
            lease = self._held.pop(part)
            await self._stop(part)
            await lease.release()

        await asyncio.gather(*map(give_up, parts))

    async def _leave(self) -> None:
        if self._step is not None and not self._step.done():
            await asyncio.wait([self._step])
        await self._give_up(*self._held)
        await self._membership.release()
