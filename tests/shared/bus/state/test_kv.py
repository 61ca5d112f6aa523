"""Buckets: compare-and-set has one winner, keys expire, and lost answers are resolved."""

from __future__ import annotations

import asyncio
import secrets

import pytest

from penstock.bus import Bucket, Bus, BusError, Entry, Message, OutcomeUnknown
from penstock.bus.state import kv
from support.drive.bus import connected
from support.drive.waiting import eventually
from support.real.nats import NatsServer


@pytest.fixture
def claims(bus: Bus) -> Bucket:
    return bus.bucket("claims")


@pytest.fixture
def key() -> str:
    return f"test.{secrets.token_hex(8)}"


async def test_what_was_written_is_read(claims: Bucket, key: str) -> None:
    assert await claims.get(key) is None
    revision = await claims.put(key, b"one")
    assert await claims.get(key) == Entry(key, b"one", revision)
    assert await claims.put(key, b"") > revision
    entry = await claims.get(key)
    assert entry is not None
    assert entry.value == b""


async def test_only_the_first_creates(claims: Bucket, key: str) -> None:
    revision = await claims.create(key, b"one")
    assert revision
    assert await claims.create(key, b"two") is None
    assert await claims.create(key, b"one") is None
    assert await claims.get(key) == Entry(key, b"one", revision)


async def test_an_update_needs_the_current_revision(claims: Bucket, key: str) -> None:
    first = await claims.put(key, b"one")
    second = await claims.update(key, b"two", first)
    assert second
    assert await claims.update(key, b"three", first) is None
    assert await claims.update(key, b"three", second + 1) is None
    assert await claims.get(key) == Entry(key, b"two", second)


async def test_a_deleted_key_can_be_created_again(claims: Bucket, key: str) -> None:
    for value in (b"one", b"two", b"three"):
        assert await claims.create(key, value)
        assert await claims.create(key, b"late") is None
        assert await claims.delete(key)
        assert await claims.get(key) is None


async def test_only_the_current_revision_is_deleted(claims: Bucket, key: str) -> None:
    first = await claims.put(key, b"one")
    second = await claims.put(key, b"two")
    assert not await claims.delete(key, first)
    assert await claims.get(key) == Entry(key, b"two", second)
    assert await claims.delete(key, second)
    assert await claims.get(key) is None


async def test_an_update_of_a_deleted_key_is_refused(claims: Bucket, key: str) -> None:
    revision = await claims.put(key, b"one")
    await claims.delete(key)
    assert await claims.update(key, b"two", revision) is None


async def test_what_is_left_of_a_deleted_key_goes_by_itself(bus: Bus, key: str) -> None:
    await bus.bucket("leases").put(key, b"one")
    await bus.bucket("leases").delete(key)
    marker = await bus.tail("KV_leases", f"$KV.leases.{key}")
    assert marker is not None
    assert marker.headers["Nats-TTL"] == "60s"


@pytest.mark.parametrize("bucket", ["leases", "claims"])
async def test_a_key_with_a_ttl_expires_and_can_be_created_again(
    bus: Bus, key: str, bucket: str
) -> None:
    leases = bus.bucket(bucket)
    assert await leases.create(key, b"one", ttl_s=1)
    assert await leases.create(key, b"two", ttl_s=1) is None

    async def expired() -> int | None:
        return await leases.create(key, b"two", ttl_s=60)

    assert await eventually(expired, 30, "the key has expired")
    entry = await leases.get(key)
    assert entry is not None
    assert entry.value == b"two"


async def test_an_update_renews_the_ttl(bus: Bus, key: str) -> None:
    leases = bus.bucket("leases")
    revision = await leases.create(key, b"x", ttl_s=1)
    assert revision
    assert await leases.update(key, b"x", revision, ttl_s=60)
    other = f"{key}.witness"
    await leases.create(other, b"x", ttl_s=1)

    async def witness_expired() -> bool:
        return await leases.get(other) is None

    await eventually(witness_expired, 30, "a key of the same age has expired")
    assert await leases.get(key) is not None


@pytest.mark.parametrize(("ttl_s", "written"), [(0.2, "1s"), (2, "2s"), (2.4, "3s"), (2.5, "3s")])
async def test_a_ttl_is_never_shorter_than_asked_for(
    bus: Bus, key: str, ttl_s: float, written: str
) -> None:
    await bus.bucket("leases").create(key, b"x", ttl_s)
    stored = await bus.tail("KV_leases", f"$KV.leases.{key}")
    assert stored is not None
    assert stored.headers["Nats-TTL"] == written


@pytest.mark.parametrize("was", ["nothing", "deleted", "same value"])
async def test_one_of_many_wins_a_race_to_create(nats_server: NatsServer, was: str) -> None:
    async with connected(nats_server.url) as one, connected(nats_server.url) as two:
        buckets = [bus.bucket("claims") for bus in (one, two)] * 3
        for _ in range(15):
            key = f"test.{secrets.token_hex(8)}"
            if was == "deleted":
                await buckets[0].put(key, b"old")
                await buckets[0].delete(key)
            values = [b"same" if was == "same value" else b"%d" % n for n in range(6)]
            won = await asyncio.gather(
                *(bucket.create(key, value) for bucket, value in zip(buckets, values, strict=True))
            )
            [winner] = [n for n, revision in enumerate(won) if revision is not None]
            entry = await buckets[0].get(key)
            assert entry == Entry(key, values[winner], won[winner] or 0)


async def test_one_of_many_wins_a_race_to_update(nats_server: NatsServer, key: str) -> None:
    async with connected(nats_server.url) as one, connected(nats_server.url) as two:
        counters = [bus.bucket("claims") for bus in (one, two)]
        await counters[0].put(key, b"0")

        async def add(bucket: Bucket, times: int) -> None:
            for _ in range(times):
                while True:
                    entry = await bucket.get(key)
                    assert entry is not None
                    value = b"%d" % (int(entry.value) + 1)
                    if await bucket.update(key, value, entry.revision) is not None:
                        break

        await asyncio.gather(*(add(bucket, 20) for bucket in counters * 2))
        entry = await counters[0].get(key)
        assert entry is not None
        assert entry.value == b"80"


def lose_answers(bus: Bus, monkeypatch: pytest.MonkeyPatch, *, stored: bool) -> None:
    """Make the next publish fail with OutcomeUnknown; the message is stored if `stored` is set."""
    publish = bus.publisher.publish

    async def lost(message: Message) -> int:
        monkeypatch.setattr(bus.publisher, "publish", publish)
        if stored:
            await publish(message)
        raise OutcomeUnknown("lost by the test")

    monkeypatch.setattr(bus.publisher, "publish", lost)


async def test_a_write_whose_answer_was_lost_is_found(
    bus: Bus, claims: Bucket, key: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    lose_answers(bus, monkeypatch, stored=True)
    first = await claims.create(key, b"mine")
    assert await claims.get(key) == Entry(key, b"mine", first or 0)
    lose_answers(bus, monkeypatch, stored=True)
    assert await claims.update(key, b"mine", first or 0) == (await claims.put(key, b"")) - 1


async def test_a_write_over_a_marker_whose_answer_was_lost_is_found(
    bus: Bus, claims: Bucket, key: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    await claims.put(key, b"old")
    await claims.delete(key)
    publish = bus.publisher.publish
    tries = 0

    async def lose_the_second(message: Message) -> int:
        nonlocal tries
        tries += 1
        await publish(message)
        assert tries == 2, "only the write over the marker is stored"
        raise OutcomeUnknown("lost by the test")

    monkeypatch.setattr(bus.publisher, "publish", lose_the_second)
    assert await claims.create(key, b"mine")


async def test_the_same_value_of_somebody_else_is_not_taken_for_ours(
    bus: Bus, claims: Bucket, key: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    await claims.create(key, b"same")
    lose_answers(bus, monkeypatch, stored=False)
    with pytest.raises(OutcomeUnknown):
        await claims.create(key, b"same")


async def test_a_write_that_was_lost_stays_unknown(
    bus: Bus, claims: Bucket, key: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    lose_answers(bus, monkeypatch, stored=False)
    with pytest.raises(OutcomeUnknown):
        await claims.create(key, b"mine")
    assert await claims.create(key, b"mine")


async def test_entries_are_listed_in_the_order_of_writing(bus: Bus, key: str) -> None:
    bucket = bus.bucket("aliases")
    for name in "abcd":
        await bucket.put(f"{key}.{name}", name.encode())
    await bucket.put(f"{key}.a", b"again")
    await bucket.delete(f"{key}.c")
    await bucket.put(f"other.{key}", b"x")
    entries = await bucket.entries(f"{key}.>")
    assert [(e.key, e.value) for e in entries] == [
        (f"{key}.b", b"b"),
        (f"{key}.d", b"d"),
        (f"{key}.a", b"again"),
    ]
    assert await bucket.keys(f"{key}.*") == [f"{key}.b", f"{key}.d", f"{key}.a"]
    assert await bucket.keys(f"{key}.nothing") == []


async def test_more_keys_than_one_batch_are_listed(own_bus: Bus) -> None:
    bucket = own_bus.bucket("aliases")
    for first in range(0, 1200, 200):  # a slow server answers more puts at once too late
        await asyncio.gather(*(bucket.put(f"k.{n}", b"") for n in range(first, first + 200)))
    assert sorted(await bucket.keys()) == sorted(f"k.{n}" for n in range(1200))


async def test_values_live_on_over_kill_9(own_bus: Bus, fresh_nats: NatsServer) -> None:
    revision = await own_bus.bucket("sessions").put("k", b"v")
    await asyncio.to_thread(fresh_nats.kill)
    await asyncio.to_thread(fresh_nats.start)

    async def read() -> Entry | None:
        try:
            return await own_bus.bucket("sessions").get("k")
        except BusError:
            return None

    assert await eventually(read) == Entry("k", b"v", revision)


async def test_what_the_server_has_forgotten_to_expire_is_gone_all_the_same(
    bus: Bus, key: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After a kill -9, nats-server 2.15.1 may keep keys beyond their TTL.

    The test moves the tolerance `CLOCKS_S` instead of the clock.
    """
    leases = bus.bucket("leases")
    assert await leases.create(key, b"dead", 60)
    assert [entry.value for entry in await leases.entries(key)] == [b"dead"]
    monkeypatch.setattr(kv, "CLOCKS_S", -1000)
    assert await leases.get(key) is None
    assert await leases.entries(key) == []
    assert await leases.create(key, b"alive", 600)
    entry = await leases.get(key)
    assert entry is not None
    assert entry.value == b"alive"
