"""`penstock streams backup` and `restore`: all that a deployment knows, in another, empty NATS."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import orjson
import pytest
import pytest_asyncio
from typer.testing import CliRunner, Result

from penstock.budgets.admission import CurrentBudgets
from penstock.bus import Bus, BusSettings, streams, subjects
from penstock.bus.read import direct
from penstock.bus.records.runs import RunRecord
from penstock.bus.streams import Retention
from penstock.bus.subjects import shard_of
from penstock_cli.commands.streams import INDEX
from penstock_cli.main import app
from support.drive import erasing
from support.drive.bus import connected, new_run_id, publish_events
from support.drive.normalizing import Run, bus_to, normalizer
from support.drive.waiting import eventually
from support.drive.workflows import define, definition
from support.fakes.misbehaving import Answer, Misbehaving, misbehaving
from support.fakes.raw import agno, agno_approved, agno_pause
from support.fakes.receiver import SECRET, Receiver, receiver
from support.real.deployment import Deployment, Event, deployment
from support.real.nats import NatsServer, password_of
from support.real.nats_cluster import cluster, in_thread, nats_of, url_of

pytestmark = [pytest.mark.asyncio(loop_scope="module"), pytest.mark.timeout(180)]

ASKING = """
name: asking
steps:
  first: {run: {agent: agent, message: '"quick first"'}}
  person: {needs: [first], approve: {title: '"Shall it go on?"'}}
  last: {needs: [person], run: {agent: agent, message: '"quick last"'}}
"""


BUDGET: dict[str, Any] = {
    **{"id": "kept", "match": {"agent": "agent"}, "per": "user"},
    **{"limit": {"tokens": 1_000_000}, "reserve": "10 tokens"},
    "at": [{"share": 1.0, "do": "refuse"}],
}


async def answers(answer: Answer) -> None:
    if answer.request.path.endswith("/continue"):
        await answer.whole(agno_approved())
        return
    message = answer.request.form["message"]
    if message.startswith("delete"):
        await answer.whole(agno_pause())
        return
    await answer.head()
    await answer.send(agno("RunStarted"))
    for number in range(400 if message.startswith("slow") else 5):
        await answer.send(agno("RunContent", content=f"{number} "))
        if message.startswith("slow"):
            await asyncio.sleep(0.05)
    await answer.send(agno("ModelRequestCompleted", model="m", input_tokens=3, output_tokens=1))
    await answer.send(agno("RunCompleted", content="done"))
    await answer.end()


async def penstock_streams(*arguments: str) -> Result:
    return await asyncio.to_thread(CliRunner().invoke, app, ["streams", *arguments])


async def contents(bus: Bus, stream: str) -> list[tuple[str, int, bytes]]:
    """Return subject, sequence and payload of every message of a stream."""
    return [
        (each.subject, each.sequence, bytes(each.payload))
        async for each in direct.replay(bus, stream, ">")
    ]


@dataclass(frozen=True, slots=True)
class Layout:
    """How many shards and NATS servers a deployment has."""

    shards: int = 1
    servers: int = 1


LAYOUTS = [
    pytest.param(Layout(), id="one"),
    pytest.param(Layout(shards=3, servers=3), id="shards-and-a-cluster", marks=pytest.mark.chaos),
]


@dataclass
class Scene:
    """A deployment over a restored NATS, and what was known before."""

    penstock: Deployment
    upstream: Misbehaving
    webhooks: Receiver
    layout: Layout
    done: list[list[Event]]  # the events of runs that ended before the backup
    lost: Event  # the last event of a run that began after the backup
    runs: dict[str, list[str]] = field(default_factory=dict)  # run ids by what the runs are
    approvals: dict[str, list[str]] = field(default_factory=dict)  # their ids by what the runs are


NO_ERASURES = ("--erasures", "none")
SERVICES = {
    **{"normalizer": 1, "approvals": 1, "connector": 1, "edge": 1},
    **{"automations": 1, "workflows": 1},
}
SETTINGS: dict[str, Any] = {
    **{"pod_ttl_s": 4, "pod_renew_s": 0.5, "reap_s": 0.5, "watch_s": 1},
    "webhook_allow_hosts": "127.0.0.1",
}


async def in_every_shard(layout: Layout, start: Callable[[], Awaitable[str]]) -> list[str]:
    """Start runs until every shard has one; return all ids."""
    found: list[str] = []
    while {shard_of(run_id) for run_id in found} != {*range(layout.shards)}:
        found.append(await start())
    return found


async def made_a_rule(penstock: Deployment, webhooks: Receiver) -> None:
    """Make a rule with a webhook for each run that completes."""
    webhook = {"url": webhooks.url("/completed"), "secrets": [SECRET]}
    rule = {"id": "told", "subjects": ["lifecycle.completed"], "action": {"webhook": webhook}}
    (automations,) = penstock.of("automations")
    answer = await penstock.http.post(f"{automations.url}/v1/automations", json=rule)
    assert answer.is_success, answer.text


async def delivered(webhooks: Receiver, run_ids: Sequence[str]) -> None:
    """Wait until there was a webhook about each of these runs."""

    async def probe() -> bool:
        told = {each.headers["penstock-run-id"] for each in webhooks.requests}
        return told.issuperset(run_ids)

    await eventually(probe, 60, "a webhook about each run")


@pytest_asyncio.fixture(scope="module", loop_scope="module", params=LAYOUTS)
async def scene(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[Scene]:
    layout: Layout = request.param
    folder = tmp_path_factory.mktemp("backup")
    kept = folder / "kept"
    settings = SETTINGS | {"replicas": layout.servers, "shards": layout.shards}
    async with AsyncExitStack() as stack:
        old, new = [
            await stack.enter_async_context(in_thread(nats_of(layout.servers, folder / name)))
            for name in ("old", "new")
        ]
        upstream = await stack.enter_async_context(misbehaving())
        webhooks = await stack.enter_async_context(receiver())
        upstream.script(answers)
        agents: list[dict[str, Any]] = [
            {"id": "agent", "protocol": "agno", "url": upstream.url, "timeout_s": 60},
            {"id": "asking", "protocol": "workflow"},
        ]
        retention = Retention(replicas=layout.servers, shards=layout.shards)
        async with connected(url_of(old), retention=retention) as bus:
            await define(bus, definition(ASKING))
            await CurrentBudgets(bus).apply({"version": 1, "budgets": [BUDGET]}, "root")
        async with deployment(url_of(old), folder / "a", agents, SERVICES, **settings) as penstock:
            await made_a_rule(penstock, webhooks)
            runs = {
                kind: await in_every_shard(layout, partial(penstock.run, agent, message))
                for kind, agent, message in (
                    ("done", "agent", "quick"),
                    ("paused", "agent", "delete paused"),
                    ("workflow", "asking", "delete workflow"),
                )
            }
            done = [await penstock.all(run_id) for run_id in runs["done"]]
            await delivered(webhooks, runs["done"])
            approvals: dict[str, list[str]] = {"paused": [], "workflow": []}
            for kind, found in approvals.items():
                for run_id in runs[kind]:
                    seen = await penstock.until(run_id, "approval.requested")
                    found.append(str(seen[-1].data["approval_id"]))
                    await known(penstock, found[-1])
            runs["slow"] = await in_every_shard(layout, partial(penstock.run, "agent", "slow"))
            for run_id in runs["slow"]:
                await penstock.until(run_id, "llm.stream")
            said = await penstock_streams("backup", str(kept), "--nats", url_of(old))
            assert said.exit_code == 0, said.output
            after = await penstock.all(await penstock.run("agent", "quick after"))
            for instance in tuple(penstock.instances):
                await penstock.kill(instance)
        for server in old:
            server.kill()
        restore = ("restore", str(kept), *NO_ERASURES, "--lost", "5000")
        said = await penstock_streams(*restore, "--nats", url_of(new))
        assert said.exit_code == 0, said.output
        # With a NATS user, the harness makes no streams: the restore has made them.
        settings |= {"nats_user": "operator", "nats_password": password_of("operator")}
        async with deployment(url_of(new), folder / "b", agents, SERVICES, **settings) as penstock:
            yield Scene(penstock, upstream, webhooks, layout, done, after[-1], runs, approvals)


async def known(penstock: Deployment, approval_id: str) -> None:
    """Wait until the approvals service shows the approval."""
    url = f"{penstock.approvals}/v1/approvals/{approval_id}"

    async def shown() -> bool:
        return (await penstock.http.get(url)).is_success

    await eventually(shown, 30, f"the approval {approval_id}")


async def test_a_run_that_had_ended_is_as_before_and_its_client_resumes_exactly(
    scene: Scene,
) -> None:
    for run_id, before in zip(scene.runs["done"], scene.done, strict=True):
        again = await scene.penstock.all(run_id)
        assert [event.body for event in again] == [event.body for event in before]
        rest = await scene.penstock.all(run_id, after=before[2].id)
        assert [event.body for event in rest] == [event.body for event in before[3:]]


async def test_what_runs_have_used_is_as_before_and_new_runs_are_added(scene: Scene) -> None:
    penstock = scene.penstock
    new = await penstock.run("agent", "quick new")
    await penstock.all(new)
    for run_id in (*scene.runs["done"], new):

        async def usage(run_id: str = run_id) -> Any:
            return (
                (await penstock.http.get(f"{penstock.edge()}/v1/runs/{run_id}")).json().get("usage")
            )

        used = await eventually(usage, 30, "what the run has used")
        assert (used["calls"], used["input_tokens"], used["output_tokens"]) == (1, 3, 1)


async def test_every_stream_has_the_replicas_that_it_had(scene: Scene) -> None:
    async with connected(scene.penstock.nats_url) as bus:
        names = (await bus.api("STREAM.NAMES"))["streams"]
        infos = [await bus.api(f"STREAM.INFO.{name}") for name in names]
    assert {info["config"]["num_replicas"] for info in infos} == {scene.layout.servers}
    events = [name for name in names if name.partition("_")[0] == "EVENTS"]
    assert len(events) == scene.layout.shards


async def test_a_paused_run_continues_with_a_decision_after_the_restore(scene: Scene) -> None:
    for run_id, approval_id in zip(scene.runs["paused"], scene.approvals["paused"], strict=True):
        answer = await scene.penstock.decide(approval_id, "approve")
        assert answer.is_success, answer.text
        assert (await scene.penstock.all(run_id))[-1].type == "lifecycle.completed"
    continued = [each for each in scene.upstream.calls if each.path.endswith("/continue")]
    assert len(continued) == len(scene.runs["paused"])


async def test_a_workflow_that_waits_for_a_person_continues_after_the_restore(scene: Scene) -> None:
    runs = scene.runs["workflow"]
    for run_id, approval_id in zip(runs, scene.approvals["workflow"], strict=True):
        answer = await scene.penstock.decide(approval_id, "approve")
        assert answer.is_success, answer.text
        seen = await scene.penstock.all(run_id)
        assert seen[-1].type == "lifecycle.completed"
        assert [event.sequence for event in seen] == [*range(1, len(seen) + 1)]
    messages = [call.form.get("message") for call in scene.upstream.calls]
    counts = [messages.count(f"quick {step}") for step in ("first", "last")]
    assert counts == [len(runs), len(runs)]


async def test_a_run_that_was_under_way_gets_one_end_and_is_not_sent_upstream_again(
    scene: Scene,
) -> None:
    for run_id in scene.runs["slow"]:
        seen = await scene.penstock.all(run_id)
        assert [event.sequence for event in seen] == [*range(1, len(seen) + 1)]
        assert seen[-1].type == "lifecycle.failed"
        assert seen[-1].data["code"] in ("history_lost", "upstream_lost", "outcome_unknown")
    sent = [call for call in scene.upstream.calls if call.form.get("message") == "slow"]
    assert len(sent) == len(scene.runs["slow"])


async def test_a_client_with_a_cursor_of_lost_events_is_told(scene: Scene) -> None:
    penstock, run_id = scene.penstock, str(scene.lost.body["run_id"])
    assert scene.lost.id is not None
    headers = {"last-event-id": scene.lost.id}
    (same_shard, *_) = [each for each in scene.runs["done"] if shard_of(each) == shard_of(run_id)]
    for path in (f"/v1/runs/{same_shard}/events", "/v1/events"):
        answer = await penstock.http.get(f"{penstock.edge()}{path}", headers=headers)
        assert answer.status_code == 410, answer.text
    answer = await penstock.http.get(f"{penstock.edge()}/v1/runs/{run_id}/events")
    assert answer.status_code == 404


async def test_new_runs_work_after_the_restore_and_the_rule_tells_of_them(scene: Scene) -> None:
    start = partial(scene.penstock.run, "agent", "quick new")
    runs = await in_every_shard(scene.layout, start)
    for run_id in runs:
        assert (await scene.penstock.all(run_id))[-1].type == "lifecycle.completed"
    await delivered(scene.webhooks, runs)
    ids: dict[str, set[str]] = {}
    for each in scene.webhooks.requests:
        ids.setdefault(each.headers["penstock-run-id"], set()).add(each.id)
    assert {len(found) for found in ids.values()} == {1}, "a repeated webhook has the same id"


async def test_budgets_count_on_after_the_restore_and_nothing_stays_set_aside(
    scene: Scene,
) -> None:
    penstock = scene.penstock
    await penstock.all(await penstock.run("agent", "quick new"))
    tokens = 0
    async with connected(penstock.nats_url) as bus:
        for shard in range(scene.layout.shards):
            async for each in direct.replay(bus, streams.events_of(shard), "llm.usage.*"):
                data = orjson.loads(each.payload)["data"]
                tokens += data["input_tokens"] + data["output_tokens"]

    async def rooms() -> list[Any]:
        url = f"{penstock.approvals}/v1/budgets/accounts"
        [account] = (await penstock.http.get(url)).json()["accounts"]
        return [account["open_runs"], account["rooms"]]

    left = 1_000_000 - tokens
    room = {"dimension": "tokens", "limit": 1_000_000, "used": tokens, "reserved": 0, "left": left}

    async def settled() -> bool:
        return await rooms() == [0, [room]]

    await eventually(settled, 60, "the sum over the events, and no run in the account")


async def test_a_copy_has_the_same_content_and_consumers(
    fresh_nats: NatsServer, tmp_path: Path
) -> None:
    kept = tmp_path / "kept"
    async with connected(fresh_nats.url) as bus:
        await bus.bucket("rules").put("told", b"a rule")
        await bus.bucket("policies").put("current", b"a policy")
        await publish_events(bus, new_run_id(), 1, 2000)
        durable = {"durable_name": "reader", "ack_policy": "explicit"}
        config = {"stream_name": "EVENTS", "config": durable}
        await bus.api("CONSUMER.DURABLE.CREATE.EVENTS.reader", config)
        names = sorted((await bus.api("STREAM.NAMES"))["streams"])
        before = {name: await contents(bus, name) for name in names if name != "KV_leases"}
    said = await penstock_streams("backup", str(kept), "--nats", fresh_nats.url)
    assert said.exit_code == 0, said.output
    restore = ("restore", str(kept), *NO_ERASURES, "--nats", fresh_nats.url)
    there = await penstock_streams(*restore)
    assert there.exit_code == 2
    assert "into an empty NATS" in there.output
    fresh_nats.stop()
    fresh_nats.wipe()
    fresh_nats.start()
    said = await penstock_streams(*restore)
    assert said.exit_code == 0, said.output
    # `connected` would wait until a normalizer has dealt with what may have been lost.
    bus = await Bus.connect(BusSettings(url=fresh_nats.url), ensure=False)
    try:
        del before["KV_checkpoints"]  # the restore records there what may have been lost
        assert {name: await contents(bus, name) for name in before} == before
        assert (await bus.api("CONSUMER.INFO.EVENTS.reader"))["num_pending"] == 2000
    finally:
        await bus.close()


@pytest.mark.chaos
async def test_a_backup_of_a_cluster_is_restored_into_one_server_where_that_is_asked_for(
    fresh_nats: NatsServer, tmp_path: Path
) -> None:
    kept, run_id = tmp_path / "kept", new_run_id()
    async with in_thread(cluster(tmp_path / "cluster")) as servers:
        async with connected(url_of(servers)) as bus:
            await publish_events(bus, run_id, 1, 50)
            before = await contents(bus, "EVENTS")
        said = await penstock_streams("backup", str(kept), "--nats", url_of(servers))
        assert said.exit_code == 0, said.output
    restore = ("restore", str(kept), *NO_ERASURES, "--nats", fresh_nats.url)
    said = await penstock_streams(*restore)
    assert said.exit_code == 2
    assert "restore with `--replicas 1`. Nothing was changed" in said.output
    said = await penstock_streams(*restore, "--replicas", "1")
    assert said.exit_code == 0, said.output
    bus = await Bus.connect(BusSettings(url=fresh_nats.url), ensure=False)
    try:
        assert await contents(bus, "EVENTS") == before
        names = (await bus.api("STREAM.NAMES"))["streams"]
        infos = [await bus.api(f"STREAM.INFO.{name}") for name in names]
        assert {info["config"]["num_replicas"] for info in infos} == {1}
    finally:
        await bus.close()


async def test_a_backup_that_is_not_whole_is_refused(
    fresh_nats: NatsServer, tmp_path: Path
) -> None:
    kept = tmp_path / "kept"
    async with connected(fresh_nats.url):
        pass
    await penstock_streams("backup", str(kept), "--nats", fresh_nats.url)
    again = await penstock_streams("backup", str(kept), "--nats", fresh_nats.url)
    assert again.exit_code == 2
    assert "is not empty" in again.output
    (kept / "EVENTS" / "stream.tar.s2").unlink()
    restore = ("restore", str(kept), *NO_ERASURES, "--nats", fresh_nats.url)
    said = await penstock_streams(*restore)
    assert (said.exit_code, "the backup lacks" in said.output) == (2, True)
    (kept / INDEX).unlink()
    said = await penstock_streams(*restore)
    assert (said.exit_code, "is no complete backup" in said.output) == (2, True)


async def test_a_restore_refuses_an_empty_list_of_erasures(
    nats_server: NatsServer, tmp_path: Path
) -> None:
    """As one is that was written with `>` while NATS was away."""
    emptied = tmp_path / "erasures.jsonl"
    emptied.touch()
    nats = ("--nats", nats_server.url)
    said = await penstock_streams("restore", str(tmp_path), "--erasures", str(emptied), *nats)
    assert (said.exit_code, "is empty: write `none`" in said.output) == (2, True)


async def test_what_was_erased_after_a_backup_is_withheld_by_its_restore_and_erased_again(
    fresh_nats: NatsServer, tmp_path: Path
) -> None:
    kept, file, secret = tmp_path / "kept", tmp_path / "erasures.jsonl", f"secret-{new_run_id()}"
    nats = ("--nats", fresh_nats.url)
    async with bus_to(fresh_nats.url) as bus, normalizer(fresh_nats.url):
        run, other, late = Run(bus), Run(bus), Run(bus)
        await late.open(message=secret)
        await late.until("lifecycle.started")
        for each, text in ((run, secret), (other, "kept")):
            await each.open(message=text)
            await each.bytes(agno("RunStarted") + agno("RunContent", content=text))
            await each.bytes(agno("RunContentCompleted") + agno("RunCompleted", content=text))
            await each.end()
            await ended(bus, each)
        said = await penstock_streams("backup", str(kept), *nats)
        assert said.exit_code == 0, said.output
        await late.bytes(agno("RunStarted") + agno("RunCompleted", content=secret))
        await late.end()
        await ended(bus, late)
        for each in (run, late):
            await erasing.ask(bus, each.run_id)
            await erasing.erased(bus, each.run_id)
        said = await penstock_streams("erasures", "--json", *nats)
        file.write_text(said.stdout)
        lines = [orjson.loads(line) for line in said.stdout.splitlines()]
        assert {line["run_id"] for line in lines} == {run.run_id, late.run_id}
    fresh_nats.stop()
    fresh_nats.wipe()
    fresh_nats.start()
    without = await penstock_streams("restore", str(kept), *nats)
    assert (without.exit_code, "--erasures" in without.output) == (2, True)
    restore = ("restore", str(kept), "--erasures", str(file), "--lost", "100")
    said = await penstock_streams(*restore, *nats)
    assert said.exit_code == 0, said.output
    assert "1 runs are withheld" in said.output
    assert "1 were open in the backup" in said.output
    assert erasing.streams_with(fresh_nats, secret) >= {"EVENTS", "RAW"}
    # A normalizer repairs the ends of the streams, before anything else can connect.
    async with bus_to(fresh_nats.url, repairs=True) as bus:
        record = await erasing.record_of(bus, run.run_id)
        assert record.erasure is not None
        assert (record.erasure.by, record.erasure.reason) == ("officer", "asked")
        assert (record.message, record.erasure.erased_at) == ("", None)
        async with normalizer(fresh_nats.url):
            await erasing.erased(bus, run.run_id)
            pattern = subjects.events_of_run(run.run_id)
            left = [each.subject async for each in direct.replay(bus, streams.EVENTS, pattern)]
            assert left == [f"system.erased.{run.run_id}"]
            assert (await erasing.record_of(bus, other.run_id)).message == "kept"

            async def is_cancelled() -> bool:
                cancel = subjects.command("connector", "cancel", late.run_id)
                return await bus.tail(streams.COMMANDS, cancel) is not None

            await eventually(is_cancelled, 30, "the cancel of the run that was open")


async def ended(bus: Bus, run: Run) -> None:
    """Wait until the run's record says that it has completed."""

    async def is_recorded() -> bool:
        record = await bus.bucket("runs").load(run.run_id, RunRecord)
        return record is not None and record.status == "completed"

    await eventually(is_recorded, 30, "the run's end")
