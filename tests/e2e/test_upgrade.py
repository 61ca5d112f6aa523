"""No run is harmed by an upgrade: other partitions, another version, or a pause of a week."""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path

import httpx
import orjson
import pytest

from penstock.bus import Bus, BusError, BusSettings, Message, RawWriter, messages, streams, subjects
from penstock.bus.admin import configuration, migrate
from penstock.bus.streams import Retention
from penstock.bus.subjects import partition_of
from penstock.bus.write import fence
from penstock.events import TERMINAL
from penstock_edge.service import EdgeService
from support.drive.bus import connected
from support.drive.figures import report
from support.drive.pipeline import PIPELINE, Pipeline, pipeline, types
from support.drive.waiting import eventually
from support.fakes.misbehaving import Answer, Misbehaving, agents, misbehaving, plays
from support.fakes.raw import agno, agno_approved, agno_pause, agno_text
from support.fakes.steady import holders, moved_on, steady
from support.real.deployment import SERVICES, Deployment, Event, deployment
from support.real.forked import Forked, finished
from support.real.nats import NatsServer
from support.real.nats_cluster import cluster
from support.real.up import FORKED
from support.recorded.earlier_commit import RELEASE_0_1, former
from support.recorded.released import VERSIONS, Left, left, restore

FAST = {"partition_ttl_s": 2.0, "partition_renew_s": 0.5, "checkpoint_s": 0.1}


def migration(partitions: int, nats: NatsServer) -> list[str]:
    """Return the program `penstock streams migrate --partitions <count>`."""
    return [*FORKED, "streams", "migrate", "--partitions", str(partitions), "--nats", nats.url]


async def repartitioned(count: int, nats: NatsServer) -> str:
    """Run `penstock streams migrate --partitions <count>` to its end; return its output."""
    done = await asyncio.to_thread(finished, migration(count, nats), {})
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


async def held(bus: Bus, count: int) -> None:
    """Wait until the first `count` partitions are held, and no other."""

    async def are() -> bool:
        return set(await holders(bus)) == set(range(count))

    await eventually(are, 30, f"{count} partitions are held")


@pytest.mark.chaos
@pytest.mark.timeout(180)
async def test_the_number_of_partitions_changes_under_forty_runs_and_kill_9(
    fresh_nats: NatsServer, tmp_path: Path
) -> None:
    async with (
        connected(fresh_nats.url) as bus,
        deployment(fresh_nats.url, tmp_path, [], {"normalizer": 2}, **FAST) as fleet,
        steady(bus, 40, 0.4, timeout_s=60) as runs,
    ):
        await held(bus, 16)
        # The kill comes while the command works, or before it has begun.
        half_done = Forked(migration(24, fresh_nats), os.environ, tmp_path / "half done.log")
        await asyncio.sleep(random.uniform(0.05, 1.5))
        half_done.kill()
        await half_done.ended()
        await fleet.kill(fleet.of("normalizer")[0])
        starting = asyncio.create_task(fleet.start("normalizer"))
        said = await repartitioned(24, fresh_nats)
        await starting
        assert "→ 24" in said
        assert await migrate.partitions(bus) == 24
        moved = [
            run for run in runs if partition_of(run.run_id, 16) != partition_of(run.run_id, 24)
        ]
        assert len(moved) > 10
        await moved_on(bus, runs, 0, 30)
        await held(bus, 24)
        # Go back to 16 partitions: normalizers may still have these runs' folds in memory.
        assert "→ 16" in await repartitioned(16, fresh_nats)
        await moved_on(bus, runs, 0, 30)
        await held(bus, 16)


@asynccontextmanager
async def upgraded(
    nats: NatsServer, version: str
) -> AsyncIterator[tuple[Left, Pipeline, Misbehaving]]:
    """Run this version's services on the data that a released version left in NATS."""
    found = left(version)
    bus = await Bus.connect(BusSettings(url=nats.url), ensure=False)
    await restore(bus, found)
    await bus.close()
    async with misbehaving() as upstream:
        upstream.script(plays(agno_approved()))
        async with pipeline(nats.url, agents(upstream), [*PIPELINE, EdgeService]) as penstock:
            yield found, penstock, upstream


@pytest.mark.parametrize("version", VERSIONS)
async def test_a_run_that_waited_under_an_older_version_continues_under_this_one(
    fresh_nats: NatsServer, version: str
) -> None:
    async with upgraded(fresh_nats, version) as (found, penstock, upstream):
        before = await penstock.events_until(found["runs"]["paused"], "lifecycle.paused")
        await penstock.decide(found["approval"], "approve")
        events = await penstock.ended(found["runs"]["paused"])
        assert len(upstream.calls) == 1
    assert [event.sequence for event in events] == list(range(1, len(events) + 1))
    assert types(events[len(before) :])[:2] == ["approval.decided", "lifecycle.resumed"]
    assert events[-1].type == "lifecycle.completed"


@pytest.mark.parametrize("version", VERSIONS)
async def test_what_an_older_version_wrote_is_read_and_not_done_again(
    fresh_nats: NatsServer, version: str
) -> None:
    async with upgraded(fresh_nats, version) as (found, penstock, upstream):
        decided = found["runs"]["decided"]
        command = found["commands"]["continue"].encode()
        await penstock.publish("continue", decided, command)
        shown = (await penstock.http.get("/v1/runs")).json()["runs"]
        assert {run["run_id"]: run["status"] for run in shown} == {
            decided: "completed",
            found["runs"]["plain"]: "completed",
            found["runs"]["paused"]: "paused",
        }
        for run_id in (decided, found["runs"]["plain"]):
            events = await penstock.ended(run_id)
            assert [event.sequence for event in events] == list(range(1, len(events) + 1))
        # The new run starts after the repeated continue command: when the run has ended, the
        # connector has taken that command.
        upstream.script(plays(agno_text("fine")))
        assert (await penstock.ended(await penstock.start_run("agno")))[-1].type == (
            "lifecycle.completed"
        )
        assert len(upstream.calls) == 1
        for config in found["streams"]:
            standing = await configuration.configuration(penstock.bus, config["name"])
            assert standing is not None
            assert configuration.schema_of(standing) == streams.SCHEMA


@pytest.mark.timeout(180)
async def test_a_run_that_waited_for_a_week_continues_although_all_of_it_has_aged_out(
    fresh_nats: NatsServer, tmp_path: Path
) -> None:
    week_s, later = 2.0, Retention()
    async with (
        misbehaving() as upstream,
        connected(
            fresh_nats.url, retention=Retention(raw_max_age_s=week_s, events_max_age_s=week_s)
        ) as bus,
    ):
        upstream.script(plays(agno_pause()), plays(agno_approved()))
        listed = [{"id": "agno", "protocol": "agno", "url": upstream.url}]
        async with deployment(fresh_nats.url, tmp_path, listed, {}) as penstock:
            await asyncio.gather(*map(penstock.start, SERVICES))
            run_id = await penstock.run("agno", "delete it")
            before = await penstock.until(run_id, "lifecycle.paused")

            async def is_aged() -> bool:
                tails = [
                    await bus.tail(streams.RAW, subjects.raw_of_run(run_id)),
                    await bus.tail(streams.EVENTS, subjects.events_of_run(run_id)),
                ]
                return tails == [None, None]

            await eventually(is_aged, 30, "everything of the run has aged out")
            for instance in tuple(penstock.instances):
                await penstock.kill(instance)
            await migrate.apply(bus, later)
            await asyncio.gather(*map(penstock.start, SERVICES))
            assert await penstock.status(run_id) == "paused"
            waiting = asyncio.create_task(penstock.all(run_id, after=before[-1].id))
            answer = await penstock.decide(before[-1].data["approval_id"], "approve")
            assert answer.status_code == 200, answer.text
            after = await waiting
            whole = await penstock.all(run_id)
    numbers = [event.sequence for event in [*before, *after] if event.id is not None]
    assert numbers == list(range(1, len(numbers) + 1))
    assert after[-1].type == "lifecycle.completed"
    # A client that reads the run from its start first gets `history_truncated`.
    assert (whole[0].id, whole[0].data["code"]) == (None, "history_truncated")
    assert [event.body for event in whole[1:]] == [event.body for event in after if event.id]
    assert len(upstream.calls) == 2


WORDS = 20


async def talks(answer: Answer) -> None:
    """Stream twenty words in two seconds; each word contains the question."""
    asked = answer.request.form["message"]
    await answer.head()
    await answer.send(agno("RunStarted"))
    for number in range(WORDS):
        await answer.send(agno("RunContent", content=f"{asked}-{number} "))
        await asyncio.sleep(0.1)
    await answer.send(agno("RunContentCompleted") + agno("RunCompleted", content="x"))
    await answer.end()


async def started(penstock: Deployment, name: str, number: int) -> str:
    """Start a run and return its id; if an edge refuses the connection, try the next one."""
    while True:
        number += 1
        with contextlib.suppress(httpx.ConnectError):
            return await penstock.run("agno", name, edge=number)


async def asked(penstock: Deployment, name: str, number: int) -> None:
    """Start a run and follow it, reconnecting to other edges; check that each word came once."""
    run_id = await started(penstock, name, number)
    events: list[Event] = []
    while not events or events[-1].type not in TERMINAL:
        number += 1
        with contextlib.suppress(httpx.HTTPError):
            after = events[-1].id if events else None
            async for event in penstock.events(run_id, edge=number, after=after):
                events.append(event)
    assert [event.sequence for event in events] == list(range(1, len(events) + 1))
    said = [event.data["content"] for event in events if event.type == "llm.stream"]
    assert said == [f"{name}-{word} " for word in range(WORDS)], (run_id, events[-1].body)
    assert events[-1].type == "lifecycle.completed"


@pytest.mark.chaos
@pytest.mark.timeout(900)
async def test_services_of_two_versions_work_side_by_side_through_a_rolling_upgrade(
    fresh_nats: NatsServer, tmp_path: Path
) -> None:
    """Processes of release 0.1 are replaced one by one by this version while runs stream."""
    path = former(RELEASE_0_1, tmp_path / "former")
    asking: set[asyncio.Task[None]] = set()
    number = 0

    async def ask(penstock: Deployment, seconds: float) -> None:
        nonlocal number
        for _ in range(int(seconds * 3)):
            number += 1
            asking.add(asyncio.create_task(asked(penstock, f"q{number}", number)))
            await asyncio.sleep(1 / 3)

    async with misbehaving() as upstream:
        upstream.script(talks)
        listed = [{"id": "agno", "protocol": "agno", "url": upstream.url}]
        async with deployment(fresh_nats.url, tmp_path, listed, {}) as penstock:
            now = penstock.environment
            penstock.environment = {**now, "PYTHONPATH": path}
            old = await asyncio.gather(*map(penstock.start, [*SERVICES, *SERVICES]))
            await ask(penstock, 5)
            penstock.environment = now
            for instance in sorted(old, key=lambda each: SERVICES.index(each.service)):
                await asyncio.gather(penstock.start(instance.service), ask(penstock, 3))
                penstock.instances.remove(instance)
                instance.process.popen.terminate()
                await ask(penstock, 3)
                await asyncio.to_thread(instance.process.popen.wait)
            await asyncio.gather(repartitioned(24, fresh_nats), ask(penstock, 5))
            await asyncio.gather(*asking)
    report("rolling upgrade", runs=number)
    assert len(upstream.calls) == number


async def test_what_a_newer_version_adds_is_passed_on_and_breaks_nothing(
    nats_server: NatsServer,
) -> None:
    """A run has fields, source frames and events in its middle that this version does not know."""
    goes_on = asyncio.Event()

    async def waits(answer: Answer) -> None:
        await answer.head()
        await answer.send(agno("RunStarted") + agno("RunContent", content="one"))
        await goes_on.wait()
        await answer.send(agno("RunContent", content="two"))
        await answer.send(agno("RunContentCompleted") + agno("RunCompleted", content="x"))
        await answer.end()

    async with misbehaving() as upstream:
        upstream.script(waits)
        async with pipeline(
            nats_server.url, agents(upstream), (*PIPELINE, EdgeService)
        ) as penstock:
            run_id = await penstock.start_run("agno", "hello", colour="blue")
            *_, last = await penstock.events_until(run_id, "llm.stream")
            writer = RawWriter(penstock.bus, run_id, "oracle", "pod/1")
            future = {"Penstock-Future": "bright"}
            position = await writer.write("telepathy", b"{}", leg=1, headers=future)
            body = {**last.body, "sequence": last.sequence + 1, "mood": "good"}
            body["event"] = {"category": "llm", "action": "sparkled"}
            headers = {
                **{name: last.headers[name] for name in (messages.RAW_FIRST, messages.FIRST)},
                messages.SEQUENCE: f"{last.sequence + 1}",
                messages.RAW_POSITION: f"{position}",
                "ce-type": "llm.sparkled",
            }
            pattern = subjects.events_of_run(run_id)
            tail = await fence.tail(penstock.bus, streams.EVENTS, pattern)
            assert tail is not None
            event = Message(f"llm.sparkled.{run_id}", orjson.dumps(body), headers)
            await fence.append(penstock.bus, pattern, [event], tail.sequence)
            goes_on.set()
            events = await penstock.ended(run_id)
            shown = {
                dialect: await penstock.http.get(
                    f"/v1/runs/{run_id}/events", params={"dialect": dialect}
                )
                for dialect in ("canonical", "executions", "unified", "agui", "agui+runs")
            }
            record = await penstock.record(run_id)
    assert [event.sequence for event in events] == list(range(1, len(events) + 1))
    assert [e.data["content"] for e in events if e.type == "llm.stream"] == ["one", "two"]
    assert {name: answer.status_code for name, answer in shown.items()} == dict.fromkeys(shown, 200)
    assert b'"mood":"good"' in shown["canonical"].content
    assert b"sparkled" in shown["executions"].content
    assert record.model_extra == {"colour": "blue"}


@pytest.fixture
def servers(tmp_path: Path) -> Iterator[list[NatsServer]]:
    with cluster(tmp_path / "cluster") as started:
        yield started


async def replicated(bus: Bus) -> str:
    """Wait until each stream has three current replicas; return the leader of RAW."""

    async def leader() -> str | None:
        try:
            listed = await bus.api("STREAM.LIST")
        except BusError:
            return None  # the cluster is electing a leader
        leads = None
        for stream in listed["streams"]:
            others = stream["cluster"].get("replicas", [])
            if len(others) != 2 or not all(other["current"] for other in others):
                return None
            if stream["config"]["name"] == streams.RAW:
                leads = stream["cluster"].get("leader")
        return str(leads) if leads else None

    return await eventually(leader, 60, "everything has three copies")


@pytest.mark.chaos
@pytest.mark.timeout(300)
async def test_replicas_and_partitions_change_under_runs_while_the_leader_is_killed(
    servers: list[NatsServer], tmp_path: Path
) -> None:
    async with connected(servers[0].url, publish_timeout_s=2) as bus:
        await migrate.apply(bus, Retention(replicas=1))
        count = {"normalizer": 2}
        async with (
            deployment(servers[0].url, tmp_path, [], count, **FAST) as _,
            steady(bus, 20, 0.2, timeout_s=60) as runs,
        ):
            await held(bus, 16)
            await moved_on(bus, runs, 0, 20)
            await migrate.apply(bus, Retention(replicas=3))
            leads = servers[int((await replicated(bus)).removeprefix("n"))]
            dividing = asyncio.create_task(repartition(bus, 24))
            await asyncio.to_thread(leads.kill)
            await dividing
            await moved_on(bus, runs, 0, 40)
            await asyncio.to_thread(leads.start)
            await replicated(bus)
            await held(bus, 24)


async def repartition(bus: Bus, count: int) -> None:
    """Repeat the change until it succeeds, as an operator would."""

    async def done() -> bool:
        try:
            await migrate.repartition(bus, count)
        except BusError:
            return False
        return True

    await eventually(done, 60, f"{count} partitions")
