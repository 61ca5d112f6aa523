"""Leases and fair shares hold while members join, leave, end, sleep and lose answers.

The bucket is on a real server, and the test moves the clock, because real TTLs would take too long
for many examples. `test_kv` and `test_leases` show that the server's own TTLs behave in the same
way.
"""

from __future__ import annotations

import asyncio
import itertools
import math
import secrets
from collections import Counter
from collections.abc import Coroutine, Iterator
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from fuzz.cases import examples
from penstock.bus import BusUnavailable, Entry, FairShare, OutcomeUnknown
from support.drive.sync_bus import World
from support.real.nats import NatsServer

PARTS = range(7)
TTL_S = 6.0
RENEW_S = 2.0


class Clock:
    """The time in seconds, for all members: a sleeping member's clock continues."""

    now_s = 1000.0

    def monotonic(self) -> float:
        return self.now_s


class Expiring:
    """The bucket `leases` on the server, with TTLs by the test's clock.

    The next operations fail as `faults` says. The class also serves as `bus` for a FairShare, which
    uses only this bucket.
    """

    def __init__(self, world: World, clock: Clock) -> None:
        self._bucket = world.bus.bucket("leases")
        self._clock = clock
        self._ends: dict[str, float] = {}
        self._expiring = asyncio.Lock()
        self.faults: list[str] = []

    async def update(
        self,
        key: str,
        value: bytes,
        revision: int,
        ttl_s: float | None = None,
        further: object = None,
    ) -> int | None:
        fault = self._fault()
        if fault == "unavailable":
            raise BusUnavailable("as the test wants")
        if fault == "not stored":
            raise OutcomeUnknown("as the test wants")
        await self._expire()
        written = await self._bucket.update(key, value, revision)
        if written is not None:
            self._ends[key] = self._clock.now_s + math.ceil(ttl_s or math.inf)
            if fault == "stored":
                raise OutcomeUnknown("as the test wants")
        return written

    async def get(self, key: str) -> Entry | None:
        await self._reach()
        return await self._bucket.get(key)

    async def entries(self, pattern: str) -> list[Entry]:
        await self._reach()
        return await self._bucket.entries(pattern)

    async def delete(self, key: str, revision: int | None = None) -> bool:
        await self._reach()
        return await self._bucket.delete(key, revision)

    async def write(self, key: str, value: bytes) -> None:
        """Write the key without a TTL."""
        self._ends.pop(key, None)
        await self._bucket.put(key, value)

    def bucket(self, name: str) -> Expiring:
        return self

    async def _reach(self) -> None:
        if self._fault() is not None:
            raise BusUnavailable("as the test wants")
        await self._expire()

    async def _expire(self) -> None:
        async with self._expiring:  # a concurrent caller must not see only a part of the expiries
            for key, end in tuple(self._ends.items()):
                if end <= self._clock.now_s:
                    del self._ends[key]
                    await self._bucket.delete(key)

    def _fault(self) -> str | None:
        return self.faults.pop(0) if self.faults else None


class Member:
    """A member that renews when the test calls `turn`.

    `working` holds the parts that were started and not yet stopped.
    """

    def __init__(self, bus: Any, group: str, name: str) -> None:
        self.working: set[int] = set()
        self.share = FairShare(
            *(bus, group, name, PARTS),
            start=self._start,
            stop=self._stop,
            ttl_s=TTL_S,
            renew_s=RENEW_S,
        )

    async def _start(self, part: int) -> None:
        assert part not in self.working, "started twice"
        self.working.add(part)

    async def _stop(self, part: int) -> None:
        self.working.remove(part)

    async def turn(self) -> None:
        await self.share._attempt(self.share._renew)
        await self.share._attempt(self.share._balance)

    async def leave(self) -> None:
        await self.share._leave()

    def believes(self) -> set[int]:
        return {part for part, lease in self.share._held.items() if lease.is_held}


class Sharing(RuleBasedStateMachine):
    """The model: members that share the parts of one bucket."""

    clock: Clock
    world: World

    def __init__(self) -> None:
        super().__init__()
        self.clock.now_s = 1000.0
        self.group = f"g{secrets.token_hex(6)}"
        self.bucket = Expiring(self.world, self.clock)
        self.names = itertools.count()
        self.parts = PARTS
        self.living: list[Member] = []
        self.asleep: list[Member] = []

    @rule()
    def join(self) -> None:
        if len(self.living) + len(self.asleep) < 5:
            self.living.append(Member(self.bucket, self.group, f"m{next(self.names)}"))

    @precondition(lambda self: self.living)
    @rule(data=st.data())
    def turn(self, data: st.DataObject) -> None:
        self._now(data.draw(st.sampled_from(self.living)).turn())

    @rule(seconds=st.sampled_from([0.3, 1.0, 2.0, 3.0, 5.9, 6.0, 7.0]))
    def time_passes(self, seconds: float) -> None:
        self.clock.now_s += seconds

    @rule()
    def everybody_takes_a_turn(self) -> None:
        self.clock.now_s += RENEW_S
        for member in self.living:
            self._now(member.turn())

    @precondition(lambda self: self.living)
    @rule(data=st.data())
    def die(self, data: st.DataObject) -> None:
        """End a member as a kill does: it releases no lease and does no more work."""
        self.living.remove(data.draw(st.sampled_from(self.living)))

    @precondition(lambda self: self.living)
    @rule(data=st.data())
    def leave(self, data: st.DataObject) -> None:
        member = data.draw(st.sampled_from(self.living))
        self.living.remove(member)
        self.bucket.faults.clear()
        self._now(member.leave())
        assert not member.working

    @precondition(lambda self: self.living)
    @rule(data=st.data())
    def fall_asleep(self, data: st.DataObject) -> None:
        """Stop a member as SIGSTOP does: the member still believes that it holds its leases."""
        member = data.draw(st.sampled_from(self.living))
        self.living.remove(member)
        self.asleep.append(member)

    @precondition(lambda self: self.asleep)
    @rule(data=st.data())
    def wake_up(self, data: st.DataObject) -> None:
        member = data.draw(st.sampled_from(self.asleep))
        self.asleep.remove(member)
        self.living.append(member)

    @rule(count=st.sampled_from([3, 7, 11]))
    def there_are_other_parts_now(self, count: int) -> None:
        self.parts = range(count)
        self._now(self.bucket.write(f"{self.group}.parts", b"%d" % count))

    @rule(faults=st.lists(st.sampled_from(["unavailable", "stored", "not stored"]), max_size=4))
    def answers_are_lost(self, faults: list[str]) -> None:
        self.bucket.faults += faults

    @invariant()
    def no_part_is_believed_held_by_two(self) -> None:
        holders = Counter(
            part for member in [*self.living, *self.asleep] for part in member.believes()
        )
        assert not holders or max(holders.values()) == 1

    @invariant()
    def who_works_holds_or_has_not_had_its_turn_since(self) -> None:
        for member in [*self.living, *self.asleep]:
            assert member.working == member.share.held

    def teardown(self) -> None:
        """Check that some turns after the last fault, all parts are shared out fairly."""
        self.bucket.faults.clear()
        self.living, self.asleep = self.living + self.asleep, []
        if not self.living:
            return
        for _ in range(math.ceil(TTL_S / RENEW_S) + 4):
            self.clock.now_s += RENEW_S
            for member in self.living:
                self._now(member.turn())
            self.no_part_is_believed_held_by_two()
        works = Counter(part for member in self.living for part in member.working)
        assert works == Counter(self.parts)
        shares = [len(member.working) for member in self.living]
        assert max(shares) - min(shares) <= 1

    def _now(self, work: Coroutine[Any, Any, None]) -> None:
        self.world.runner.run(work)


@pytest.fixture
def world(nats_server: NatsServer) -> Iterator[World]:
    world = World(nats_server)
    yield world
    world.close()


@pytest.mark.timeout(300)  # Hypothesis needs time to shrink a failure
@examples(20)
def test_every_part_has_one_holder_and_shares_are_fair(
    world: World, monkeypatch: pytest.MonkeyPatch, count: int
) -> None:
    clock = Clock()
    # The clock is replaced in these modules alone; the event loop and the connection use real time.
    monkeypatch.setattr("penstock.bus.state.leases.time", clock)
    monkeypatch.setattr("penstock.bus.state.fair_share.time", clock)
    machine = type("Members", (Sharing,), {"clock": clock, "world": world})
    run_state_machine_as_test(
        machine, settings=settings(max_examples=count, stateful_step_count=40)
    )
