"""Upstreams send more than the bus takes: the connector holds them back and loses nothing.

Other runs continue meanwhile.
"""

from __future__ import annotations

import asyncio
import tracemalloc
from collections.abc import AsyncIterator
from typing import Any

import pytest

from penstock.bus import RawWriter
from penstock.bus.budget import Budget
from penstock_connector.legs.body import Body, Flush
from penstock_connector.service import ConnectorService
from penstock_normalizer.service import NormalizerService
from support.drive.pipeline import Pipeline, pipeline
from support.drive.waiting import eventually
from support.fakes.misbehaving import Answer, Misbehaving, agents, misbehaving, plays
from support.fakes.raw import agno, agno_text
from support.real.nats import NatsServer

KIB = 1024
CHUNK_BYTES = 256_000  # what uvloop reads at once


@pytest.fixture
async def upstream() -> AsyncIterator[Misbehaving]:
    async with misbehaving() as server:
        yield server


def budget_of(penstock: Pipeline) -> Budget:
    [connector] = [each for each in penstock.services if isinstance(each, ConnectorService)]
    return connector._commands.runner._resources.budget


class Slow:
    """A bus that stores no bytes until the test opens it.

    The test needs this control, because a real flood may be slower than the test machine.
    """

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.open = asyncio.Event()
        self.spared: set[str] = set()  # runs whose bytes the bus stores anyway
        write = RawWriter.write

        async def waits(writer: RawWriter, kind: str, *rest: Any, **named: Any) -> int:
            if kind == "bytes" and writer.run_id not in self.spared:
                await self.open.wait()
            return await write(writer, kind, *rest, **named)

        monkeypatch.setattr(RawWriter, "write", waits)


def floods(bytes_in_all: int, done: list[int]) -> Any:
    frame = agno("RunContent", content="x" * 8 * KIB)

    async def script(answer: Answer) -> None:
        await answer.head()
        await answer.send(agno("RunStarted"))
        for _ in range(bytes_in_all // len(frame)):
            await answer.send(frame)
        await answer.send(agno("RunCompleted", content="all"))
        await answer.end()
        done.append(len(answer.sent))

    return script


async def test_one_leg_that_floods_cannot_starve_the_others(
    nats_server: NatsServer, upstream: Misbehaving, monkeypatch: pytest.MonkeyPatch
) -> None:
    slow, done = Slow(monkeypatch), list[int]()
    limit, flood = 512 * KIB, 16 * KIB * KIB
    upstream.script(floods(flood, done), plays(agno_text("Hello", " you")))
    services = (NormalizerService, ConnectorService)
    async with pipeline(
        nats_server.url, agents(upstream), services, max_total_buffered_bytes=limit
    ) as penstock:
        flooding = await penstock.start_run("agno", "flood")
        budget = budget_of(penstock)

        async def is_held_back() -> bool:
            before = budget.used_bytes
            await asyncio.sleep(0.1)
            return before > limit / 2 and before == budget.used_bytes

        await eventually(is_held_back, what="the upstream is not read any more")
        # The leg may hold at most half of the budget and one chunk, whatever its own limit is.
        assert budget.used_bytes <= limit / 2 + CHUNK_BYTES
        assert not done
        command = await penstock.register("agno", "beside")
        slow.spared.add(command.run_id)
        await penstock.command("start", command)
        *_, last = await penstock.ended(command.run_id)
        assert last.type == "lifecycle.completed"
        assert not done
        slow.open.set()
        events = await penstock.ended(flooding, timeout_s=30)
        body = await penstock.body(flooding)
    assert events[-1].type == "lifecycle.completed"
    assert len(body) == done[0]  # all bytes arrived
    assert budget.used_bytes == 0


async def test_many_legs_that_flood_stay_within_the_budget_and_all_end(
    nats_server: NatsServer, upstream: Misbehaving, monkeypatch: pytest.MonkeyPatch
) -> None:
    slow, done = Slow(monkeypatch), list[int]()
    limit, legs = 256 * KIB, 20
    upstream.script(floods(KIB * KIB, done))
    services = (NormalizerService, ConnectorService)
    peak = 0
    take = Budget.take

    def watched(budget: Budget, size_bytes: int) -> None:
        nonlocal peak
        take(budget, size_bytes)
        if budget.limit_bytes == limit:  # other connectors have budgets of their own
            peak = max(peak, budget.used_bytes)

    monkeypatch.setattr(Budget, "take", watched)
    async with pipeline(
        nats_server.url, agents(upstream), services, max_total_buffered_bytes=limit
    ) as penstock:
        runs = await asyncio.gather(*(penstock.start_run("agno", f"{n}") for n in range(legs)))
        await upstream.called(legs)
        slow.open.set()
        for run_id in runs:
            *_, last = await penstock.ended(run_id, timeout_s=40)
            assert last.type == "lifecycle.completed"
        budget = budget_of(penstock)
        await eventually(lambda: _is_empty(budget), what="all is given back")
    assert len(done) == legs
    # A leg that holds nothing may take one chunk even if the budget is used up.
    assert peak <= limit + legs * CHUNK_BYTES


async def _is_empty(budget: Budget) -> bool:
    return budget.used_bytes == 0


async def test_a_leg_gives_back_what_it_held_however_it_ends() -> None:
    budget = Budget(1000)
    body = Body(10, budget, Flush())
    body.feed(b"x" * 100)
    _, chunk = await body.take()
    assert len(chunk) == 100
    assert budget.used_bytes == 100  # the chunk counts until it is written
    assert not body.has_room
    body.drop()
    assert budget.used_bytes == 0
    body.close()
    await body.take()
    assert budget.used_bytes == 0


async def test_tiny_chunks_that_wait_take_what_they_count() -> None:
    budget, chunks = Budget(KIB * KIB), 100_000
    body = Body(KIB * KIB, budget, Flush())
    tracemalloc.start()
    try:
        for n in range(chunks):
            body.feed((n % 65536).to_bytes(2, "big"))  # a new object each time, as from a parser
        taken_bytes, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert budget.used_bytes > chunks
    assert taken_bytes < 2 * budget.used_bytes
    _, whole = await body.take()
    assert len(whole) == budget.used_bytes


async def test_legs_in_the_middle_of_large_frames_have_a_limit_together(
    nats_server: NatsServer, upstream: Misbehaving
) -> None:
    let_go = asyncio.Event()
    large = agno("RunContent", content="x" * 2 * KIB * KIB)

    async def half(answer: Answer) -> None:
        await answer.head()
        await answer.send(agno("RunStarted") + large[: len(large) // 2 + 512 * KIB])
        await let_go.wait()
        await answer.send(large[len(large) // 2 + 512 * KIB :])
        await answer.send(agno("RunCompleted", content="x"))
        await answer.end()

    upstream.script(half)
    limit, services = 4400 * KIB, (NormalizerService, ConnectorService)
    async with pipeline(
        nats_server.url, agents(upstream), services, max_total_frame_bytes=limit
    ) as penstock:
        [connector] = [each for each in penstock.services if isinstance(each, ConnectorService)]
        budget = connector._commands.runner._resources.frame_budget
        first = await penstock.start_run("agno", "1")

        async def is_held() -> bool:
            return budget.used_bytes > 1.4 * KIB * KIB

        await eventually(is_held)
        # The first leg uses half of the limit. The second leg asks for more than the other half.
        second = await penstock.start_run("agno", "2")
        *_, last = await penstock.ended(second)
        assert (last.type, last.data["code"]) == ("lifecycle.failed", "limit")
        assert "of all runs" in last.data["error"]
        small = await penstock.start_run("adk", "3")
        let_go.set()
        *_, last = await penstock.ended(first)
        assert last.type == "lifecycle.completed"
        await penstock.ended(small)
    assert budget.used_bytes == 0


async def test_a_flood_of_single_bytes_costs_few_writes(
    nats_server: NatsServer, upstream: Misbehaving
) -> None:
    whole = agno_text(*"abcdefghij")

    async def dribbles(answer: Answer) -> None:
        await answer.head()
        for at in range(len(whole)):
            answer.writer.write(b"1\r\n" + whole[at : at + 1] + b"\r\n")
        await answer.end()

    upstream.script(dribbles)
    async with pipeline(
        nats_server.url, agents(upstream), (NormalizerService, ConnectorService)
    ) as penstock:
        run_id = await penstock.start_run("agno", "hello")
        events = await penstock.ended(run_id)
        frames = [frame for frame in await penstock.raw(run_id) if frame.kind == "bytes"]
        assert await penstock.body(run_id) == whole
    assert events[-1].type == "lifecycle.completed"
    # Bytes that arrive during a write are joined and go into the next write.
    assert len(frames) < len(whole) / 10


async def test_comments_flood_and_are_kept_and_mean_nothing(
    nats_server: NatsServer, upstream: Misbehaving
) -> None:
    comments = b": keep-alive\n\n" * 20_000
    body = agno("RunStarted") + comments + agno("RunCompleted", content="x")
    upstream.script(plays(body))
    async with pipeline(
        nats_server.url, agents(upstream), (NormalizerService, ConnectorService)
    ) as penstock:
        run_id = await penstock.start_run("agno", "hello")
        events = await penstock.ended(run_id)
        assert await penstock.body(run_id) == body
    assert len(events) < 10
    assert events[-1].type == "lifecycle.completed"


async def test_starts_beyond_max_legs_wait_in_the_queue_and_all_run_in_turn(
    fresh_nats: NatsServer, upstream: Misbehaving
) -> None:
    open_now, most, let_go = 0, 0, asyncio.Event()

    async def holds(answer: Answer) -> None:
        nonlocal open_now, most
        open_now += 1
        most = max(most, open_now)
        await let_go.wait()
        open_now -= 1
        await answer.whole(agno_text("x"))

    upstream.script(holds)
    async with pipeline(
        fresh_nats.url, agents(upstream), (NormalizerService, ConnectorService), max_legs=10
    ) as penstock:
        runs = await asyncio.gather(*(penstock.start_run("agno", f"{n}") for n in range(60)))
        await upstream.called(10)
        state = (await penstock.bus.api("STREAM.INFO.COMMANDS"))["state"]
        assert state["messages"] >= 50  # the starts are not in this process
        let_go.set()
        for run_id in runs:
            *_, last = await penstock.ended(run_id, timeout_s=30)
            assert last.type == "lifecycle.completed"
    assert most <= 10
    assert len(upstream.calls) == 60
