"""Divides the parts of a group's work, such as partitions, fairly among the group's members."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Sequence

from penstock.bus.connection.retry import until_answered
from penstock.bus.errors import BusError
from penstock.bus.messages import Stored
from penstock.bus.read.reader import Reader
from penstock.bus.state.kv import Buckets, Entry
from penstock.bus.state.leases import Lease, note_of, owner_of
from penstock.bus.state.peers import Peers

log = logging.getLogger(__name__)

# seconds to wait after a change, because several members often start or stop together
SETTLE_S = 0.03
RENEW_AGAIN_S = 0.5  # the most seconds before a failed renewal is tried again


class FairShare:
    """Divides parts (numbers) among the members of a group that hold a lease.

    Each member holds the lease `<group>.member.<name>`, and `<group>.part.<number>` for each part
    of its share. Where the parts do not divide evenly, the first members in the order of their
    names take one more part each. `start` is awaited with each part that this member gains, and
    `stop` with each part that this member loses or must release.

    The parts are the numbers in `parts`. But if the key `<group>.parts` of the leases holds a
    number n, the parts are 0 to n - 1. Each member writes its number of parts into the note of its
    lease, and divides the parts with the members that have the same number. So every part is taken
    even while only some members have read a new number.

    `beside` is another share of this member. Other members ask whether this member still runs, and
    `beside` answers for both shares, because a member must answer each request once.

    A member acts on changes of the group at once, and renews its leases every `renew_s` seconds. A
    member whose process is found to have ended loses its leases within two seconds. A member that
    hangs loses its leases when they expire.
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
        beside: FairShare | None = None,
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
        key = f"{group}.member.{member}"
        self._membership = Lease(bus, key, member, ttl_s, f"{len(parts)}", answers=True)
        self._others: Peers = Peers(
            bus,
            f"{group}.member.",
            member,
            on_dead=self._on_dead,
            answers_with=beside._others if beside is not None else None,
        )
        self._renew_at = 0.0
        self._is_renewed = False  # whether the last attempt renewed all leases
        self._held: dict[int, Lease] = {}
        self._seen: dict[str, bytes] = {}  # the group's keys, with their last known values
        self._changed = asyncio.Event()
        self._step: asyncio.Task[None] | None = None  # the task of the last attempt

    @property
    def held(self) -> frozenset[int]:
        """The parts that this member holds."""
        return frozenset(self._held)

    async def run(self) -> None:
        """Hold this member's share of the parts until cancelled; then release all leases."""
        watch = Reader(self._bus, "KV_leases", f"$KV.leases.{self._group}.>", 1, self._on_change)
        await until_answered(f"{self._group}: answering others", self._others.answer)
        beside = {asyncio.create_task(watch.run()), asyncio.create_task(self._others.run())}
        stop_listening = self._bus.jetstream.on_reconnect(self._on_reconnect)
        try:
            while True:
                self._renew_at = time.monotonic() + self._renew_s
                await self._attempt(self._renew)
                if not self._is_renewed:
                    # The cause may be an election of a leader. An early retry renews the leases
                    # shortly after the end of the election, before the leases expire.
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

    def _on_reconnect(self) -> None:
        # Other members may have concluded that this member has ended, and may have deleted this
        # member's leases. So this member renews the leases at once.
        self._renew_at = 0.0
        self._changed.set()

    async def _on_dead(self, member: str) -> None:
        """Delete the part leases of an ended member, so that others can take the parts at once."""
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
                log.warning("%s: its parts are divided later: %s", self._group, error)

        # The shield keeps the step from being cancelled half-way. Otherwise, the bucket could keep
        # leases that this member does not know and never releases.
        self._step = asyncio.create_task(attempted())
        await asyncio.shield(self._step)

    async def _something_changes(self) -> bool:
        """Wait for a change of the group; return False when the leases must be renewed first."""
        try:
            async with asyncio.timeout(self._renew_at - time.monotonic()):
                await self._changed.wait()
                await asyncio.sleep(SETTLE_S)
        except TimeoutError:
            return False
        return True

    async def _on_change(self, stored: Stored) -> None:
        self._others.on_lease_message(stored)
        # Most messages are renewals, which repeat the known value. An expired or deleted key comes
        # with an empty value.
        if self._seen.get(stored.subject) != stored.payload:
            self._seen[stored.subject] = stored.payload
            self._changed.set()
        if not stored.payload:
            del self._seen[stored.subject]

    async def _renew(self) -> None:
        self._is_renewed = False
        begun_at = time.monotonic()
        held = tuple(self._held.items())
        # All leases are renewed concurrently. If the leases were renewed one after another, the
        # last leases would expire while the bus hangs.
        kept = await asyncio.gather(*(lease.renew() for _, lease in held))
        lost = [part for (part, _), is_kept in zip(held, kept, strict=True) if not is_kept]
        for part in lost:
            log.warning("%s: part %d is lost: its lease was not renewed", self._group, part)
            del self._held[part]
        # The calls of `stop` run concurrently, too, since each may have to wait for the bus.
        await asyncio.gather(*map(self._stop, lost))
        if not (self._membership.is_held and await self._membership.renew()):
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
        # Members begin with different parts, so that they seldom compete for the same part.
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
        self._changed.set()  # this member may now divide the parts with other members

    def _peers(self, found: dict[str, Entry]) -> list[str]:
        """Return the names of the members that know the same number of parts, sorted."""
        prefix = f"{self._group}.member."
        known = f"{len(self._parts)}"
        return sorted(
            key.removeprefix(prefix)
            for key, entry in found.items()
            if key.startswith(prefix) and note_of(entry) == known
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
                log.warning("%s: part %d is taken later: %s", self._group, part, got)

    async def _give_up(self, *parts: int) -> None:
        async def give_up(part: int) -> None:
            # `stop` comes before the release. Otherwise the member that takes the part next could
            # begin while this process still works on the part.
            lease = self._held.pop(part)
            await self._stop(part)
            await lease.release()

        await asyncio.gather(*map(give_up, parts))

    async def _leave(self) -> None:
        if self._step is not None and not self._step.done():
            await asyncio.wait([self._step])
        await self._give_up(*self._held)
        await self._membership.release()
