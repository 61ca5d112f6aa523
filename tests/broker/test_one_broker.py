"""One broker that goes away, fills up, loses its data, and refuses operations to services."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import AsyncIterator
from dataclasses import dataclass, field

import pytest
import pytest_asyncio

from penstock.bus import Message
from penstock.bus.admin.configuration import declared
from penstock.bus.streams import Retention
from support.drive.figures import report
from support.drive.one_broker import OneBroker, one_broker, permissions
from support.fakes.misbehaving import Answer
from support.fakes.raw import agno
from support.real.deployment import Deployment, Event

pytestmark = [pytest.mark.asyncio(loop_scope="module"), pytest.mark.timeout(240)]

FRAMES = 80
POD_TTL_S = 4.0
LATER_S = 0.5  # the delay after which the second connector reconnects
FLOOD_FRAMES, FLOOD_FRAME_BYTES = 400, 50_000  # 20 MB, which is more than the sockets hold


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def broker(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[OneBroker]:
    settings = {
        "pod_ttl_s": POD_TTL_S,
        "pod_renew_s": 0.5,
        "reap_s": 0.5,
        "keep_alive_s": 1,
        "max_buffered_bytes": 256 * 1024,
    }
    async with one_broker(tmp_path_factory.mktemp("broker"), FRAMES, **settings) as made:
        yield made


@dataclass
class Listener:
    """A client that records when it receives keep-alives of the stream."""

    opened: asyncio.Event = field(default_factory=asyncio.Event)
    heard: list[float] = field(default_factory=list)

    async def listen(self, penstock: Deployment, run_id: str) -> None:
        url = f"{penstock.edge()}/v1/runs/{run_id}/events"
        async with penstock.http.stream("GET", url) as answer:
            async for line in answer.aiter_lines():
                self.opened.set()
                if line.startswith(":"):
                    self.heard.append(asyncio.get_running_loop().time())


async def whole(penstock: Deployment, run_id: str) -> list[Event]:
    return [event async for event in penstock.events(run_id)]


@pytest.mark.parametrize("away_s", [6, pytest.param(60, marks=pytest.mark.chaos)])
async def test_a_broker_that_is_away_holds_everything_back_and_ends_nothing(
    broker: OneBroker, away_s: float
) -> None:
    """The broker is away for longer than a connector's lease.

    When the broker is back, all other connectors seem to have ended for the first one that
    reconnects.
    """
    sent = 0
    gone = asyncio.Event()

    async def flood(answer: Answer) -> None:
        nonlocal sent
        await answer.head()
        await answer.send(agno("RunStarted"))
        await gone.wait()
        for number in range(FLOOD_FRAMES):
            text = f"{number:06d}".ljust(FLOOD_FRAME_BYTES, "x")
            await answer.send(agno("RunContent", content=text))
            sent = number + 1
        await answer.send(agno("RunCompleted", content="done"))
        await answer.end()

    broker.flood.script(flood)
    flooded = await broker.penstock.run("flood", "go")
    following = asyncio.create_task(whole(broker.penstock, flooded))
    watches = await broker.started(6)
    await broker.flood.called()
    listener = Listener()
    listening = asyncio.create_task(listener.listen(broker.penstock, watches.of[0].run_id))
    await listener.opened.wait()
    loop = asyncio.get_running_loop()

    broker.gate.cut()
    await asyncio.to_thread(broker.nats.kill)
    gone.set()
    before = loop.time()
    await broker.none_is_ready("is away")
    status, said = await broker.start()
    await asyncio.sleep(away_s - (loop.time() - before))
    held_at = sent
    await asyncio.to_thread(broker.nats.start)
    after = loop.time()
    await asyncio.sleep(LATER_S)
    broker.gate.open()

    stall_s = await watches.end(FRAMES)
    await listening
    events = await following
    assert status == 503
    assert "NATS" in said
    assert held_at < FLOOD_FRAMES, "the upstream was read on, though nothing could be stored"
    texts = [str(event.data["content"])[:6] for event in events if event.type == "llm.stream"]
    assert texts == [f"{number:06d}" for number in range(FLOOD_FRAMES)]
    assert events[-1].type == "lifecycle.completed"
    assert len([at for at in listener.heard if before + 1 < at < after]) >= away_s - 3
    broker.none_has_ended()
    await broker.are_ready()
    report(f"broker away for {away_s} s", stall_s=stall_s, upstream_ahead_mb=held_at * 0.05)


async def test_full_storage_holds_runs_until_there_is_room(broker: OneBroker) -> None:
    (edge,) = broker.penstock.of("edge")
    async with broker.operator() as operator, broker.ballast(operator):
        watches = await broker.started()
        await broker.fill(operator)
        connector = await broker.connector_not_ready("RAW takes no more messages")
        status, said = await broker.start()
        assert status == 503
        assert "insufficient resources" in said
        await broker.is_not_ready(edge, "takes no more messages")
        assert await broker.refusals(connector, "full") >= 1
        assert "max_file_store" in connector.process.log.read_text()
    report("storage full and freed", stall_s=await watches.end(FRAMES))


async def test_a_stream_at_its_limit_refuses_starts_clearly(broker: OneBroker) -> None:
    (edge,) = broker.penstock.of("edge")
    async with broker.operator() as operator:
        await broker.edit(operator, "COMMANDS", max_msgs=1)
        await operator.publisher.publish(Message("command.nobody.start.x", b"", {}))
        status, said = await broker.start()
        assert status == 503
        assert "maximum messages exceeded" in said
        assert "queued" not in await broker.statuses(), "a run is listed that was never begun"
        await broker.is_not_ready(edge, "COMMANDS takes no more messages")
        await broker.edit(operator, "COMMANDS", max_msgs=-1)
        await operator.api("STREAM.PURGE.COMMANDS")
    await (await broker.started(1)).end(FRAMES)


async def test_a_connector_that_may_not_publish_says_so_and_continues_when_it_may(
    broker: OneBroker,
) -> None:
    watches = await broker.started()
    broker.nats.reload(permissions(publish="raw.>"))
    connector = await broker.connector_not_ready("NATS does not let this user publish to RAW")
    assert await broker.refusals(connector, "denied") >= 1
    assert "Allow it in the permissions of the user" in connector.process.log.read_text()
    broker.nats.reload(permissions())
    report("publishing denied and allowed", stall_s=await watches.end(FRAMES))


async def test_a_start_that_nats_does_not_permit_is_refused_at_once(broker: OneBroker) -> None:
    (edge,) = broker.penstock.of("edge")
    broker.nats.reload(permissions(publish="command.>"))

    async def refused() -> tuple[int, str]:
        return await broker.start()

    status, said = await refused()
    if status == 202:  # the server has not reloaded its configuration yet
        status, said = await refused()
    assert status == 503
    assert "does not let this user publish to command.connector.start" in said
    await broker.is_not_ready(edge, "publish to COMMANDS")
    broker.nats.reload(permissions())
    await (await broker.started(1)).end(FRAMES)


@pytest.mark.chaos
async def test_a_subscription_that_is_refused_is_said_and_tried_again(broker: OneBroker) -> None:
    (edge,) = broker.penstock.of("edge")
    broker.nats.reload(permissions(subscribe="live.>"))
    watches = await broker.started(1)
    await broker.is_not_ready(edge, "NATS does not let this user subscribe to live")
    broker.nats.reload(permissions())
    await watches.end(FRAMES)
    await broker.works()


ALL = declared(Retention())  # all streams and buckets


async def test_lost_data_are_reported_and_waited_for(broker: OneBroker) -> None:
    watches = await broker.started()
    await asyncio.to_thread(broker.nats.kill)
    kept = broker.nats.store.with_name("kept")
    broker.nats.store.rename(kept)
    await asyncio.to_thread(broker.nats.start)
    await broker.none_is_ready(
        f"NATS has lost the streams ADVISORIES, AUDIT, COMMANDS and {len(ALL) - 3} others"
    )
    assert (await broker.start())[0] == 503
    async with broker.operator() as operator:
        assert (await operator.api("STREAM.NAMES"))["streams"] is None
    await asyncio.to_thread(broker.nats.stop)
    shutil.rmtree(broker.nats.store)
    kept.rename(broker.nats.store)
    await asyncio.to_thread(broker.nats.start)
    report("data lost and put back", stall_s=await watches.end(FRAMES))
    broker.none_has_ended()
    await broker.are_ready()


@pytest.mark.chaos
async def test_a_service_that_knows_only_lost_data_asks_for_a_restart(
    broker: OneBroker,
) -> None:
    """This test must be the last one, because it deletes all data."""
    await asyncio.to_thread(broker.nats.kill)
    broker.nats.wipe()
    await asyncio.to_thread(broker.nats.start)
    await broker.none_is_ready("NATS has lost")
    first, *others = tuple(broker.penstock.instances)
    await broker.penstock.kill(first)
    await broker.penstock.start(first.service)
    for other in others:
        await broker.is_not_ready(other, "Restart it")
        await broker.penstock.kill(other)
        await broker.penstock.start(other.service)
    await broker.works()
