"""Leases in KV: who lives, and who works on which partition.

A lease only saves work; the fence keeps it right. It counts as held until its TTL has passed on the
holder's own clock since the last renewal that was answered.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING

from penstock.bus.errors import BusError
from penstock.bus.read.pull import Reader
from penstock.bus.state.peers import ANSWERS, Peers

if TYPE_CHECKING:
    from penstock.bus.bus import Bus
    from penstock.bus.read.direct import Stored
    from penstock.bus.state.kv import Entry

log = logging.getLogger(__name__)

SETTLE_S = 0.03  # members come and go in groups: look once
ANSWER_AGAIN_S = 0.25
RENEW_AGAIN_S = 0.5
PARTS = ".parts"


class Lease:
    """One key of the bucket `leases`, whose value is its holder's name.

    `owner` must be a name that nobody else has, nor had: what bears it counts as ours. What
    `note` says is written behind the name, from the next renewal on. `answers`: its holder
    answers requests to `alive.<owner>`, so that who asks in vain may end the lease (see `peers`).
    """

    def __init__(
        self,
        bus: Bus,
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
        self._steady_since = 0.0  # since then no renewal was late

    @property
    def sees_others(self) -> bool:
        """Whether a lease that is missing tells of a holder who is gone.

        Not for half a TTL after this one was taken, or could not be renewed for so long: the bus
        was away, perhaps from everybody, and the others are about to renew theirs. Nor for a TTL
        after NATS's clock has jumped (`Clock.look` first): all leases may have run out at once.
        """
        steady = time.monotonic() >= self._steady_since + self._ttl_s / 2
        return self.held and steady and self._bus.clock.steady_for(self._ttl_s)

    @property
    def renewed_at(self) -> float:
        """When the last renewal was asked for that was answered, on our own clock."""
        return self._renewed_at

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
        value = f"{self._owner} {self.note}".strip().encode()
        taken = await self._write(value, revision)
        if taken is None:
            # an earlier write of ours, whose answer was lost, may have moved the revision on; its
            # TTL has begun earlier, so that it has to be written once more
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

    def on_reconnect(self, callback: Callable[[], None]) -> Callable[[], None]:
        """Call back when it should be renewed at once: others may have taken its holder for dead.

        Returns what stops that.
        """
        return self._bus.on_reconnect(callback)

    async def release(self) -> None:
        """Give it back at once."""
        if self._revision:
            revision, self._revision = self._revision, 0
            try:
                await self._bucket.delete(self.key, revision)
            except BusError as error:
                log.warning("lease %s runs out by itself: %s", self.key, error)


def owner_of(entry: Entry) -> str:
    """Whose lease it is."""
    return entry.value.decode().partition(" ")[0]


def note_of(entry: Entry) -> str:
    """What its owner has noted behind the name."""
    return entry.value.decode().partition(" ")[2]


async def end_all(bus: Bus) -> None:
    """End every lease: for who knows that all holders are dead. Raises BusError."""
    if not await bus.has("KV_leases"):
        return
    bucket = bus.bucket("leases")
    for key in await bucket.keys():
        if not key.endswith(PARTS):  # which is no lease, but a number
            await bucket.delete(key)


async def keep(lease: Lease, renew_s: float) -> None:
    """Hold a lease for as long as this runs, taking it again when it was lost; then release it.

    After a reconnect it is renewed at once.
    """
    is_back = asyncio.Event()
    stop_listening = lease.on_reconnect(is_back.set)
    try:
        while True:
            try:
                if lease.held:
                    await lease.renew()
                elif not await lease.acquire():
                    log.warning("lease %s is held by somebody else", lease.key)
            except BusError as error:
                log.warning("lease %s: %s", lease.key, error)
            with suppress(TimeoutError):
                async with asyncio.timeout(renew_s):
                    await is_back.wait()
            is_back.clear()
    finally:
        stop_listening()
        await asyncio.shield(lease.release())


class FairShare:
    """Divides keys among the members that live, by leases.

    Each member holds `<group>.member.<name>`, and as many of `<group>.part.<key>` as its share:
    the members sorted by name, the first ones take what does not divide evenly. `start` is
    awaited with each key that was gained, `stop` with each that was lost or must be given up.

    The parts are `parts`, or 0 to n - 1 where the key `<group>.parts` says n. A member notes the
    number that it knows in its lease, and shares with those that know the same: while a change
    spreads, and beside a version that cannot learn of it, every part still has a taker.

    What changes in the group is acted on at once; `renew_s` is how often a lease is renewed. A
    member whose process is found dead loses its leases within a second or two, one that hangs
    when they run out.
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
        self._unnoted = len(parts)  # what a member without a note divides
        self._start = start
        self._stop = stop
        self._ttl_s = ttl_s
        self._renew_s = renew_s
        key = f"{group}.member.{member}"
        self._membership = Lease(bus, key, member, ttl_s, f"{len(parts)}", answers=True)
        self._others = Peers(bus, f"{group}.member.", member, on_dead=self._on_dead)
        self._renew_at = 0.0
        self._is_renewed = False  # at the last attempt
        self._held: dict[int, Lease] = {}
        self._seen: dict[str, bytes] = {}  # the group's keys as they were last heard of
        self._changed = asyncio.Event()
        self._step: asyncio.Task[None] | None = None  # the last one

    @property
    def held(self) -> frozenset[int]:
        """The keys that are ours now."""
        return frozenset(self._held)

    async def run(self) -> None:
        """Take part until cancelled; then give everything back."""
        watch = Reader(self._bus, "KV_leases", f"$KV.leases.{self._group}.>", 1, self._on_change)
        await self._answer()
        beside = {asyncio.create_task(watch.run()), asyncio.create_task(self._others.run())}
        stop_listening = self._bus.on_reconnect(self._on_reconnect)
        try:
            while True:
                self._renew_at = time.monotonic() + self._renew_s
                await self._attempt(self._renew)
                if not self._is_renewed:
                    # as in an election: nothing may be added to it
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
        # others may have taken us for dead
        self._renew_at = 0.0
        self._changed.set()

    async def _on_dead(self, member: str) -> None:
        """Free the parts of a member that is dead: their leases would stand for some seconds."""
        parts = await self._bucket.entries(f"{self._group}.part.*")
        theirs = [entry for entry in parts if owner_of(entry) == member]
        await asyncio.gather(
            *(self._bucket.delete(entry.key, entry.revision) for entry in theirs),
            return_exceptions=True,  # what could not be deleted runs out
        )

    async def _attempt(self, step: Callable[[], Awaitable[None]]) -> None:
        async def attempted() -> None:
            try:
                await step()
            except BusError as error:
                log.warning("%s: %s", self._group, error)

        # half done it would leave leases that nobody knows of
        self._step = asyncio.create_task(attempted())
        await asyncio.shield(self._step)

    async def _something_changes(self) -> bool:
        """Wait for that; False when it is time to renew."""
        try:
            async with asyncio.timeout(self._renew_at - time.monotonic()):
                await self._changed.wait()
                await asyncio.sleep(SETTLE_S)
        except TimeoutError:
            return False
        return True

    async def _on_change(self, stored: Stored) -> None:
        self._others.saw(stored)
        # most of what comes are renewals; an expired or deleted key leaves an empty value
        if self._seen.get(stored.subject) != stored.payload:
            self._seen[stored.subject] = stored.payload
            self._changed.set()
        if not stored.payload:
            del self._seen[stored.subject]

    async def _renew(self) -> None:
        self._is_renewed = False
        begun_at = time.monotonic()
        held = tuple(self._held.items())
        # side by side, since a bus that hangs would let those expire that come last
        kept = await asyncio.gather(*(lease.renew() for _, lease in held))
        lost = [part for (part, _), is_kept in zip(held, kept, strict=True) if not is_kept]
        for part in lost:
            log.warning("%s: lost part %d", self._group, part)
            del self._held[part]
        # side by side, too: each may have to wait for a bus that does not answer
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
        # each begins elsewhere, so that they seldom want the same
        free.sort(key=lambda part: part % len(peers) != place)
        await self._take(free[: share - len(self._held)])

    async def _learn(self, parts: Entry | None) -> None:
        if parts is None or int(parts.value) == len(self._parts):
            return
        self._parts = range(int(parts.value))
        log.info("%s: there are %d parts now", self._group, len(self._parts))
        self._membership.note = f"{len(self._parts)}"
        await self._membership.renew()
        self._changed.set()  # who shares with us is another question now

    def _peers(self, found: dict[str, Entry]) -> list[str]:
        """The members that divide as many parts as we, sorted."""
        prefix = f"{self._group}.member."
        return sorted(
            key.removeprefix(prefix)
            for key, entry in found.items()
            if key.startswith(prefix) and int(note_of(entry) or self._unnoted) == len(self._parts)
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
            # stop before the lease goes: the successor should not find us at work
            lease = self._held.pop(part)
            await self._stop(part)
            await lease.release()

        await asyncio.gather(*map(give_up, parts))

    async def _leave(self) -> None:
        if self._step is not None and not self._step.done():
            await asyncio.wait([self._step])
        await self._give_up(*self._held)
        await self._membership.release()
