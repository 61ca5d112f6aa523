"""`penstock streams backup` and `restore`: all that a deployment knows, in another, empty NATS."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
from typer.testing import CliRunner, Result

from penstock.bus import Bus, BusSettings
from penstock.bus.read import direct
from penstock_cli.main import app
from penstock_cli.operations.backup import INDEX
from support.drive.bus import connected, new_run_id, publish_events
from support.drive.waiting import eventually
from support.drive.workflows import define, definition
from support.fakes.misbehaving import Answer, Misbehaving, misbehaving
from support.fakes.raw import agno, agno_approved, agno_pause
from support.real.deployment import Deployment, Event, deployment
from support.real.nats import NatsServer, password_of

pytestmark = [pytest.mark.asyncio(loop_scope="module"), pytest.mark.timeout(180)]

ASKING = """
name: asking
steps:
  first: {run: {agent: agent, message: '"quick first"'}}
  person: {needs: [first], approve: {title: '"Shall it go on?"'}}
  last: {needs: [person], run: {agent: agent, message: '"quick last"'}}
"""


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


@dataclass
class Scene:
    """A deployment over a restored NATS, and what was known before."""

    penstock: Deployment
    upstream: Misbehaving
    done: list[Event]  # the events of a run that ended before the backup
    lost: Event  # the last event of a run that began after the backup
    runs: dict[str, str] = field(default_factory=dict)  # run ids by what the run is
    approvals: dict[str, str] = field(default_factory=dict)  # their ids by what the run is


SERVICES = {
    **{"normalizer": 1, "approvals": 1, "connector": 1, "edge": 1, "workflows": 1},
}
SETTINGS: dict[str, Any] = {
    **{"pod_ttl_s": 4, "pod_renew_s": 0.5, "reap_s": 0.5, "watch_s": 1},
}


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def scene(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Scene]:
    folder = tmp_path_factory.mktemp("backup")
    kept = folder / "kept"
    old, new = (NatsServer(folder / name, name=f"{name} nats") for name in ("old", "new"))
    old.start()
    new.start()
    try:
        async with misbehaving() as upstream:
            upstream.script(answers)
            agents: list[dict[str, Any]] = [
                {"id": "agent", "protocol": "agno", "url": upstream.url, "timeout_s": 60},
                {"id": "asking", "protocol": "workflow"},
            ]
            async with deployment(old.url, folder / "a", agents, SERVICES, **SETTINGS) as penstock:
                async with connected(old.url) as bus:
                    await define(bus, definition(ASKING))
                done = await penstock.all(await penstock.run("agent", "quick"))
                runs = {"done": str(done[0].body["run_id"])}
                approvals = {}
                for kind, agent in (("paused", "agent"), ("workflow", "asking")):
                    runs[kind] = await penstock.run(agent, f"delete {kind}")
                    seen = await penstock.until(runs[kind], "approval.requested")
                    approvals[kind] = str(seen[-1].data["approval_id"])
                    await known(penstock, approvals[kind])
                runs["slow"] = await penstock.run("agent", "slow")
                await penstock.until(runs["slow"], "llm.stream")
                said = await penstock_streams("backup", str(kept), "--nats", old.url)
                assert said.exit_code == 0, said.output
                after = await penstock.all(await penstock.run("agent", "quick after"))
                for instance in tuple(penstock.instances):
                    await penstock.kill(instance)
            old.kill()
            said = await penstock_streams("restore", str(kept), "--lost", "5000", "--nats", new.url)
            assert said.exit_code == 0, said.output
            # With a NATS user, the harness makes no streams: the restore has made them.
            login = {"nats_user": "operator", "nats_password": password_of("operator")}
            settings = {**SETTINGS, **login}
            async with deployment(new.url, folder / "b", agents, SERVICES, **settings) as penstock:
                yield Scene(penstock, upstream, done, after[-1], runs, approvals)
    finally:
        old.remove()
        new.remove()


async def known(penstock: Deployment, approval_id: str) -> None:
    """Wait until the approvals service shows the approval."""
    url = f"{penstock.approvals}/v1/approvals/{approval_id}"

    async def shown() -> bool:
        return (await penstock.http.get(url)).is_success

    await eventually(shown, 20, f"the approval {approval_id}")


async def test_a_run_that_had_ended_is_as_before_and_its_client_resumes_exactly(
    scene: Scene,
) -> None:
    again = await scene.penstock.all(scene.runs["done"])
    assert [event.body for event in again] == [event.body for event in scene.done]
    rest = await scene.penstock.all(scene.runs["done"], after=scene.done[2].id)
    assert [event.body for event in rest] == [event.body for event in scene.done[3:]]


async def test_a_paused_run_goes_on_with_a_decision_after_the_restore(scene: Scene) -> None:
    answer = await scene.penstock.decide(scene.approvals["paused"], "approve")
    assert answer.is_success, answer.text
    assert (await scene.penstock.all(scene.runs["paused"]))[-1].type == "lifecycle.completed"
    continued = [each for each in scene.upstream.calls if each.path.endswith("/continue")]
    assert len(continued) == 1


async def test_a_workflow_that_waits_for_a_person_goes_on_after_the_restore(scene: Scene) -> None:
    answer = await scene.penstock.decide(scene.approvals["workflow"], "approve")
    assert answer.is_success, answer.text
    seen = await scene.penstock.all(scene.runs["workflow"])
    assert seen[-1].type == "lifecycle.completed"
    assert [event.sequence for event in seen] == [*range(1, len(seen) + 1)]
    messages = [call.form.get("message") for call in scene.upstream.calls]
    assert [messages.count(f"quick {step}") for step in ("first", "last")] == [1, 1]


async def test_a_run_that_was_under_way_gets_one_end_and_is_not_sent_upstream_again(
    scene: Scene,
) -> None:
    seen = await scene.penstock.all(scene.runs["slow"])
    assert [event.sequence for event in seen] == [*range(1, len(seen) + 1)]
    assert seen[-1].type == "lifecycle.failed"
    assert seen[-1].data["code"] in ("history_lost", "upstream_lost", "outcome_unknown")
    assert len([call for call in scene.upstream.calls if call.form.get("message") == "slow"]) == 1


async def test_a_client_with_a_cursor_of_lost_events_is_told(scene: Scene) -> None:
    penstock, run_id = scene.penstock, str(scene.lost.body["run_id"])
    assert scene.lost.id is not None
    headers = {"last-event-id": scene.lost.id}
    for path in (f"/v1/runs/{scene.runs['done']}/events", "/v1/events"):
        answer = await penstock.http.get(f"{penstock.edge()}{path}", headers=headers)
        assert answer.status_code == 410, answer.text
    answer = await penstock.http.get(f"{penstock.edge()}/v1/runs/{run_id}/events")
    assert answer.status_code == 404


async def test_new_runs_work_after_the_restore(scene: Scene) -> None:
    seen = await scene.penstock.all(await scene.penstock.run("agent", "quick new"))
    assert seen[-1].type == "lifecycle.completed"


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
    there = await penstock_streams("restore", str(kept), "--nats", fresh_nats.url)
    assert there.exit_code == 2
    assert "into an empty NATS" in there.output
    fresh_nats.stop()
    fresh_nats.wipe()
    fresh_nats.start()
    said = await penstock_streams("restore", str(kept), "--nats", fresh_nats.url)
    assert said.exit_code == 0, said.output
    # `connected` would wait until a normalizer has dealt with what may have been lost.
    bus = await Bus.connect(BusSettings(url=fresh_nats.url), ensure=False)
    try:
        del before["KV_checkpoints"]  # the restore records there what may have been lost
        assert {name: await contents(bus, name) for name in before} == before
        assert (await bus.api("CONSUMER.INFO.EVENTS.reader"))["num_pending"] == 2000
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
    said = await penstock_streams("restore", str(kept), "--nats", fresh_nats.url)
    assert (said.exit_code, "the backup lacks" in said.output) == (2, True)
    (kept / INDEX).unlink()
    said = await penstock_streams("restore", str(kept), "--nats", fresh_nats.url)
    assert (said.exit_code, "is no complete backup" in said.output) == (2, True)
