"""Claims: one connector at a time holds a run, the upstream is called once, and the run ends."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import orjson
import pytest

from penstock.bus import Bucket, FenceConflict, Lease, RawWriter
from penstock.bus.messages import RawFrame
from penstock.bus.records.legs import Claim
from penstock.settings import Config
from penstock_connector.service import ConnectorService
from penstock_connector.state.claims import Claims, Sendings
from penstock_connector.state.connectors import Connectors
from penstock_normalizer.service import NormalizerService
from support.drive.bus import connected, new_run_id
from support.drive.pipeline import PIPELINE, Pipeline, Services, pipeline, types
from support.drive.waiting import eventually
from support.fakes.clocks import server_steps
from support.fakes.misbehaving import Answer, Misbehaving, agents, plays, stalls
from support.fakes.raw import agno, agno_text
from support.real.connectors import DEAD, FAST, claimed_by_the_dead, connector_process
from support.real.nats import NatsServer

TWO: Services = (*PIPELINE, ConnectorService)
WITHOUT_CONNECTOR = (NormalizerService,)
STARTED = agno("RunStarted")


def ends(frames: list[RawFrame]) -> list[str]:
    return [frame.kind for frame in frames if frame.kind in ("end", "lost", "event")]


async def test_nobody_counts_as_dead_whose_lease_ran_out_when_nats_clock_was_set(
    nats_server: NatsServer,
) -> None:
    async with connected(nats_server.url) as bus:
        lease = Lease(bus, "pod.connector-a", "connector-a", 60)
        await lease.acquire()
        lease._steady_since -= 60
        connectors = Connectors(bus, "connector-a", lambda: lease.sees_others)
        assert not await connectors.is_alive("connector-b")
        assert connectors.sees_others()
        for judge in (connectors.alive_pods(), connectors.is_alive("connector-b")):
            bus.clock._jumped_at_s = float("-inf")
            server_steps(bus.clock, 75)
            assert await judge
            assert not connectors.sees_others()
        assert await connectors.is_alive("connector-b")
        await lease.release()


@pytest.mark.parametrize("bucket", ["claims", "sent"])
async def test_a_counted_run_whose_record_is_gone_refuses_no_start(
    nats_server: NatsServer, monkeypatch: pytest.MonkeyPatch, bucket: str
) -> None:
    """A refused claim means that another claim exists. A claim that expired since then is none."""
    async with pipeline(nats_server.url, Config(), ()) as penstock:
        bus = penstock.bus

        def claims_of(pod: str) -> Claims | Sendings:
            return (
                Sendings(bus, pod) if bucket == "sent" else Claims(bus, pod, Connectors(bus, pod))
            )

        mine, theirs = claims_of("connector-a"), claims_of("connector-b")
        assert await theirs.claim("r") is None
        create = Bucket.create

        async def ages_meanwhile(self: Bucket, key: str, *rest: Any) -> int | None:
            monkeypatch.undo()
            try:
                return await create(self, key, *rest)
            finally:
                await self.delete(key)

        monkeypatch.setattr(Bucket, "create", ages_meanwhile)
        assert await mine.claim("r") is None
        earlier = await theirs.claim("r")
        assert earlier is not None, "it is ours, and not nobody's"
        assert (earlier if isinstance(earlier, Claim) else earlier.sent).pod == "connector-a"


async def test_a_claim_is_taken_over_when_its_holders_lease_has_ended_and_not_before(
    nats_server: NatsServer,
) -> None:
    async with pipeline(nats_server.url, Config(), ()) as penstock:
        bus = penstock.bus
        mine, theirs = (
            Claims(bus, pod, Connectors(bus, pod)) for pod in ("connector-c", "connector-d")
        )
        lease = Lease(bus, "pod.connector-d", "connector-d", 60)
        await lease.acquire()
        run_id = new_run_id()
        assert await theirs.claim(run_id) is None
        assert not await mine.take_over(run_id)
        await lease.release()
        assert await mine.take_over(run_id)
        claim = await theirs.claim(run_id)
        assert claim is not None
        assert claim.pod == "connector-c"


async def test_a_start_that_is_delivered_again_calls_the_upstream_once(
    nats_server: NatsServer, upstream: Misbehaving
) -> None:
    upstream.script(plays(agno_text("x")))
    async with pipeline(nats_server.url, agents(upstream), TWO) as penstock:
        command = await penstock.register("agno", "hello")
        for _ in range(4):
            await penstock.command("start", command)
        *_, last = await penstock.ended(command.run_id)
        await penstock.command("start", command)
        after = await penstock.start_run("agno", "another")
        await penstock.ended(after)
        frames = await penstock.raw(command.run_id)
    assert last.type == "lifecycle.completed"
    assert [call.form["run_id"] for call in upstream.calls] == [command.run_id, after]
    assert [frame.kind for frame in frames] == ["open", "bytes", "end"]


async def test_two_connectors_divide_runs_and_start_each_once(
    nats_server: NatsServer, upstream: Misbehaving
) -> None:
    upstream.script(plays(agno_text("x")))
    async with pipeline(nats_server.url, agents(upstream), TWO) as penstock:
        run_ids = [await penstock.start_run("agno", "hello") for _ in range(20)]
        lasts = [(await penstock.ended(run_id))[-1].type for run_id in run_ids]
        holders = {(await penstock.raw(run_id))[0].connection.split("/")[0] for run_id in run_ids}
    assert lasts == ["lifecycle.completed"] * 20
    assert sorted(call.form["run_id"] for call in upstream.calls) == sorted(run_ids)
    assert len(holders) == 2


async def test_a_run_whose_connector_died_before_it_opened_is_started_by_another(
    nats_server: NatsServer, upstream: Misbehaving
) -> None:
    began = asyncio.Event()

    async def takes_a_while(answer: Answer) -> None:
        await answer.head()
        await answer.send(STARTED)
        await began.wait()
        await answer.send(agno("RunCompleted", content="x"))
        await answer.end()

    upstream.script(takes_a_while)
    async with pipeline(nats_server.url, agents(upstream), **FAST) as penstock:
        command = await penstock.register("agno", "hello")
        await claimed_by_the_dead(penstock.bus, command.run_id)
        await penstock.command("start", command)
        await upstream.called()
        # The records of the ended connector must not end the leg of its successor.
        await eventually(lambda: _swept(penstock), what="a look for dead connectors")
        began.set()
        events = await penstock.ended(command.run_id)
        frames = await penstock.raw(command.run_id)
    assert events[-1].type == "lifecycle.completed"
    assert ends(frames) == ["end"]
    assert len(upstream.calls) == 1


async def _swept(penstock: Pipeline) -> bool:
    return await penstock.bus.bucket("claims").keys(f"active.{DEAD}.>") == []


async def test_a_claim_that_was_not_opened_is_waited_for_until_its_connector_is_dead(
    nats_server: NatsServer, upstream: Misbehaving
) -> None:
    upstream.script(plays(agno_text("x")))
    other = "connector-other-1-abcdef"
    async with pipeline(nats_server.url, agents(upstream), **FAST) as penstock:
        assert await Lease(penstock.bus, f"pod.{other}", other, 1).acquire()
        command = await penstock.register("agno", "hello")
        claims = penstock.bus.bucket("claims")
        await claims.create(f"claim.{command.run_id}", Claim(pod=other).dump())
        await penstock.command("start", command)
        *_, last = await penstock.ended(command.run_id)
    assert last.type == "lifecycle.completed"
    assert len(upstream.calls) == 1


async def test_killed_before_the_upstream_answers_the_outcome_is_unknown(
    nats_server: NatsServer, upstream: Misbehaving, tmp_path: Path
) -> None:
    upstream.script(stalls)
    await killed(nats_server, upstream, tmp_path, "outcome_unknown")


async def test_killed_in_the_middle_the_upstream_is_lost(
    nats_server: NatsServer, upstream: Misbehaving, tmp_path: Path
) -> None:
    upstream.script(plays(STARTED + agno("RunContent", content="so far"), stalls))
    await killed(nats_server, upstream, tmp_path, "upstream_lost")


async def killed(nats_server: NatsServer, upstream: Misbehaving, folder: Path, code: str) -> None:
    config = agents(upstream)
    async with pipeline(nats_server.url, config, WITHOUT_CONNECTOR) as penstock:
        async with connector_process(penstock.bus, config, folder) as connector:
            run_id = await penstock.start_run("agno", "hello", session_id="s-killed")
            await upstream.called()
            if code == "upstream_lost":
                await penstock.events_until(run_id, "llm.stream")
            await connector.kill()
        # The next run of the session must not wait for the ended connector.
        upstream.script(plays(agno_text("x")))
        async with pipeline(nats_server.url, config, (ConnectorService,), **FAST):
            following = await penstock.start_run("agno", "next", session_id="s-killed")
            events = await penstock.ended(run_id)
            *_, last = await penstock.ended(following)
        frames = await penstock.raw(run_id)
    assert events[-1].type == "lifecycle.failed"
    assert events[-1].data["code"] == code
    assert ends(frames) == ["lost"]
    assert [call.form["run_id"] for call in upstream.calls] == [run_id, following]
    assert last.type == "lifecycle.completed"


async def test_a_leg_that_another_has_ended_stops_and_closes_its_connection(
    nats_server: NatsServer, upstream: Misbehaving
) -> None:
    async def goes_on(answer: Answer) -> None:
        await answer.head()
        await answer.send(STARTED)
        while True:
            await answer.send(agno("RunContent", content="x"))
            await asyncio.sleep(0.01)

    upstream.script(goes_on)
    async with pipeline(nats_server.url, agents(upstream)) as penstock:
        run_id = await penstock.start_run("agno", "hello")
        await penstock.events_until(run_id, "llm.stream")
        lost = orjson.dumps({"code": "upstream_lost", "error": "I thought that it was dead"})
        while True:
            other = await RawWriter.resume(penstock.bus, run_id, "upstream", "other/1")
            try:
                await other.write("lost", lost, leg=1)
                break
            except FenceConflict:
                continue
        await upstream.dropped()
        events = await penstock.ended(run_id)
        frames = await penstock.raw(run_id)
    assert frames[-1].kind == "lost"
    assert events[-1].data["error"] == "I thought that it was dead"


async def test_a_connector_that_is_stopped_says_that_its_legs_are_lost(
    nats_server: NatsServer, upstream: Misbehaving
) -> None:
    upstream.script(plays(STARTED, stalls))
    config = agents(upstream)
    async with pipeline(nats_server.url, config, WITHOUT_CONNECTOR) as penstock:
        async with pipeline(nats_server.url, config, (ConnectorService,), drain_s=0.1):
            run_id = await penstock.start_run("agno", "hello")
            await upstream.called()
        events = await penstock.ended(run_id)
        frames = await penstock.raw(run_id)
        leftover = await penstock.bus.bucket("claims").keys("active.>")
    assert types(events)[-1] == "lifecycle.failed"
    assert events[-1].data["code"] == "upstream_lost"
    assert ends(frames) == ["lost"]
    assert not [key for key in leftover if run_id in key]


async def test_a_connector_that_is_stopped_lets_its_legs_end(
    nats_server: NatsServer, upstream: Misbehaving
) -> None:
    go = asyncio.Event()

    async def waits(answer: Answer) -> None:
        await answer.head()
        await answer.send(STARTED)
        await go.wait()
        await answer.send(agno("RunCompleted", content="x"))
        await answer.end()

    upstream.script(waits)
    config = agents(upstream)
    async with pipeline(nats_server.url, config, WITHOUT_CONNECTOR) as penstock:
        async with pipeline(nats_server.url, config, (ConnectorService,), drain_s=10):
            run_id = await penstock.start_run("agno", "hello")
            await upstream.called()
            asyncio.get_running_loop().call_later(0.2, go.set)
        *_, last = await penstock.ended(run_id)
    assert last.type == "lifecycle.completed"


@pytest.mark.parametrize(
    "payload",
    [b"not JSON", b'{"agent": "agno"}', b'{"penstock_object":"that-is-gone"}'],
    ids=["garbage", "fields", "lost"],
)
async def test_a_start_that_cannot_be_read_ends_its_run(
    nats_server: NatsServer, upstream: Misbehaving, payload: bytes
) -> None:
    upstream.script(plays(agno_text("x")))
    async with pipeline(nats_server.url, agents(upstream)) as penstock:
        command = await penstock.register("agno", "hello")
        await penstock.publish("start", command.run_id, payload)
        *_, last = await penstock.ended(command.run_id)
    assert last.type == "lifecycle.failed"
    assert last.data["code"] == "internal"
    assert not upstream.calls
