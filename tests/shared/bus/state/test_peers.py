"""A killed process is found dead at once; one that hangs or was cut off briefly is not."""

from __future__ import annotations

import asyncio
import secrets
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest

from penstock.bus import (
    Bucket,
    Bus,
    BusUnavailable,
    FairShare,
    Lease,
    Msg,
    Peers,
    Reader,
    Subscription,
)
from penstock.bus.state import peers as peers_module
from penstock.bus.subjects import alive
from support.drive.bus import connected
from support.drive.waiting import eventually
from support.real.nats import NatsServer

LONG_S = 60.0  # seconds; such a lease does not expire during a test


@pytest.fixture(autouse=True)
def asked_often(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(peers_module, "ASK_S", 0.05)
    monkeypatch.setattr(peers_module, "COUNT_AFTER_S", 0.0)


@pytest.fixture
def prefix() -> str:
    return f"test{secrets.token_hex(4)}."


class Member:
    """A process with a lease, which answers a request of its peers or behaves as the test says."""

    def __init__(self, bus: Bus, prefix: str, name: str, *, answers: bool = True) -> None:
        self.bus = bus
        self.name = name
        self.lease = Lease(bus, prefix + name, name, LONG_S, answers=answers)
        self.asked = 0
        self._listening: Subscription | None = None

    async def listen(self, answer: bool = True) -> None:
        async def on_request(msg: Msg) -> None:
            self.asked += 1
            if answer:
                await self.bus.client.publish(msg.reply)

        self._listening = await self.bus.subscribe(alive(self.name), on_request)

    async def vanish(self) -> None:
        assert self._listening is not None
        await self._listening.unsubscribe()
        await self.bus.client.flush()

    async def has_lease(self) -> bool:
        return await self.bus.bucket("leases").get(self.lease.key) is not None


@asynccontextmanager
async def asking(
    bus: Bus, prefix: str, confirm_s: float = 0.0
) -> AsyncIterator[tuple[Peers, list[str], list[str]]]:
    """Run a member that asks its peers; yield it with the names found gone and those found dead."""
    gone: list[str] = []
    dead: list[str] = []

    def into(found: list[str]) -> Callable[[str], Awaitable[None]]:
        async def note(name: str) -> None:
            found.append(name)

        return note

    peers = Peers(bus, prefix, "asker", on_gone=into(gone), on_dead=into(dead), confirm_s=confirm_s)

    async def saw(stored: object) -> None:
        peers.on_lease_message(stored)  # type: ignore[arg-type]

    watch = Reader(bus, "KV_leases", f"$KV.leases.{prefix}>", 1, saw)
    tasks = [asyncio.create_task(watch.run()), asyncio.create_task(peers.run())]
    try:
        yield peers, gone, dead
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks)


async def asked(member: Member, more: int) -> None:
    """Wait until the member has been asked this many more times."""
    before = member.asked

    async def was() -> bool:
        return member.asked >= before + more

    await eventually(was, what=f"{more} more requests to {member.name}")


async def found(name: str, among: list[str]) -> None:
    async def is_there() -> bool:
        return name in among

    await eventually(is_there, what=f"{name} is found")


async def test_a_member_whose_connection_is_gone_is_found_dead_and_loses_its_lease(
    nats_server: NatsServer, bus: Bus, prefix: str
) -> None:
    async with connected(nats_server.url) as victims:
        victim, other = Member(victims, prefix, "victim"), Member(bus, prefix, "other")
        for member in (victim, other):
            await member.listen()
            await member.lease.acquire()
        async with asking(bus, prefix) as (peers, _, dead):
            await asked(victim, 3)
            assert not dead
            await victims.client.close()  # no lease is released, as after a kill
            await found("victim", dead)
            assert peers.is_dead("victim")
            assert await bus.bucket("leases").get(victim.lease.key) is None
            await asked(other, 3)
            assert dead == ["victim"]
            assert await other.has_lease()


async def test_a_member_that_hangs_is_not_dead(bus: Bus, prefix: str) -> None:
    hangs = Member(bus, prefix, "hangs")
    await hangs.listen(answer=False)
    await hangs.lease.acquire()
    async with asking(bus, prefix) as (_, gone, dead):
        await asked(hangs, 5)
        assert not gone
        assert not dead
        assert await hangs.has_lease()


async def test_a_member_that_was_cut_off_for_a_moment_keeps_its_lease(
    bus: Bus, prefix: str
) -> None:
    cut = Member(bus, prefix, "cut")
    await cut.listen()
    await cut.lease.acquire()
    async with asking(bus, prefix, confirm_s=30.0) as (peers, gone, dead):
        await asked(cut, 1)
        await cut.vanish()
        await found("cut", gone)
        await cut.listen()
        await asked(cut, 2)
        assert not peers.is_dead("cut")
        assert not dead
        assert await cut.has_lease()


async def test_a_member_absent_for_longer_than_the_limit_has_ended(bus: Bus, prefix: str) -> None:
    await Member(bus, prefix, "absent").lease.acquire()
    async with asking(bus, prefix, confirm_s=0.2) as (_, gone, dead):
        await found("absent", dead)
        assert gone == ["absent"]


async def test_a_member_that_renews_its_lease_between_two_requests_is_alive(
    bus: Bus, prefix: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    quick = Member(bus, prefix, "quick")
    await quick.lease.acquire()
    delete = Bucket.delete
    tried: list[str] = []

    async def too_late(bucket: Bucket, key: str, revision: int | None = None) -> bool:
        if revision is not None and not tried:
            await quick.lease.renew()
        tried.append(key)
        return await delete(bucket, key, revision)

    monkeypatch.setattr(Bucket, "delete", too_late)
    async with asking(bus, prefix) as (peers, gone, dead):
        await found("quick", gone)

        async def was_tried() -> bool:
            return bool(tried)

        await eventually(was_tried)
        assert not dead
        assert not peers.is_dead("quick")
        assert await quick.has_lease()


async def test_a_member_of_a_version_that_does_not_answer_is_not_asked(
    bus: Bus, prefix: str
) -> None:
    old = Member(bus, prefix, "old", answers=False)
    new = Member(bus, prefix, "new")
    await new.listen()
    for member in (old, new):
        await member.lease.acquire()
    async with asking(bus, prefix) as (_, gone, _):
        await asked(new, 5)
        assert not gone
        assert await old.has_lease()


async def test_a_member_that_cannot_read_the_leases_finds_no_member_ended(
    bus: Bus, prefix: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As in the minority of a divided cluster, no peer answers and no write succeeds."""
    elsewhere = Member(bus, prefix, "elsewhere")
    await elsewhere.lease.acquire()
    tried = []

    async def away(bucket: Bucket, key: str, revision: int | None = None) -> bool:
        tried.append(key)
        raise BusUnavailable("no quorum")

    async with asking(bus, prefix) as (peers, gone, dead):
        with monkeypatch.context() as patched:
            patched.setattr(Bucket, "delete", away)
            await found("elsewhere", gone)

            async def often() -> bool:
                return len(tried) > 3

            await eventually(often)
            assert not dead
            assert not peers.is_dead("elsewhere")
        await elsewhere.listen()
        await asked(elsewhere, 2)
        assert await elsewhere.has_lease()


async def test_no_member_counts_as_ended_right_after_our_own_reconnect(
    bus: Bus, prefix: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(peers_module, "COUNT_AFTER_S", 3600.0)
    await Member(bus, prefix, "back-soon").lease.acquire()
    bus.client.returned_at = time.monotonic()
    async with asking(bus, prefix) as (_, gone, dead):
        await asyncio.sleep(0.3)  # seconds: six times as long as the check below takes
        assert not gone
        bus.client.returned_at = float("-inf")
        await found("back-soon", dead)


async def test_after_the_loss_of_a_node_a_costly_judgement_waits(
    bus: Bus, prefix: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    bus.client.node_lost_at = time.monotonic()
    member = Member(bus, prefix, "elsewhere")
    await member.lease.acquire()
    async with asking(bus, prefix, confirm_s=0.1) as (_, gone, dead):
        await found("elsewhere", gone)
        await asyncio.sleep(0.3)
        assert not dead
        bus.client.node_lost_at = float("-inf")
        await found("elsewhere", dead)


async def test_a_suspected_member_without_a_lease_is_asked(bus: Bus, prefix: str) -> None:
    lives = Member(bus, prefix, "lives")
    await lives.listen()
    async with asking(bus, prefix) as (peers, _, dead):
        peers.suspect(["lives", "died-long-ago"])
        await found("died-long-ago", dead)
        assert lives.asked
        assert dead == ["died-long-ago"]


async def test_each_asks_three_however_many_there_are(bus: Bus, prefix: str) -> None:
    members = [Member(bus, prefix, f"m{number}") for number in range(8)]
    for member in members:
        await member.listen()
        await member.lease.acquire()
    async with asking(bus, prefix):
        await asked(members[0], 5)
    assert [member.asked > 0 for member in members] == [True] * 3 + [False] * 5


async def test_the_next_ones_are_asked_when_the_first_ones_are_dead(bus: Bus, prefix: str) -> None:
    members = [Member(bus, prefix, f"m{number}") for number in range(8)]
    for member in members:
        await member.lease.acquire()
    await members[-1].listen()
    async with asking(bus, prefix) as (_, _, dead):
        for member in members[:-1]:
            await found(member.name, dead)
        await asked(members[-1], 2)
    assert len(dead) == len(members) - 1


async def nothing(part: int) -> None:
    pass


async def test_the_parts_of_a_dead_member_are_shared_at_once(
    nats_server: NatsServer, bus: Bus
) -> None:
    group = f"test{secrets.token_hex(4)}"

    def member(of: Bus, name: str) -> FairShare:
        times: dict[str, Any] = {"ttl_s": LONG_S, "renew_s": 10.0}
        return FairShare(of, group, name, range(8), start=nothing, stop=nothing, **times)

    async with connected(nats_server.url) as victims:
        one, two = member(bus, "one"), member(victims, "two")
        running, dying = asyncio.create_task(one.run()), asyncio.create_task(two.run())

        async def evenly() -> bool:
            return (len(one.held), len(two.held)) == (4, 4)

        async def alone() -> bool:
            return len(one.held) == 8

        try:
            await eventually(evenly)
            await victims.client.close()
            await eventually(alone)
        finally:
            for task in (running, dying):
                task.cancel()
            await asyncio.wait([running, dying])
