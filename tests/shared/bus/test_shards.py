"""The promises of the bus hold in every shard; one shard equals an installation without shards."""

from __future__ import annotations

import asyncio
import time
import uuid
from collections.abc import AsyncIterator

import pytest

from penstock.bus import (
    Bus,
    FenceConflict,
    Follow,
    Loss,
    Message,
    RawWriter,
    StartUpError,
    Stored,
    streams,
    subjects,
)
from penstock.bus.admin import migrate
from penstock.bus.admin.ensure import shards_of
from penstock.bus.admin.migrate import partitions, repartition, reshard
from penstock.bus.read import direct, follow
from penstock.bus.shards import ONE, Shards, new_run_id
from penstock.bus.state import recovery
from penstock.bus.state.continuity import ends_at, skip
from penstock.bus.state.losses import MARGIN
from penstock.bus.streams import Retention
from penstock.bus.write import fence
from support.drive.bus import connected, event, publish_events
from support.drive.waiting import eventually
from support.real.nats import NatsServer
from support.recorded.older_store import copied, put_back

FOUR = Retention(shards=4)


@pytest.fixture(params=[1, 2, 4])
async def sharded(request: pytest.FixtureRequest, fresh_nats: NatsServer) -> AsyncIterator[Bus]:
    """Connect to a new installation with this number of shards."""
    retention = Retention(shards=request.param)
    async with connected(fresh_nats.url, retention=retention, repairs=True) as bus:
        assert bus.shards == Shards(request.param, request.param)
        yield bus


async def has(found: list[Stored], count: int) -> None:
    """Wait until the list has this many messages."""
    await eventually(lambda: asyncio.sleep(0, len(found) >= count), 30, f"{count} messages")


def test_the_id_of_a_run_tells_its_shard_and_sorts_by_time() -> None:
    now_s = time.time()
    ids = [new_run_id(shard, now_s + shard / 100) for shard in (0, 1, 7, 63, 0)]
    assert [subjects.shard_of(run_id) for run_id in ids] == [0, 1, 7, 63, 0]
    assert [uuid.UUID(run_id).version for run_id in ids] == [7, 8, 8, 8, 7]
    assert all(uuid.UUID(run_id).variant == uuid.RFC_4122 for run_id in ids)
    assert all(map(subjects.is_run_id, ids))
    assert ids[:4] == sorted(ids[:4])
    assert len({new_run_id(5, now_s) for _ in range(1000)}) == 1000


def test_a_run_of_shard_0_is_on_the_subjects_and_streams_of_before() -> None:
    run_id = new_run_id(0, time.time())
    assert subjects.raw(run_id, "upstream") == f"raw.{run_id}.upstream"
    assert subjects.event_input("llm.stream", run_id) == f"llm.stream.{run_id}"
    assert (streams.raw_for(run_id), streams.events_for(run_id)) == ("RAW", "EVENTS")


async def test_each_run_is_in_its_own_shard_alone_and_under_the_same_subjects(
    sharded: Bus,
) -> None:
    bus, count = sharded, sharded.shards.made
    ids = [new_run_id(shard, time.time()) for shard in range(count)]
    for run_id in ids:
        await publish_events(bus, run_id, 1, 3)
        await (await RawWriter.resume(bus, run_id, "upstream", "c")).write("open", b"{}", leg=1)
    for shard in range(count):
        events = [stored async for stored in direct.replay(bus, streams.events_of(shard), ">")]
        assert [each.subject for each in events] == [f"llm.stream.{ids[shard]}"] * 3
        [frame] = [stored async for stored in direct.replay(bus, streams.raw_of(shard), ">")]
        partition = subjects.partition_of(ids[shard])
        assert frame.subject == f"rawp.{partition}.{ids[shard]}.upstream"
    listed = {each["config"]["name"] for each in (await bus.api("STREAM.LIST"))["streams"]}
    assert {name for name in listed if name[:3] in ("RAW", "EVE")} == {
        name(shard) for shard in range(count) for name in (streams.raw_of, streams.events_of)
    }


async def test_the_fence_of_a_run_holds_for_single_events_and_batches(sharded: Bus) -> None:
    run_id = new_run_id(sharded.shards.used - 1, time.time())
    pattern = subjects.events_of_run(run_id)
    first = await fence.append(sharded, pattern, [event(run_id, 1)], 0)
    with pytest.raises(FenceConflict):
        await fence.append(sharded, pattern, [event(run_id, 1)], 0)
    batch = [event(run_id, number, type=f"llm.{number}") for number in range(2, 40)]
    last = await fence.append(sharded, pattern, batch, first)
    with pytest.raises(FenceConflict):
        await fence.append(sharded, pattern, batch, first)
    assert last == first + len(batch)
    tail = await fence.tail(sharded, streams.events_for(run_id), pattern)
    assert tail is not None
    assert tail.sequence == last


async def test_of_writers_that_race_one_wins_each_frame(sharded: Bus) -> None:
    run_id = new_run_id(sharded.shards.used - 1, time.time())
    writers = [RawWriter(sharded, run_id, "upstream", f"pod/{n}") for n in range(3)]
    for _ in range(10):
        before = max(writer.last for writer in writers)
        for writer in writers:
            writer.last = before
        races = (writer.write("bytes", b"x", leg=1) for writer in writers)
        won = await asyncio.gather(*races, return_exceptions=True)
        assert sum(isinstance(each, int) for each in won) == 1
        assert sum(isinstance(each, FenceConflict) for each in won) == 2


async def test_a_follower_reads_each_event_of_its_run_once_and_continues_after_a_cursor(
    sharded: Bus,
) -> None:
    count = sharded.shards.made
    ids = [new_run_id(shard, time.time()) for shard in range(count) for _ in range(2)]
    got: dict[str, list[Stored]] = {run_id: [] for run_id in ids}
    for run_id in ids:
        await publish_events(sharded, run_id, 1, 5)
    follows = [Follow(sharded, follow.events(run_id), 1, got[run_id].extend) for run_id in ids]
    for each in follows:
        await each.start()
    await asyncio.gather(*(publish_events(sharded, run_id, 6, 30) for run_id in ids))
    for found in got.values():
        await has(found, 30)
    for run_id in ids:
        assert [int(stored.payload) for stored in got[run_id]] == list(range(1, 31))
        resumed: list[Stored] = []
        cursor = got[run_id][9].sequence
        again = Follow(sharded, follow.events(run_id), cursor + 1, resumed.extend)
        await again.start()
        await has(resumed, 20)
        assert [int(stored.payload) for stored in resumed] == list(range(11, 31))
        await again.stop()
    for each in follows:
        await each.stop()


async def test_a_shards_stream_that_lost_its_end_uses_no_sequence_twice(
    fresh_nats: NatsServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(recovery, "NOTE_S", 0.2)
    monkeypatch.setattr(recovery, "LEARN_S", 0.3)
    run_id = new_run_id(1, time.time())
    two = Retention(shards=2)
    async with (
        connected(fresh_nats.url, retention=two, repairs=True) as normalizer,
        connected(fresh_nats.url, retention=two) as edge,
    ):
        learned: list[Loss] = []
        edge.continuity.on_loss(learned.append)
        await publish_events(normalizer, run_id, 1, 5)
        kept = copied(fresh_nats, "EVENTS_1")
        await publish_events(normalizer, run_id, 6, 20)
        await asyncio.to_thread(put_back, fresh_nats, kept, "EVENTS_1")
        await eventually(lambda: asyncio.sleep(0, bool(learned)), 30, "the edge learns of it")
        next_one = await normalizer.publisher.publish(event(run_id, 6))
        [loss] = learned
        assert (loss.stream, loss.last_left, loss.last_known) == ("EVENTS_1", 5, 20)
        assert next_one > loss.skipped_to == 20 + MARGIN[streams.EVENTS]
        state = (await edge.api("STREAM.INFO.EVENTS_1"))["state"]
        assert state["messages"] == 6, "what filled it is deleted"
        assert (await edge.api("STREAM.INFO.EVENTS"))["state"]["last_seq"] == 0


async def test_sequences_of_raw_in_a_shard_can_be_made_unusable(fresh_nats: NatsServer) -> None:
    async with connected(fresh_nats.url, retention=Retention(shards=2)) as bus:
        assert await ends_at(bus, "RAW_1", 0)
        await skip(bus, "RAW_1", 1, 1500)
        state = (await bus.api("STREAM.INFO.RAW_1"))["state"]
        assert (state["messages"], state["last_seq"]) == (0, 1500)


async def test_one_shard_leaves_no_record_and_other_services_settings_change_nothing(
    fresh_nats: NatsServer,
) -> None:
    async with connected(fresh_nats.url) as bus:
        assert await bus.bucket("checkpoints").get("shards") is None
        async with connected(fresh_nats.url, retention=FOUR) as other:
            assert other.shards == ONE
        assert not await bus.has("RAW_1")


async def test_services_that_do_not_know_shards_do_not_start_beside_them(
    fresh_nats: NatsServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with connected(fresh_nats.url) as bus:
        with monkeypatch.context() as patch:
            patch.setattr(streams, "SCHEMA", 2)
            async with connected(fresh_nats.url):
                pass  # with one shard, older services still start
        await reshard(bus, 2, settle_s=0)
        with monkeypatch.context() as patch:
            patch.setattr(streams, "SCHEMA", 2)
            with pytest.raises(StartUpError, match="Upgrade this service"):
                async with connected(fresh_nats.url):
                    pass
        monkeypatch.setattr(streams, "SCHEMA", streams.SCHEMA + 1)
        async with connected(fresh_nats.url):
            found = (await bus.api("STREAM.INFO.EVENTS"))["config"]["metadata"]
            assert found[streams.OLDEST_KEY] == "3", "an upgrade keeps it"


async def test_a_lost_record_of_shards_is_written_again_at_the_next_start(
    fresh_nats: NatsServer,
) -> None:
    async with connected(fresh_nats.url) as bus:
        await reshard(bus, 3, settle_s=0)
        await bus.bucket("checkpoints").delete("shards")
        async with connected(fresh_nats.url) as service:
            assert service.shards == Shards(3, 1), "all are read; the operator says which are used"
        assert await reshard(bus, 3, settle_s=0) == Shards(3, 3)


async def test_new_shards_are_kept_as_long_as_shard_0_whatever_the_commands_settings(
    fresh_nats: NatsServer,
) -> None:
    kept = Retention(raw_max_age_s=600, events_max_age_s=1200, max_bytes=10_000_000)
    async with connected(fresh_nats.url, retention=kept):
        pass
    async with connected(fresh_nats.url) as bus:
        await reshard(bus, 2, settle_s=0)
        for kind in ("RAW", "EVENTS"):
            configs = [
                (await bus.api(f"STREAM.INFO.{name}"))["config"] for name in (kind, f"{kind}_1")
            ]
            old, new = [[found[field] for field in streams.RETENTION] for found in configs]
            assert old == new


async def test_more_shards_are_made_for_new_runs_and_all_services_learn_of_them(
    fresh_nats: NatsServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(recovery, "LEARN_S", 0.2)
    async with connected(fresh_nats.url) as bus, connected(fresh_nats.url) as service:
        await repartition(bus, 24)
        assert await reshard(bus, 4, settle_s=0) == Shards(4, 4)
        assert [await partitions(bus, shard) for shard in range(4)] == [24] * 4
        await eventually(
            lambda: asyncio.sleep(0, service.shards == Shards(4, 4)), 10, "the service learns"
        )
        await service.publisher.publish(
            Message(subjects.raw(new_run_id(3, time.time()), "upstream"), b"", {})
        )
        assert await reshard(bus, 2, settle_s=0) == Shards(4, 2)
        assert await bus.has("EVENTS_3"), "its runs go on"
        assert await reshard(bus, 1, settle_s=0) == Shards(4, 1)


@pytest.mark.parametrize("step", ["ensure_all", "at_least", "_record", "_all_read"])
async def test_a_migration_that_ended_in_the_middle_is_completed_by_the_next(
    fresh_nats: NatsServer, monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    class Killed(BaseException):
        pass

    async def killed(*given: object) -> None:
        raise Killed

    async with connected(fresh_nats.url) as bus:
        with monkeypatch.context() as patch:
            patch.setattr(migrate, step, killed)
            with pytest.raises(Killed):
                await reshard(bus, 3, settle_s=0)
        assert (await shards_of(bus)).used == 1, "no run is in a shard that nobody reads"
        async with connected(fresh_nats.url):
            pass  # services start in every such state
        assert await reshard(bus, 3, settle_s=0) == Shards(3, 3)
        for shard in range(3):
            assert await bus.has(streams.raw_of(shard))
            assert await bus.has(streams.events_of(shard))
