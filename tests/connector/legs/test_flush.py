"""An idle process writes frames at once, a busy one writes them together; none is lost."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest

from penstock.bus.budget import Budget
from penstock.busyness import Pace
from penstock_connector.legs.body import AT_ONCE_BYTES, LONGEST_S, Body, Flush
from penstock_connector.service import ConnectorService
from penstock_normalizer.service import NormalizerService
from support.drive.pipeline import Pipeline, pipeline, types
from support.drive.waiting import eventually
from support.fakes.busyness import busy
from support.fakes.misbehaving import Answer, Misbehaving, agents, cuts, plays, stalls
from support.fakes.raw import agno, agno_text
from support.real.nats import NatsServer

SERVICES = (NormalizerService, ConnectorService)
FOREVER_S = 3600.0


def flush(share: float) -> Flush:
    """Return the flush of a process that is busy for this share, after 2,000 pieces a second."""
    now_s = 100.0
    made = Flush(Pace(LONGEST_S, busy(share), lambda: now_s))
    for _ in range(2000):
        made.count()
    now_s += 1.0
    return made


class Timers:
    """The timers that a flush has set; they fire when the test says so."""

    def __init__(self) -> None:
        self.waiting: list[tuple[float, Callable[[], None]]] = []

    def set(self, after_s: float, call: Callable[[], None]) -> None:
        self.waiting.append((after_s, call))

    def fire(self) -> float:
        """Call the only timer's function; return the timer's seconds."""
        [(after_s, call)] = self.waiting
        self.waiting.clear()
        call()
        return after_s


@pytest.fixture
async def timers(monkeypatch: pytest.MonkeyPatch) -> Timers:
    made = Timers()
    monkeypatch.setattr(asyncio.get_running_loop(), "call_later", made.set)
    return made


@pytest.fixture
def endless(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make every flush wait until something other than time causes the write."""
    monkeypatch.setattr(Pace, "wait_s", FOREVER_S)


def budgeted(made: Flush) -> Body:
    return Body(1024 * 1024, Budget(1024 * 1024), made)


async def settle() -> None:
    for _ in range(3):
        await asyncio.sleep(0)


def test_an_idle_process_does_not_wait() -> None:
    made = flush(share=0.1)
    called: list[int] = []
    made.request(lambda: called.append(1))  # there is no event loop, so the flush cannot be delayed
    assert called == [1]


async def test_legs_of_a_busy_process_are_written_in_one_turn_of_the_loop(timers: Timers) -> None:
    made = flush(share=1.0)
    written: list[bytes] = []

    async def write(body: Body) -> None:
        _, chunk = await body.take()
        written.append(chunk)

    bodies = [budgeted(made) for _ in range(5)]
    writing = [asyncio.create_task(write(body)) for body in bodies]
    for n, body in enumerate(bodies):
        body.feed(b"%d" % n)
        await settle()
        body.feed(b" more")
    assert not written
    assert timers.fire() == LONGEST_S
    await settle()
    assert written == [b"%d more" % n for n in range(5)]
    await asyncio.gather(*writing)


async def test_bytes_that_came_while_a_write_was_under_way_have_a_flush_of_their_own(
    timers: Timers,
) -> None:
    made = flush(share=1.0)
    body = budgeted(made)
    for piece in (b"a", b"b"):
        body.feed(piece)
        taking = asyncio.create_task(body.take())
        await settle()
        assert not taking.done()
        assert timers.fire() == LONGEST_S
        assert (await taking)[1] == piece


@pytest.mark.usefixtures("endless")
@pytest.mark.parametrize("act", [Body.close, lambda body: body.feed(b"x" * AT_ONCE_BYTES)])
async def test_the_end_of_a_body_and_many_bytes_wait_for_nothing(
    act: Callable[[Body], None],
) -> None:
    body = budgeted(Flush())
    body.feed(b"a")
    taking = asyncio.create_task(body.take())
    await settle()
    assert not taking.done()
    act(body)
    async with asyncio.timeout(30):
        assert (await taking)[1].startswith(b"a")


async def bytes_frames(penstock: Pipeline, run_id: str) -> list[bytes]:
    return [frame.payload for frame in await penstock.raw(run_id) if frame.kind == "bytes"]


async def test_each_frame_of_a_quiet_run_is_a_source_frame(
    nats_server: NatsServer, upstream: Misbehaving
) -> None:
    sent = [agno("RunStarted"), *(agno("RunContent", content=f"{n}") for n in range(3))]
    last = agno("RunCompleted", content="done")
    penstock: Pipeline
    run_ids: list[str] = []

    async def one_by_one(answer: Answer) -> None:
        await answer.head()
        for n, frame in enumerate(sent, 1):
            await answer.send(frame)

            async def is_stored(n: int = n) -> bool:
                return len(await bytes_frames(penstock, run_ids[0])) == n

            await eventually(is_stored, what=f"frame {n} is stored before the next one comes")
        await answer.send(last)
        await answer.end()

    upstream.script(one_by_one)
    async with pipeline(nats_server.url, agents(upstream), SERVICES) as penstock:
        run_ids.append((command := await penstock.register("agno", "hello")).run_id)
        await penstock.command("start", command)
        await penstock.ended(run_ids[0])
        assert await bytes_frames(penstock, run_ids[0]) == [*sent, last]


@pytest.mark.usefixtures("endless")
async def test_frames_that_wait_are_joined_and_written_before_the_end(
    nats_server: NatsServer, upstream: Misbehaving
) -> None:
    body = agno_text(*"abcdefghij")

    async def in_pieces(answer: Answer) -> None:
        await answer.head()
        for at in range(0, len(body), 100):
            await answer.send(body[at : at + 100])
            await asyncio.sleep(0.005)
        await answer.end()

    upstream.script(in_pieces)
    async with pipeline(nats_server.url, agents(upstream), SERVICES) as penstock:
        run_id = await penstock.start_run("agno", "hello")
        events = await penstock.ended(run_id)
        assert await bytes_frames(penstock, run_id) == [body]
        assert [frame.kind for frame in await penstock.raw(run_id)] == ["open", "bytes", "end"]
    assert types(events)[-1] == "lifecycle.completed"


@pytest.mark.usefixtures("endless")
async def test_frames_that_wait_are_written_when_the_connection_breaks(
    nats_server: NatsServer, upstream: Misbehaving
) -> None:
    body = agno("RunStarted") + agno("RunContent", content="a")
    upstream.script(plays(body, cuts))
    async with pipeline(nats_server.url, agents(upstream), SERVICES) as penstock:
        run_id = await penstock.start_run("agno", "hello")
        await penstock.ended(run_id)
        assert await bytes_frames(penstock, run_id) == [body]
        assert (await penstock.raw(run_id))[-1].kind == "lost"


@pytest.mark.usefixtures("endless")
@pytest.mark.parametrize("how", ["cancelled", "stopped"])
async def test_frames_that_wait_are_written_when_the_run_or_the_connector_is_stopped(
    nats_server: NatsServer, upstream: Misbehaving, monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    body = agno("RunStarted") + agno("RunContent", content="a")
    fed: list[bytes] = []
    feed = Body.feed

    def watched(self: Body, chunk: bytes) -> None:
        feed(self, chunk)
        fed.append(chunk)

    monkeypatch.setattr(Body, "feed", watched)

    async def has_come() -> bool:
        return b"".join(fed) == body

    upstream.script(plays(body, stalls))
    configured = agents(upstream)
    async with pipeline(nats_server.url, configured, (NormalizerService,)) as penstock:
        async with pipeline(
            nats_server.url, configured, (ConnectorService,), drain_s=0.1, cancel_grace_s=0.1
        ):
            run_id = await penstock.start_run("adk" if how == "cancelled" else "agno", "hello")
            await eventually(has_come, what="the frames wait in the connector")
            assert await bytes_frames(penstock, run_id) == []
            if how == "cancelled":
                await penstock.cancel(run_id)
                await penstock.ended(run_id)
        await penstock.ended(run_id)
        assert await bytes_frames(penstock, run_id) == [body]
        assert (await penstock.raw(run_id))[-1].kind == ("end" if how == "cancelled" else "lost")
        await upstream.dropped()
