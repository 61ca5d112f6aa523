"""A connector is killed, paused or stopped: another one continues, and the run has no gap."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import orjson
import pytest

from penstock.bus import Msg, RawWriter
from penstock.bus.messages import RawFrame
from penstock.bus.records.legs import Sent
from penstock.bus.subjects import handover
from penstock.settings import Config
from penstock_approvals.service import ApprovalsService
from penstock_connector.service import ConnectorService
from penstock_connector.succession.handover import AT_ONCE
from penstock_normalizer.service import NormalizerService
from support.drive.pipeline import Event, Pipeline, Services, new_run_id, pipeline, types
from support.drive.waiting import eventually
from support.fakes.misbehaving import Answer, Misbehaving, Request, Script, agents, plays, stalls
from support.fakes.raw import agno
from support.real.connectors import FAST, ConnectorProcess, connector_process
from support.real.nats import NatsServer
from support.real.upstreams import Upstream

WITHOUT_CONNECTOR: Services = (NormalizerService, ApprovalsService)
PEER: Services = (ConnectorService,)


def text(events: list[Event]) -> str:
    return "".join(event.data["content"] for event in events if event.type == "llm.stream")


def in_order(events: list[Event]) -> bool:
    return [event.sequence for event in events] == list(range(1, len(events) + 1))


def pods(frames: list[RawFrame]) -> list[str]:
    """Return the pods that wrote the frames, in the order of their first frames."""
    return list(dict.fromkeys(frame.connection.partition("/")[0] for frame in frames))


def config_of(server: Upstream) -> Config:
    common = {"protocol": "agno", "url": server.url}
    return Config.model_validate(
        {
            "agents": [
                {"id": "agent", "agent": "demo-agent", **common},
                {"id": "team", "agent": "demo-team", "kind": "team", **common},
            ]
        }
    )


@asynccontextmanager
async def one_connector(
    nats_server: NatsServer, config: Config, folder: Path, **settings: Any
) -> AsyncIterator[tuple[Pipeline, ConnectorProcess]]:
    async with (
        pipeline(nats_server.url, config, WITHOUT_CONNECTOR) as penstock,
        connector_process(penstock.bus, config, folder, **settings) as connector,
    ):
        yield penstock, connector


async def nobody_holds(penstock: Pipeline, run_id: str) -> None:
    """Wait until no leg record of the run exists."""

    async def probe() -> bool:
        return not await penstock.bus.bucket("claims").keys(f"active.*.{run_id}")

    await eventually(probe, what="that nobody holds the run")


# Agno 3: connectors reconnect to runs in the background.


@pytest.mark.real
@pytest.mark.parametrize("agent", ["agent", pytest.param("team", marks=pytest.mark.chaos)])
async def test_killed_in_the_middle_the_run_continues_without_gap_or_repeat(
    nats_server: NatsServer, agno_server: Upstream, tmp_path: Path, agent: str
) -> None:
    config = config_of(agno_server)
    async with one_connector(nats_server, config, tmp_path) as (penstock, connector):
        whole = await penstock.ended(await penstock.start_run(agent, "long"))
        run_id = await penstock.start_run(agent, "long")
        await penstock.events_until(run_id, "llm.stream")
        await connector.kill()
        async with pipeline(nats_server.url, config, PEER, **FAST):
            events = await penstock.ended(run_id)
            await nobody_holds(penstock, run_id)
        frames = await penstock.raw(run_id)
    assert types(events)[-1] == "lifecycle.completed"
    assert text(events) == text(whole)
    assert in_order(events)
    assert len(pods(frames)) == 2


@pytest.mark.real
async def test_killed_while_an_approved_tool_runs_it_has_run_once(
    nats_server: NatsServer, agno_server: Upstream, tmp_path: Path
) -> None:
    config, title = config_of(agno_server), new_run_id()
    async with one_connector(nats_server, config, tmp_path) as (penstock, connector):
        run_id = await penstock.start_run("agent", f"slowconfirm {title}")
        *_, paused = await penstock.events_until(run_id, "lifecycle.paused")
        approval_id = paused.data["approval_id"]
        await penstock.decide(approval_id)
        await penstock.events_until(run_id, "llm.tool_result")
        await connector.kill()
        async with pipeline(nats_server.url, config, PEER, **FAST):
            events = await penstock.ended(run_id)
            await nobody_holds(penstock, run_id)
        sent = await penstock.bus.bucket("sent").get(approval_id)
    assert types(events)[-1] == "lifecycle.completed"
    assert in_order(events)
    assert len([run for run in agno_server.tool_runs() if run["args"].get("title") == title]) == 1
    assert sent is not None
    assert Sent.model_validate_json(sent.value).state == "done"


@pytest.mark.real
async def test_a_resumed_connector_is_fenced_off_and_leaves_the_run(
    nats_server: NatsServer, agno_server: Upstream, tmp_path: Path
) -> None:
    config = config_of(agno_server)
    async with one_connector(nats_server, config, tmp_path) as (penstock, connector):
        run_id = await penstock.start_run("agent", "slowtool", session_id=new_run_id())
        await penstock.events_until(run_id, "llm.tool_call")
        connector.sleep()
        async with pipeline(nats_server.url, config, PEER, **FAST):

            async def taken_over() -> bool:
                return len(pods(await penstock.raw(run_id))) == 2

            await eventually(taken_over, what="that the peer has the run")
            connector.wake()
            events = await penstock.ended(run_id)
            await nobody_holds(penstock, run_id)
            # The connector works normally afterwards.
            assert await connector.stop() == 0
        frames = await penstock.raw(run_id)
    assert types(events)[-1] == "lifecycle.completed"
    assert in_order(events)
    assert pods(frames)[0] == connector.pod
    assert len(pods(frames)) == 2, "after the peer's first frame none of the other's"


@pytest.mark.real
async def test_a_cancel_while_a_run_changes_hands_is_carried_out(
    nats_server: NatsServer, agno_server: Upstream, tmp_path: Path
) -> None:
    config = config_of(agno_server)
    async with one_connector(nats_server, config, tmp_path) as (penstock, connector):
        run_id = await penstock.start_run("agent", "slow")
        await penstock.events_until(run_id, "llm.stream")
        await connector.kill()
        async with pipeline(nats_server.url, config, PEER, **FAST):
            await penstock.cancel(run_id)
            *_, last = await penstock.ended(run_id)
    assert last.type == "lifecycle.cancelled"


NUMBERED = agno("RunStarted", event_index=0) + agno("RunContent", content="x", event_index=1)


def goes_on_until_cancelled(upstream: Misbehaving, times: int) -> Script:
    """Return the script of a server that obeys the cancel number `times`."""

    async def script(answer: Answer) -> None:
        await answer.head()
        await answer.send(agno("RunContent", content="y", event_index=2))
        await eventually(lambda: are(cancels(upstream), times), what="a cancel at the upstream")
        await answer.send(agno("RunCancelled", reason="stop", event_index=3))
        await answer.end()

    return script


def cancels(upstream: Misbehaving) -> list[Request]:
    return [request for request in upstream.requests if request.path.endswith("/cancel")]


async def are(found: Sequence[Any], number: int) -> bool:
    return len(found) == number


async def test_a_cancel_outlives_the_connector_that_said_it_would_end_the_leg(
    nats_server: NatsServer, upstream: Misbehaving, tmp_path: Path
) -> None:
    """The connector is killed after its answer, and its cancel at the upstream is lost."""

    async def loses_the_first(answer: Answer) -> None:
        if not answer.request.path.endswith("/cancel"):
            await plays(NUMBERED, stalls)(answer)
        elif len(cancels(upstream)) == 1:
            await stalls(answer)
        else:
            await answer.whole(b"{}")

    upstream.script(loses_the_first)
    upstream.scripted = lambda request: request.path.endswith(("/runs", "/cancel"))
    upstream.comes_back = goes_on_until_cancelled(upstream, 2)
    config = agents(upstream)
    # The command is redelivered too late to matter. So the successor must itself see the cancel.
    slow = {"ack_wait_s": 60}
    async with one_connector(nats_server, config, tmp_path, **slow) as (penstock, connector):
        run_id = await penstock.start_run("agno", "hello")
        await penstock.events_until(run_id, "llm.stream")
        await penstock.cancel(run_id, by="ada")
        await eventually(lambda: are(cancels(upstream), 1), what="a cancel at the upstream")
        await connector.kill()
        async with pipeline(nats_server.url, config, PEER, **FAST, **slow):
            *_, last = await penstock.ended(run_id)
            await nobody_holds(penstock, run_id)
    assert last.type == "lifecycle.cancelled"
    assert len(cancels(upstream)) == 2


async def test_nobody_continues_with_a_run_whose_clients_were_told_that_it_is_cancelled(
    nats_server: NatsServer, upstream: Misbehaving, tmp_path: Path
) -> None:
    upstream.script(plays(NUMBERED, stalls))
    upstream.comes_back = goes_on_until_cancelled(upstream, 1)
    config = agents(upstream)
    async with one_connector(nats_server, config, tmp_path) as (penstock, connector):
        run_id = await penstock.start_run("agno", "hello")
        await penstock.events_until(run_id, "llm.stream")
        await connector.kill()
        # The edge writes this event if no connector ends the run in time.
        edge = await RawWriter.resume(penstock.bus, run_id, "edge", "cancel-1")
        told = {"reason": "user_stop", "by": "ada", "confirmed": False}
        cancelled = {"type": "lifecycle.cancelled", "data": told}
        await edge.write("event", orjson.dumps(cancelled), leg=1)
        events = await penstock.ended(run_id)

        async def is_recorded() -> bool:
            return (await penstock.record(run_id)).status == "cancelled"

        await eventually(is_recorded, what="the run's record")
        async with pipeline(nats_server.url, config, PEER, **FAST):
            await nobody_holds(penstock, run_id)
        assert await penstock.ended(run_id) == events
    assert len(cancels(upstream)) == 1


@pytest.mark.real
async def test_stopped_in_the_middle_the_run_is_handed_over_at_once(
    nats_server: NatsServer, agno_server: Upstream, tmp_path: Path
) -> None:
    config = config_of(agno_server)
    # The leases are so long that none expires during the test.
    slow: dict[str, Any] = {"pod_ttl_s": 60, "pod_renew_s": 10, "reap_s": 60, "drain_s": 30}
    async with one_connector(nats_server, config, tmp_path, **slow) as (penstock, connector):
        run_id = await penstock.start_run("agent", "slowtool")
        await penstock.events_until(run_id, "llm.tool_call")
        async with pipeline(nats_server.url, config, PEER, **slow | {"drain_s": 1}):
            code = await connector.stop()
            status = (await penstock.record(run_id)).status
            events = await penstock.ended(run_id)
            await nobody_holds(penstock, run_id)
        frames = await penstock.raw(run_id)
    assert (code, status) == (0, "running")
    assert types(events)[-1] == "lifecycle.completed"
    assert in_order(events)
    assert len(pods(frames)) == 2


@pytest.mark.parametrize("drain_s", [20, 0])
async def test_legs_that_end_while_others_are_handed_over_keep_nobody(
    nats_server: NatsServer, upstream: Misbehaving, tmp_path: Path, drain_s: int
) -> None:
    """There are more legs than are handed over at the same time, and no peer takes any."""
    go = asyncio.Event()
    completed = agno("RunCompleted", content="x", event_index=2)

    async def waits(answer: Answer) -> None:
        await answer.head()
        await answer.send(NUMBERED)
        await go.wait()
        await answer.send(completed)
        await answer.end()

    upstream.script(waits)
    upstream.comes_back = plays(completed) if drain_s else stalls
    offers: list[Msg] = []
    config = agents(upstream)
    async with one_connector(nats_server, config, tmp_path, drain_s=drain_s) as (
        penstock,
        connector,
    ):

        async def on_offer(msg: Msg) -> None:
            if msg.data == b"{}":
                await penstock.bus.client.publish(msg.reply, b"{}")
            else:
                offers.append(msg)

        peer = await penstock.bus.subscribe(handover(), on_offer)
        runs = {await penstock.start_run("agno", f"{n}") for n in range(AT_ONCE + 8)}
        for run_id in runs:
            await penstock.events_until(run_id, "llm.stream")
        stopping = asyncio.create_task(connector.stop())
        await eventually(lambda: are(offers, AT_ONCE), what="all that change hands at once")
        offered = {orjson.loads(offer.data)["run_id"] for offer in offers}
        go.set()
        for run_id in runs - offered:
            await nobody_holds(penstock, run_id)
        for offer in offers:
            await penstock.bus.client.publish(offer.reply, orjson.dumps({"taken": False}))
        assert await stopping == 0
        await peer.unsubscribe()
        lasts = {run_id: (await penstock.ended(run_id))[-1] for run_id in runs}
    assert {lasts[run_id].type for run_id in runs - offered} == {"lifecycle.completed"}
    ends = {lasts[run_id].data.get("code", "completed") for run_id in offered}
    assert ends == ({"completed"} if drain_s else {"upstream_lost"})


@pytest.mark.chaos
async def test_stopped_with_nobody_there_a_run_ends_within_the_grace(
    nats_server: NatsServer, upstream: Misbehaving, tmp_path: Path
) -> None:
    upstream.script(plays(NUMBERED, stalls))
    config = agents(upstream)
    async with one_connector(nats_server, config, tmp_path, drain_s=1) as (penstock, connector):
        run_id = await penstock.start_run("agno", "hello")
        await penstock.events_until(run_id, "llm.stream")
        code = await connector.stop()
        *_, last = await penstock.ended(run_id)
        await nobody_holds(penstock, run_id)
    assert code == 0
    assert last.data["code"] == "upstream_lost"
    assert "was stopped" in last.data["error"]


async def test_a_server_that_has_forgotten_events_ends_the_run_as_lost(
    nats_server: NatsServer, upstream: Misbehaving, tmp_path: Path
) -> None:
    async def from_its_tail(answer: Answer) -> None:
        later = agno("RunContent", content="z", event_index=9)
        await answer.whole(later + agno("RunCompleted", content="xyz", event_index=10))

    first = agno("RunStarted", event_index=0) + agno("RunContent", content="x", event_index=1)
    upstream.script(plays(first, stalls))
    upstream.comes_back = from_its_tail
    failed = await killed(nats_server, upstream, tmp_path, "llm.stream")
    assert failed.data["code"] == "upstream_lost"
    assert "forgotten the events 2 to 8" in failed.data["error"]


async def test_a_run_that_its_server_had_not_begun_to_tell_is_told_from_its_start(
    nats_server: NatsServer, upstream: Misbehaving, tmp_path: Path
) -> None:
    upstream.script(stalls)
    whole = agno("RunStarted", event_index=0) + agno("RunCompleted", content="x", event_index=1)
    upstream.comes_back = plays(whole)
    last = await killed(nats_server, upstream, tmp_path)
    assert last.type == "lifecycle.completed"
    [request] = upstream.returns
    assert "last_event_index" not in request.form
    assert len(upstream.calls) == 1


@pytest.mark.chaos
async def test_whether_a_server_has_begun_that_knows_no_such_run_is_not_known(
    nats_server: NatsServer, upstream: Misbehaving, tmp_path: Path
) -> None:
    unknown = b'event: error\ndata: {"event":"error","error":"Run x not found"}\n\n'
    upstream.script(stalls)
    upstream.comes_back = plays(unknown)
    failed = await killed(nats_server, upstream, tmp_path)
    assert failed.data["code"] == "outcome_unknown"
    assert len(upstream.calls) == 1


async def killed(
    nats_server: NatsServer, upstream: Misbehaving, folder: Path, until: str = "lifecycle.started"
) -> Event:
    """Return the last event of a run whose connector is killed after the event `until`."""
    config = agents(upstream)
    async with one_connector(nats_server, config, folder) as (penstock, connector):
        run_id = await penstock.start_run("agno", "hello")
        await upstream.called()
        await penstock.events_until(run_id, until)
        await connector.kill()
        async with pipeline(nats_server.url, config, PEER, **FAST):
            events = await penstock.ended(run_id)
            await nobody_holds(penstock, run_id)
    assert in_order(events)
    return events[-1]


async def test_a_start_that_waited_in_the_queue_is_begun_once_by_another_connector(
    nats_server: NatsServer, upstream: Misbehaving, tmp_path: Path
) -> None:
    go = asyncio.Event()

    async def waits(answer: Answer) -> None:
        await answer.head()
        await go.wait()
        await answer.send(agno("RunStarted") + agno("RunCompleted", content="x"))
        await answer.end()

    upstream.script(waits)
    config = agents(upstream)
    services = (*WITHOUT_CONNECTOR, *PEER)
    async with pipeline(nats_server.url, config, services, max_legs=1, **FAST) as penstock:
        first = await penstock.start_run("agno", "one", session_id="s-queue")
        await upstream.called()
        async with connector_process(penstock.bus, config, tmp_path) as connector:
            second = await penstock.start_run("agno", "two", session_id="s-queue")
            await penstock.events_until(second, "lifecycle.started")
            assert pods(await penstock.raw(second)) == [connector.pod]
            await connector.kill()

            async def taken_over() -> bool:
                return len(pods(await penstock.raw(second))) == 2

            await eventually(taken_over, what="that the peer has the run")
            assert len(upstream.calls) == 1, "it is not its turn"
            go.set()
            events = await penstock.ended(second)
            assert (await penstock.ended(first))[-1].type == "lifecycle.completed"
    assert events[-1].type == "lifecycle.completed"
    assert [call.form["run_id"] for call in upstream.calls] == [first, second]
