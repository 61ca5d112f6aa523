"""An index in memory equals its bucket: no key is missing, and no expired key is left."""

from __future__ import annotations

import asyncio
import secrets
import shutil
from collections.abc import Sequence

import pytest

from penstock.bus import Bus, BusError, BusUnavailable, Loss, Stored
from penstock.bus.connection.jetstream import HasJetStream
from penstock.bus.read.direct import read
from penstock.bus.state import bucket_index
from penstock.bus.state.bucket_index import BucketIndex, Change, StillReading
from penstock.bus.write.objects import wrap
from support.drive.bus import connected
from support.drive.waiting import eventually
from support.real.nats import NatsServer


class DictRows:
    """Keep the values themselves as rows."""

    def __init__(self) -> None:
        self.found: dict[str, tuple[bytes, int]] = {}

    def put(self, changes: Sequence[Change]) -> None:
        for change in changes:
            self.found.pop(change.key, None)
            if change.value is not None:
                self.found[change.key] = (change.value, change.sequence)

    def drop(self, key: str, sequence: int) -> None:
        if key in self.found and self.found[key][1] < sequence:
            del self.found[key]

    def forget_before(self, sequence: int, limit: int) -> bool:
        old = [key for key, (_, at) in self.found.items() if at < sequence][:limit]
        for key in old:
            del self.found[key]
        return len(old) == limit

    def clear(self) -> None:
        self.found.clear()

    async def has(self, keys: Sequence[str]) -> bool:
        """Return whether exactly these keys have rows."""
        return self.found.keys() == set(keys)

    @property
    def values(self) -> dict[str, bytes]:
        return {key: value for key, (value, _) in self.found.items()}


@pytest.fixture
def rows() -> DictRows:
    return DictRows()


@pytest.fixture
def index(bus: Bus, rows: DictRows) -> BucketIndex:
    return BucketIndex(bus, "rules", rows)


@pytest.fixture
def keys() -> list[str]:
    return [secrets.token_hex(8) for _ in range(5)]


async def test_the_rows_include_what_was_written_before_the_call(
    bus: Bus, index: BucketIndex, rows: DictRows, keys: list[str]
) -> None:
    bucket = bus.bucket("rules")
    await bucket.put(keys[0], b"old")
    await index.caught_up()
    assert rows.values[keys[0]] == b"old"
    await bucket.put(keys[0], b"new")
    await bucket.put(keys[1], b"second")
    await bucket.put(keys[2], b"gone")
    await bucket.delete(keys[2])
    await index.caught_up()
    mine = {key: rows.values[key] for key in keys if key in rows.values}
    assert mine == {keys[0]: b"new", keys[1]: b"second"}


async def test_a_bucket_is_read_in_batches(
    bus: Bus,
    index: BucketIndex,
    rows: DictRows,
    keys: list[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(bucket_index, "BATCH", 2)
    for key in keys:
        await bus.bucket("rules").put(key, b"x")
    await index.caught_up()
    assert set(keys) <= rows.values.keys()


async def test_keys_with_a_dot_have_no_row(
    bus: Bus, index: BucketIndex, rows: DictRows, keys: list[str]
) -> None:
    await bus.bucket("rules").put(f"outbox.{keys[0]}", b"x")
    await index.caught_up()
    assert f"outbox.{keys[0]}" not in rows.values


async def test_a_value_that_is_an_object_is_read(
    bus: Bus, index: BucketIndex, rows: DictRows, keys: list[str]
) -> None:
    large = secrets.token_bytes(600_000)
    await bus.bucket("rules").put(keys[0], await wrap(bus, f"test.{keys[0]}", large, ""))
    await index.caught_up()
    assert rows.values[keys[0]] == large


async def test_calls_at_the_same_time_share_one_read(
    index: BucketIndex, monkeypatch: pytest.MonkeyPatch
) -> None:
    await index.caught_up()
    reads = 0

    async def counted(
        bus: HasJetStream, stream: str, pattern: str, start: int, limit: int
    ) -> tuple[list[Stored], int]:
        nonlocal reads
        reads += 1
        return await read(bus, stream, pattern, start, limit)

    monkeypatch.setattr(bucket_index, "read", counted)
    await asyncio.gather(*(index.caught_up() for _ in range(50)))
    # The first call reads. All other calls came during this read, so they share one more read.
    assert reads <= 2


async def test_a_call_during_a_read_does_not_take_the_older_answer(
    bus: Bus,
    index: BucketIndex,
    rows: DictRows,
    keys: list[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    await index.caught_up()
    answered, go_on = asyncio.Event(), asyncio.Event()

    async def held(
        bus: HasJetStream, stream: str, pattern: str, start: int, limit: int
    ) -> tuple[list[Stored], int]:
        answer = await read(bus, stream, pattern, start, limit)
        answered.set()
        await go_on.wait()
        return answer

    monkeypatch.setattr(bucket_index, "read", held)
    first = asyncio.create_task(index.caught_up())
    await answered.wait()
    await bus.bucket("rules").put(keys[0], b"written during the read")
    second = asyncio.create_task(index.caught_up())
    await asyncio.sleep(0)
    go_on.set()
    await asyncio.gather(first, second)
    assert keys[0] in rows.values


async def test_a_call_does_not_wait_for_what_others_write_after_it(
    bus: Bus,
    index: BucketIndex,
    rows: DictRows,
    keys: list[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    await index.caught_up()
    bucket = bus.bucket("rules")
    for key in keys:
        await bucket.put(key, b"before the call")

    async def slower_than_writes(
        bus: HasJetStream, stream: str, pattern: str, start: int, limit: int
    ) -> tuple[list[Stored], int]:
        for _ in range(2 * limit):
            await bucket.put(secrets.token_hex(8), b"after the call")
        return await read(bus, stream, pattern, start, limit)

    monkeypatch.setattr(bucket_index, "LATER_BATCH", 2)
    monkeypatch.setattr(bucket_index, "read", slower_than_writes)
    async with asyncio.timeout(20):
        await index.caught_up()
    assert set(keys) <= rows.values.keys()


async def test_after_a_read_that_failed_the_next_call_reads_again(
    bus: Bus,
    index: BucketIndex,
    rows: DictRows,
    keys: list[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    await index.caught_up()
    await bus.bucket("rules").put(keys[0], b"x")

    async def fails(*_: object) -> tuple[list[Stored], int]:
        raise BusUnavailable("no")

    with monkeypatch.context() as patched:
        patched.setattr(bucket_index, "read", fails)
        asked = [index.caught_up() for _ in range(3)]
        assert {type(each) for each in await asyncio.gather(*asked, return_exceptions=True)} == {
            BusUnavailable
        }
    await index.caught_up()
    assert keys[0] in rows.values


async def test_a_long_first_read_is_logged_and_continues(
    bus: Bus,
    index: BucketIndex,
    rows: DictRows,
    keys: list[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for key in keys:
        await bus.bucket("rules").put(key, b"x")
    monkeypatch.setattr(bucket_index, "BATCH", 1)
    monkeypatch.setattr(bucket_index, "WAIT_S", 0.001)
    with pytest.raises(StillReading, match="has started"):
        await index.caught_up()
    begun = len(rows.values)
    monkeypatch.setattr(bucket_index, "WAIT_S", 10)
    await index.caught_up()
    assert set(keys) <= rows.values.keys()
    assert begun < len(rows.values)


async def test_the_row_of_a_value_that_went_without_a_marker_is_dropped_when_it_is_asked_for(
    bus: Bus, index: BucketIndex, rows: DictRows, keys: list[str]
) -> None:
    bucket = bus.bucket("rules")
    revisions = [await bucket.put(key, b"x") for key in keys]
    await index.caught_up()
    # The purge leaves no marker, like an expiry, or like a deletion whose marker was removed while
    # this process had no connection.
    await bus.api("STREAM.PURGE.KV_rules", {"filter": f"$KV.rules.{keys[0]}"})
    found = await index.values(keys)
    assert {key: entry.revision for key, entry in found.items()} == dict(
        zip(keys[1:], revisions[1:], strict=True)
    )
    assert keys[0] not in rows.values
    await bucket.put(keys[0], b"back")
    await index.caught_up()
    assert rows.values[keys[0]] == b"back"


async def test_a_replica_that_lags_behind_does_not_drop_a_row(
    bus: Bus,
    index: BucketIndex,
    rows: DictRows,
    keys: list[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    await bus.bucket("rules").put(keys[0], b"x")
    await index.caught_up()

    async def knows_nothing(keys: Sequence[str]) -> dict[str, object]:
        return {}

    monkeypatch.setattr(bus.bucket("rules"), "many", knows_nothing)
    assert (await index.values(keys[:1])).keys() == {keys[0]}
    assert keys[0] in rows.values


async def test_rows_of_values_that_have_aged_out_are_dropped(
    fresh_nats: NatsServer,
    rows: DictRows,
    keys: list[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(bucket_index, "TICK_S", 0.05)
    monkeypatch.setattr(bucket_index, "CHECK_S", 0.05)
    monkeypatch.setattr(bucket_index, "FORGOTTEN", 1)
    async with connected(fresh_nats.url) as bus:
        index = BucketIndex(bus, "rules", rows)
        following = asyncio.create_task(index.run())
        try:
            revisions = [await bus.bucket("rules").put(key, b"x") for key in keys]
            await eventually(lambda: rows.has(keys))
            await bus.api("STREAM.PURGE.KV_rules", {"seq": revisions[3]})
            await eventually(lambda: rows.has(keys[3:]))
        finally:
            following.cancel()


async def test_what_is_written_is_read_without_a_list(
    fresh_nats: NatsServer,
    rows: DictRows,
    keys: list[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(bucket_index, "TICK_S", 0.05)
    async with connected(fresh_nats.url) as bus:
        following = asyncio.create_task(BucketIndex(bus, "rules", rows).run())
        try:
            await bus.bucket("rules").put(keys[0], b"x")
            await eventually(lambda: rows.has(keys[:1]))
        finally:
            following.cancel()


async def test_after_nats_has_lost_messages_the_bucket_is_read_anew(
    bus: Bus, index: BucketIndex, rows: DictRows, keys: list[str]
) -> None:
    await bus.bucket("rules").put(keys[0], b"x")
    await index.caught_up()
    rows.found["lost"] = (b"a value that NATS no longer has", 1)
    index._on_loss(Loss("KV_runs", 1, 2, 2, ""))
    await index.caught_up()
    assert "lost" in rows.values
    index._on_loss(Loss("KV_rules", 1, 2, 2, ""))
    await index.caught_up()
    assert "lost" not in rows.values
    assert keys[0] in rows.values


async def test_a_stream_that_has_become_shorter_is_read_anew(
    fresh_nats: NatsServer, rows: DictRows, keys: list[str]
) -> None:
    async with connected(fresh_nats.url) as bus:
        index = BucketIndex(bus, "rules", rows)
        await bus.bucket("rules").put(keys[0], b"x")
        await index.caught_up()
        index._next = 100  # as after a power failure in which the stream has lost messages
        rows.found["lost"] = (b"", 99)
        await index._check_stream()
        await bus.bucket("rules").put(keys[1], b"x")
        await index.caught_up()
        assert rows.values.keys() == set(keys[:2])


async def test_after_a_reconnect_an_older_store_is_noticed_before_the_next_list(
    fresh_nats: NatsServer, rows: DictRows, keys: list[str]
) -> None:
    async with connected(fresh_nats.url) as bus:
        index = BucketIndex(bus, "tokens", rows)
        reconnected = asyncio.Event()
        bus.on_reconnect(reconnected.set)
        await bus.bucket("tokens").put(keys[0], b"kept")
        fresh_nats.stop()
        older = fresh_nats.store.with_name("older")
        shutil.copytree(fresh_nats.store, older)
        fresh_nats.start()
        await asyncio.wait_for(reconnected.wait(), 30)
        for key in keys[1:4]:
            await bus.bucket("tokens").put(key, b"lost")
        await index.caught_up()
        assert rows.values.keys() == set(keys[:4])
        reconnected.clear()
        fresh_nats.stop()
        shutil.rmtree(fresh_nats.store)
        shutil.copytree(older, fresh_nats.store)
        fresh_nats.start()
        await asyncio.wait_for(reconnected.wait(), 30)
        await bus.bucket("tokens").put(keys[4], b"new, at a sequence that was used before")
        await index.caught_up()
        assert rows.values.keys() == {keys[0], keys[4]}


async def test_without_a_connection_the_error_says_so(fresh_nats: NatsServer) -> None:
    async with connected(fresh_nats.url) as bus:
        index = BucketIndex(bus, "rules", DictRows())
        await index.caught_up()
        fresh_nats.stop()
        with pytest.raises(BusError):
            await index.caught_up()


async def test_an_index_has_rows_for_the_keys_that_it_asks_for(bus: Bus) -> None:
    rows = DictRows()
    name = secrets.token_hex(8)
    index = BucketIndex(bus, "rules", rows, lambda key: key.startswith(f"{name}."))
    for key in (name, f"{name}.1", f"{name}x.1"):
        await bus.bucket("rules").put(key, b"{}")
    await index.caught_up()
    assert set(rows.found) == {f"{name}.1"}
