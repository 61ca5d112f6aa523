"""Behaviour of replicas only: other error codes of a conflict, reads that lag, and elections."""

from __future__ import annotations

import asyncio
import math
import secrets
import tempfile
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack, suppress
from functools import partial
from pathlib import Path

import pytest
from nats.errors import OutboundBufferLimitError

from penstock.bus import (
    Bus,
    FenceConflict,
    Follow,
    NotThereYet,
    OutcomeUnknown,
    RawWriter,
    Reader,
    Stored,
    streams,
    subjects,
)
from penstock.bus.read.follow import raw
from penstock.bus.write import fence
from support.drive.bus import connected, event, new_run_id
from support.drive.waiting import eventually
from support.real.nats import NatsServer
from support.real.nats_cluster import REPLICATED, cluster


@pytest.fixture(scope="module")
def servers() -> Iterator[list[NatsServer]]:
    with tempfile.TemporaryDirectory() as folder, cluster(Path(folder)) as servers:
        yield servers


@pytest.fixture
async def buses(servers: list[NatsServer]) -> AsyncIterator[list[Bus]]:
    """Connect one bus to each server."""
    async with AsyncExitStack() as stack:

        async def joined(url: str) -> Bus | None:
            """Connect; return None while the cluster elects.

            An earlier test may have killed the leader.
            """
            try:
                return await stack.enter_async_context(
                    connected(url, publish_timeout_s=2, retention=REPLICATED)
                )
            except NotThereYet:
                return None

        yield [
            await eventually(partial(joined, server.url), 30, "a leader of the cluster")
            for server in servers
        ]


async def test_of_writers_at_three_replicas_one_wins_and_the_others_get_a_conflict(
    buses: list[Bus],
) -> None:
    codes: set[str] = set()
    for _ in range(150):
        run_id = new_run_id()
        pattern = subjects.events_of_run(run_id)
        results = await asyncio.gather(
            *(fence.append(bus, pattern, [event(run_id, 1)], 0) for bus in buses),
            return_exceptions=True,
        )
        losers = [result for result in results if isinstance(result, FenceConflict)]
        assert len(losers) == 2, results
        codes |= {str(loser).rsplit(" ", 1)[-1] for loser in losers}
    # Both codes mean the same conflict to a writer.
    assert codes == {"10071)", "10164)"}


async def test_one_of_three_creates_a_key(buses: list[Bus]) -> None:
    for _ in range(50):
        key = f"test.{secrets.token_hex(8)}"
        won = await asyncio.gather(
            *(bus.bucket("claims").create(key, b"%d" % n) for n, bus in enumerate(buses))
        )
        [winner] = [n for n, revision in enumerate(won) if revision is not None]
        for bus in buses:  # the leader answers, whichever server a bus is connected to
            entry = await bus.bucket("claims").get(key)
            assert entry is not None
            assert entry.value == b"%d" % winner


async def test_of_several_urls_one_that_answers_is_enough(servers: list[NatsServer]) -> None:
    for urls in (f"nats://127.0.0.1:1,{servers[1].url}", f"{servers[1].url}, nats://127.0.0.1:1"):
        async with connected(urls, retention=REPLICATED) as bus:
            assert bus.is_ready


async def test_the_cluster_tells_of_its_other_servers(servers: list[NatsServer]) -> None:
    async with connected(servers[0].url, retention=REPLICATED) as bus:
        again = asyncio.Event()
        bus.on_reconnect(again.set)
        await bus.client.leave()
        await again.wait()
        assert bus.client.connected_url is not None
        assert bus.client.connected_url.port in (servers[1].port, servers[2].port)


async def test_a_server_that_hangs_is_left_whatever_it_has_not_taken(
    servers: list[NatsServer],
) -> None:
    """nats-py alone would wait until the server has read the unsent bytes."""
    async with connected(servers[2].url, retention=REPLICATED) as bus:
        again = asyncio.Event()
        bus.on_reconnect(again.set)
        bus.client.options["ping_interval"] = 0.2
        await asyncio.sleep(0)
        servers[2].pause()
        try:
            for _ in range(64):  # more bytes than the socket's buffers hold
                async with asyncio.timeout(30):
                    # raised after the connection is given up
                    with suppress(OutboundBufferLimitError):
                        await bus.client.publish("test.hung", b"x" * 512 * 1024)
            async with asyncio.timeout(30):
                await again.wait()
            assert bus.is_ready
            message = event(new_run_id(), 1)

            async def published() -> int | None:
                """Publish; return None while the cluster elects a leader.

                The server that hangs may have led the stream.
                """
                try:
                    return await bus.publisher.publish(message)
                except OutcomeUnknown:
                    return None

            await eventually(published, 40)
        finally:
            servers[2].go_on()


async def test_nothing_is_lost_or_repeated_when_the_leader_is_killed(
    servers: list[NatsServer], buses: list[Bus]
) -> None:
    run_id = new_run_id()
    info = await buses[0].api("STREAM.INFO.RAW")
    leader = int(info["cluster"]["leader"].removeprefix("n"))
    writing_bus, reading_bus = (bus for n, bus in enumerate(buses) if n != leader)
    writer = await RawWriter.resume(writing_bus, run_id, "upstream", "pod/1")
    followed: list[int] = []
    read: list[int] = []

    async def handle(stored: Stored) -> None:
        read.append(int(stored.payload))

    follow = Follow(
        reading_bus,
        raw(run_id, "upstream"),
        1,
        lambda batch: followed.extend(int(stored.payload) for stored in batch),
    )
    await follow.start()
    pattern = subjects.raw_of_run(run_id)
    reading = asyncio.create_task(Reader(reading_bus, streams.RAW, pattern, 1, handle).run())

    async def write(first: int, last: int) -> None:
        for number in range(first, last + 1):
            await writer.write("bytes", b"%d" % number, leg=1)

    writing = asyncio.create_task(write(1, 300))

    async def under_way() -> bool:
        return len(followed) > 50

    async def all_there() -> bool:
        return len(followed) >= 300 and len(read) >= 300

    async def the_loss_is_known() -> bool:
        return writing_bus.since_node_lost_s < 60 and reading_bus.since_node_lost_s < 60

    await eventually(under_way)
    assert writing_bus.since_node_lost_s == reading_bus.since_node_lost_s == math.inf
    await asyncio.to_thread(servers[leader].kill)
    await eventually(the_loss_is_known, what="the services know that a server is lost")
    await writing
    await eventually(all_there, 30, "all frames")
    assert followed == read == [*range(1, 301)]
    reading.cancel()
    await asyncio.wait([reading])
    await follow.stop()
