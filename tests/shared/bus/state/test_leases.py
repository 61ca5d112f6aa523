"""A lease is held until the holder's own clock ends it, and leases are shared out fairly."""

from __future__ import annotations

import asyncio
import secrets
import time
from typing import Any

import pytest

from penstock.bus import (
    Bucket,
    Bus,
    BusUnavailable,
    Entry,
    FairShare,
    Lease,
    Message,
    OutcomeUnknown,
)
from penstock.bus.connection.retry import until_answered
from penstock.bus.read import leader
from support.drive.bus import connected
from support.drive.waiting import eventually
from support.fakes.clocks import server_steps
from support.real.nats import NatsServer

SHORT_S = 1.0


@pytest.fixture
def key() -> str:
    return f"test.{secrets.token_hex(8)}"


class Clock:
    """The holder's own clock, which the test may set forward."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self._ahead_s = 0.0
        monotonic = time.monotonic
        monkeypatch.setattr(
            "penstock.bus.state.leases.time.monotonic", lambda: monotonic() + self._ahead_s
        )

    def forward(self, seconds: float) -> None:
        self._ahead_s += seconds


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    return Clock(monkeypatch)


async def free(bus: Bus, key: str) -> None:
    async def gone() -> bool:
        return await bus.bucket("leases").get(key) is None

    await eventually(gone, 30, f"{key} has expired")


async def test_one_holder_at_a_time(bus: Bus, key: str) -> None:
    one, two = Lease(bus, key, "one", 60), Lease(bus, key, "two", 60)
    assert not one.is_held
    assert await one.acquire()
    assert one.is_held
    assert not await two.acquire()
    assert not two.is_held
    await one.release()
    assert not one.is_held
    assert await two.acquire()


async def test_a_lease_whose_renewal_was_cancelled_is_free_after_its_release(
    bus: Bus, key: str
) -> None:
    """The server stores the renewal, but the cancelled caller does not get the answer."""
    one, two = Lease(bus, key, "one", 60), Lease(bus, key, "two", 60)
    assert await one.acquire()
    renewal = asyncio.create_task(one.renew())
    await asyncio.sleep(0)  # the request is sent, and the answer cannot have come yet
    renewal.cancel()
    await asyncio.wait([renewal])
    assert renewal.cancelled()
    await one.release()
    assert await two.acquire()


async def test_of_many_that_want_it_one_gets_it(nats_server: NatsServer, key: str) -> None:
    async with connected(nats_server.url) as one, connected(nats_server.url) as two:
        leases = [Lease((one, two)[n % 2], key, f"{n}", 60) for n in range(10)]
        assert sum(await asyncio.gather(*(lease.acquire() for lease in leases))) == 1
        assert sum(lease.is_held for lease in leases) == 1


async def test_a_renewed_lease_does_not_expire(bus: Bus, key: str) -> None:
    lease, other = Lease(bus, key, "one", SHORT_S), Lease(bus, key, "two", 60)
    await lease.acquire()
    witness = Lease(bus, f"{key}.witness", "one", SHORT_S)
    await witness.acquire()

    async def witness_expired() -> bool:
        assert await lease.renew()
        return await bus.bucket("leases").get(f"{key}.witness") is None

    await eventually(witness_expired, 30, "a lease of the same age has expired")
    assert lease.is_held
    assert not await other.acquire()


async def test_a_lease_that_nobody_renews_passes_to_another(bus: Bus, key: str) -> None:
    lease, other = Lease(bus, key, "one", SHORT_S), Lease(bus, key, "two", 60)
    await lease.acquire()
    await free(bus, key)
    assert not lease.is_held
    assert await other.acquire()
    assert not await lease.renew()
    assert not lease.is_held


async def test_the_holders_own_clock_ends_a_lease(bus: Bus, key: str, clock: Clock) -> None:
    lease = Lease(bus, key, "one", 30)
    await lease.acquire()
    clock.forward(29)
    assert lease.is_held
    clock.forward(1.1)
    assert not lease.is_held
    assert await bus.bucket("leases").get(key) is not None


async def test_a_lease_ends_for_its_holder_before_it_ends_for_others(bus: Bus, key: str) -> None:
    async def outlived(ttl_s: float) -> None:
        name = f"{key}.{ttl_s}".replace(".", "-")
        lease, other = Lease(bus, name, "one", ttl_s), Lease(bus, name, "two", 60)
        assert await lease.acquire()
        await eventually(other.acquire, 30)
        assert not lease.is_held, "two hold it at once"

    await asyncio.gather(*map(outlived, (1, 1.2, 1.5)))


async def test_a_holder_that_was_away_too_long_takes_up_its_own_lease(
    bus: Bus, key: str, clock: Clock
) -> None:
    lease = Lease(bus, key, "one", 30)
    await lease.acquire()
    clock.forward(31)
    assert not lease.is_held
    assert await lease.acquire()
    assert lease.is_held


async def test_a_lease_that_somebody_took_is_lost(bus: Bus, key: str) -> None:
    lease = Lease(bus, key, "one", 60)
    await lease.acquire()
    await bus.bucket("leases").put(key, b"two")
    assert not await lease.renew()
    assert not lease.is_held
    assert not await lease.renew()


async def test_a_release_does_not_take_it_from_the_next(bus: Bus, key: str) -> None:
    lease = Lease(bus, key, "one", 60)
    await lease.acquire()
    await bus.bucket("leases").put(key, b"two")
    await lease.release()
    entry = await bus.bucket("leases").get(key)
    assert entry is not None
    assert entry.value == b"two"


@pytest.mark.parametrize("stored", [True, False], ids=["stored", "not stored"])
async def test_a_renewal_whose_answer_is_lost_costs_nothing(
    bus: Bus, key: str, clock: Clock, monkeypatch: pytest.MonkeyPatch, stored: bool
) -> None:
    lease = Lease(bus, key, "one", 30)
    await lease.acquire()
    publish, tail = bus.publisher.publish, leader.tail

    async def lose(message: Message) -> int:
        if stored:
            await publish(message)
        raise OutcomeUnknown("lost by the test")

    async def away(bus: Bus, stream: str, pattern: str) -> None:
        raise BusUnavailable("away by the test")

    monkeypatch.setattr(bus.publisher, "publish", lose)
    monkeypatch.setattr(leader, "tail", away)
    assert await lease.renew()
    clock.forward(20)
    monkeypatch.setattr(bus.publisher, "publish", publish)
    monkeypatch.setattr(leader, "tail", tail)
    before = await bus.bucket("leases").get(key)
    assert await lease.renew()
    clock.forward(20)
    assert lease.is_held
    # The stored lease was written by the renewal that was answered, so its TTL covers the time for
    # which the holder believes that it holds the lease.
    after = await bus.bucket("leases").get(key)
    assert before is not None
    assert after is not None
    assert after.revision > before.revision


async def test_a_bus_that_is_away_ends_no_lease_before_its_time(
    bus: Bus, key: str, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    lease = Lease(bus, key, "one", 30)
    await lease.acquire()

    async def away(message: Message) -> int:
        raise BusUnavailable("away by the test")

    monkeypatch.setattr(bus.publisher, "publish", away)
    clock.forward(29)
    assert await lease.renew()
    clock.forward(2)
    assert not await lease.renew()


async def test_a_member_that_could_not_renew_ignores_expired_leases(
    bus: Bus, key: str, clock: Clock
) -> None:
    """After an outage of the bus, the first process that reconnects finds no other leases."""
    lease = Lease(bus, key, "one", 60)
    assert not lease.sees_others
    await lease.acquire()
    assert not lease.sees_others, "it has only come: others may be about to come back"
    clock.forward(31)
    await lease.renew()  # the lease has expired before this renewal
    assert not lease.sees_others
    for _ in range(2):
        clock.forward(16)
        await lease.renew()
    assert lease.sees_others
    clock.forward(61)
    assert not lease.sees_others
    await lease.acquire()
    assert not lease.sees_others


@pytest.mark.parametrize("seconds", [-75.0, 75.0])
async def test_after_a_jump_of_nats_clock_expired_leases_are_ignored(
    bus: Bus, key: str, clock: Clock, seconds: float
) -> None:
    """After a forward jump of NATS's clock, all leases expire at once, but no process has ended."""
    lease = Lease(bus, key, "one", 60)
    await lease.acquire()
    clock.forward(31)
    assert lease.sees_others
    server_steps(bus.clock, seconds)
    await bus.clock.refresh()
    assert lease.is_held
    assert not lease.sees_others
    # one TTL after the jump, every running process has renewed its lease
    bus.clock._jumped_at_s -= 60
    assert lease.sees_others


async def test_hold_keeps_a_lease_takes_it_again_and_gives_it_back(bus: Bus, key: str) -> None:
    lease = Lease(bus, key, "one", 60)
    keeping = asyncio.create_task(lease.hold(0.02))

    async def held() -> bool:
        return lease.is_held

    async def lost() -> bool:
        return not lease.is_held

    await eventually(held)
    await bus.bucket("leases").put(key, b"two")
    await eventually(lost)
    await bus.bucket("leases").delete(key)
    await eventually(held)
    keeping.cancel()
    await asyncio.wait([keeping])
    assert await bus.bucket("leases").get(key) is None


class Member:
    """A process that shares the parts with others, with short leases."""

    def __init__(
        self, bus: Bus, group: str, name: str, ttl_s: float = SHORT_S, renew_s: float = 0.1
    ) -> None:
        self.name = name
        self.parts: set[int] = set()
        self.share = FairShare(
            bus,
            group,
            name,
            range(16),
            start=self._begin,
            stop=self._end,
            ttl_s=ttl_s,
            renew_s=renew_s,
        )
        self._task = asyncio.create_task(self.share.run())

    async def _begin(self, part: int) -> None:
        self.parts.add(part)

    async def _end(self, part: int) -> None:
        self.parts.remove(part)

    async def works(self) -> bool:
        return bool(self.parts)

    async def leave(self) -> None:
        self._task.cancel()
        await asyncio.wait([self._task])

    async def die(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Leave without releasing any lease, as a process does after kill -9."""

        async def nothing(lease: Lease) -> None:
            return

        with monkeypatch.context() as patch:
            patch.setattr(Lease, "release", nothing)
            await self.leave()
        self.parts.clear()


@pytest.fixture
def group() -> str:
    return f"g{secrets.token_hex(6)}"


async def shared_out(*members: Member, parts: int = 16) -> None:
    """Wait until every part has one member and the members' shares differ by at most one part."""

    async def fair() -> bool:
        sizes = [len(member.parts) for member in members]
        return sum(sizes) == parts and max(sizes) - min(sizes) <= 1

    await eventually(fair, 30, "the parts are shared out")
    assert set[int]().union(*(member.parts for member in members)) == set(range(parts))
    for member in members:
        assert member.share.held == member.parts


async def test_one_member_works_on_all_parts(bus: Bus, group: str) -> None:
    member = Member(bus, group, "a")
    await shared_out(member)
    await member.leave()
    assert member.parts == set()
    assert await bus.bucket("leases").keys(f"{group}.>") == []


async def test_members_that_come_and_go_share_the_parts_evenly(bus: Bus, group: str) -> None:
    a, b = Member(bus, group, "a"), Member(bus, group, "b")
    await shared_out(a, b)
    c = Member(bus, group, "c")
    await shared_out(a, b, c)
    await b.leave()
    await shared_out(a, c)
    await a.leave()
    await shared_out(c)
    await c.leave()


@pytest.mark.parametrize("call", ["update", "delete"], ids=["taking", "giving up"])
async def test_a_member_that_stops_during_a_renewal_leaves_no_lease(
    bus: Bus, group: str, monkeypatch: pytest.MonkeyPatch, call: str
) -> None:
    """The member is cancelled just after it took a lease, or just before it releases one."""
    real = getattr(Bucket, call)
    under_way = asyncio.Event()

    async def slow(self: Bucket, key: str, *args: Any) -> Any:
        async def hang() -> None:
            if ".part." in key:
                under_way.set()
                await asyncio.sleep(0.3)

        if call == "delete":
            await hang()
            return await real(self, key, *args)
        answer = await real(self, key, *args)
        await hang()
        return answer

    member = Member(bus, group, "a", ttl_s=60)
    if call == "delete":
        await shared_out(member)
        monkeypatch.setattr(Bucket, call, slow)
        other = Lease(bus, f"{group}.member.b", "b", 60, "16")
        await other.acquire()
    else:
        monkeypatch.setattr(Bucket, call, slow)
    await under_way.wait()
    await member.leave()
    assert await bus.bucket("leases").keys(f"{group}.part.>") == []
    assert member.parts == set()


async def test_the_parts_of_a_member_that_died_are_taken_over(
    nats_server: NatsServer, bus: Bus, group: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with connected(nats_server.url) as other:
        a, b = Member(bus, group, "a"), Member(other, group, "b")
        await shared_out(a, b)
        await b.die(monkeypatch)
        await shared_out(a)
        await a.leave()


async def test_a_part_whose_lease_was_lost_is_given_up(bus: Bus, group: str) -> None:
    member = Member(bus, group, "a")
    await shared_out(member)
    await bus.bucket("leases").put(f"{group}.part.3", b"somebody")

    async def given_up() -> bool:
        return 3 not in member.parts

    await eventually(given_up)
    assert len(member.parts) == 15
    await bus.bucket("leases").delete(f"{group}.part.3")
    await shared_out(member)
    await member.leave()


async def test_no_part_has_two_holders_while_members_come_and_go(
    bus: Bus, group: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    holders: dict[int, str] = {}
    twice: list[str] = []
    members: dict[str, Member] = {}

    def join(name: str) -> None:
        member = members[name] = Member(bus, group, name)

        async def begin(part: int) -> None:
            if part in holders:
                twice.append(f"{part}: {holders[part]} and {name}")
            holders[part] = name
            member.parts.add(part)

        async def end(part: int) -> None:
            if holders.get(part) == name:
                del holders[part]
            member.parts.discard(part)

        monkeypatch.setattr(member.share, "_start", begin)
        monkeypatch.setattr(member.share, "_stop", end)

    for names in ("a", "ab", "abc", "bc", "bcd", "d"):
        for name in set(members) - set(names):
            await members.pop(name).leave()
        for name in sorted(set(names) - set(members)):
            join(name)
        await shared_out(*members.values())
    await members["d"].leave()
    assert twice == []


async def test_the_parts_come_back_after_a_restart_of_the_server(
    own_bus: Bus, fresh_nats: NatsServer, group: str
) -> None:
    member = Member(own_bus, group, "a")
    await shared_out(member)
    await asyncio.to_thread(fresh_nats.kill)

    async def given_up() -> bool:
        return member.parts == set()

    # The bus cannot be reached, and the holder's own clock has passed the end of the leases.
    await eventually(given_up, 30, "all parts are given up")
    await asyncio.to_thread(fresh_nats.start)
    await shared_out(member)
    await member.leave()


# renewals so far apart that no member notices a change by a renewal
SLOW = {"ttl_s": 60.0, "renew_s": 30.0}


async def test_a_member_that_joins_or_leaves_is_noticed_at_once(bus: Bus, group: str) -> None:
    a = Member(bus, group, "a", **SLOW)
    await shared_out(a)
    b = Member(bus, group, "b", **SLOW)
    await shared_out(a, b)
    await b.leave()
    await shared_out(a)
    await a.leave()


async def test_members_that_flap_leave_the_others_with_every_part(
    nats_server: NatsServer, bus: Bus, group: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    a = Member(bus, group, "a")
    async with connected(nats_server.url) as other:
        for number in range(8):
            flapping = Member(other, group, f"z{number}")
            await eventually(flapping.works, what="it has got its share")
            await (flapping.die(monkeypatch) if number % 2 else flapping.leave())
        await shared_out(a)
    await a.leave()


async def test_the_number_of_parts_changes_while_members_work(bus: Bus, group: str) -> None:
    a, b = Member(bus, group, "a", **SLOW), Member(bus, group, "b", **SLOW)
    await shared_out(a, b)
    await bus.bucket("leases").put(f"{group}.parts", b"24")
    await shared_out(a, b, parts=24)
    c = Member(bus, group, "c", **SLOW)
    await shared_out(a, b, c, parts=24)
    await bus.bucket("leases").put(f"{group}.parts", b"9")
    await shared_out(a, b, c, parts=9)
    for member in (a, b, c):
        await member.leave()


async def test_beside_a_member_that_learns_nothing_every_part_has_a_taker(
    bus: Bus, group: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Simulate a member that does not read the new number, and keeps dividing 16 parts."""

    async def nothing(parts: Entry | None) -> None:
        return

    old, new = Member(bus, group, "a"), Member(bus, group, "b")
    monkeypatch.setattr(old.share, "_learn", nothing)
    await shared_out(old, new)
    await bus.bucket("leases").put(f"{group}.parts", b"24")

    async def covered() -> bool:
        return old.parts | new.parts == set(range(24))

    await eventually(covered, what="every part is worked on")
    assert not old.parts & new.parts
    await old.leave()
    await shared_out(new, parts=24)
    await new.leave()


async def test_a_lease_that_is_asked_for_while_the_server_is_away_is_taken_when_it_is_back(
    own_bus: Bus, fresh_nats: NatsServer, key: str, caplog: pytest.LogCaptureFixture
) -> None:
    lease = Lease(own_bus, key, "a", 10)
    fresh_nats.kill()
    taking = asyncio.create_task(until_answered(f"lease {key}", lease.acquire))
    refusal = f"lease {key}"
    await eventually(lambda: asyncio.sleep(0, refusal in caplog.text), 30, "a failed attempt")
    fresh_nats.start()
    async with asyncio.timeout(20):
        assert await taking
    assert lease.is_held
    await lease.release()


async def test_a_note_or_number_of_parts_that_cannot_be_read_stops_nobody(
    bus: Bus, group: str, caplog: pytest.LogCaptureFixture
) -> None:
    leases = bus.bucket("leases")
    await leases.put(f"{group}.member.z", b"z sixteen")
    await leases.put(f"{group}.parts", b"many")
    member = Member(bus, group, "a")
    await shared_out(member)
    await member.leave()
    assert f"{group}.parts is no number" in caplog.text
