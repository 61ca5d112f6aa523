"""NATS comes back with an older store, as after a power cut or from a backup of the volume.

Each case stops the server and replaces the files of some streams by an earlier copy. With `RAW`
alone, for example, all other streams still refer to what RAW has lost. The services keep running,
or are killed and started again. The test of a power cut uses copies of all streams from two
moments, because each stream is written to the disk at another moment.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import json
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
from typer.testing import CliRunner

from penstock.bus.state import losses
from penstock_cli.main import app
from support.drive.bus import connected
from support.drive.waiting import eventually
from support.fakes.misbehaving import Answer, Misbehaving, misbehaving
from support.fakes.raw import agno, agno_approved, agno_pause
from support.real.deployment import Deployment, deployment
from support.real.nats import NatsServer
from support.recorded.older_store import all_streams, copied, put_back

pytestmark = [pytest.mark.asyncio(loop_scope="module"), pytest.mark.timeout(180)]

ENDS = {"lifecycle.completed", "lifecycle.failed", "lifecycle.cancelled"}
QUICK_FRAMES, SLOW_FRAMES, RATE = 5, 80, 20


async def answers(answer: Answer) -> None:
    """Answer `quick` at once, `slow` for some seconds, and `delete` with a pause."""
    if answer.request.path.endswith("/continue"):
        await answer.whole(agno_approved())
        return
    if answer.request.form["message"].startswith("delete"):
        await answer.whole(agno_pause())
        return
    slow = answer.request.form["message"].startswith("slow")
    await answer.head()
    await answer.send(agno("RunStarted"))
    for number in range(SLOW_FRAMES if slow else QUICK_FRAMES):
        await answer.send(agno("RunContent", content=f"{number} "))
        if slow:
            await asyncio.sleep(1 / RATE)
    await answer.send(agno("RunCompleted", content="done"))
    await answer.end()


@dataclass
class Scene:
    """One process of each service over one server, and the runs that were started."""

    nats: NatsServer
    penstock: Deployment
    upstream: Misbehaving
    runs: dict[str, str] = field(default_factory=dict)  # message by run id
    numbers: Any = field(default_factory=itertools.count)

    async def start(self, kind: str, count: int) -> list[str]:
        started = []
        for _ in range(count):
            message = f"{kind} {next(self.numbers)}"
            run_id = await self.penstock.run("agent", message)
            self.runs[run_id] = message
            started.append(run_id)
        return started

    async def quick(self, count: int = 3) -> list[str]:
        """Start runs, and wait until clients have seen their ends."""
        started = await self.start("quick", count)
        for seen in await asyncio.gather(*map(self.penstock.all, started)):
            assert seen[-1].type == "lifecycle.completed"
        return started

    async def slow(self, count: int = 3) -> list[str]:
        """Start runs, and wait until they are under way."""
        started = await self.start("slow", count)
        for run_id in started:
            await self.penstock.until(run_id, "llm.stream")
        return started

    async def restart(self, streams: list[str], kept: Path, *, alive: bool) -> None:
        services = [] if alive else [each.service for each in self.penstock.instances]
        for instance in () if alive else tuple(self.penstock.instances):
            await self.penstock.kill(instance)
        await asyncio.to_thread(put_back, self.nats, kept, *streams)
        await asyncio.gather(*(self.penstock.start(service) for service in services))

        async def ready() -> bool:
            answers = [
                await self.penstock.http.get(f"{instance.probes}/readyz")
                for instance in self.penstock.instances
            ]
            return all(answer.is_success for answer in answers)

        await eventually(ready, 30, "all services are ready")

    async def noted(self) -> None:
        """Wait until the checkpoint has the present ends of the streams."""
        async with connected(self.nats.url) as bus:
            last = {
                stream: (await bus.api(f"STREAM.INFO.{stream}"))["state"]["last_seq"]
                for stream in losses.watched_streams(1)
            }

            async def probe() -> bool:
                entry = await bus.bucket("checkpoints").get("marks")
                marks = json.loads(entry.value) if entry is not None else {}
                return all(marks.get(stream, 0) >= last[stream] for stream in last)

            await eventually(probe, 30, "it is noted how far the streams reach")

    async def again(self, run_id: str) -> None:
        """Wait while the run's events are made again (503) or its record is missing (404)."""

        async def answered() -> bool:
            url = f"{self.penstock.edge()}/v1/runs/{run_id}/events"
            async with self.penstock.http.stream("GET", url) as answer:
                return answer.status_code not in (404, 503)

        await eventually(answered, 30, f"{run_id} is there again")

    async def check(self, run_id: str) -> str:
        """Read the run as a new client; return its status.

        The sequence numbers must be 1 to n, and the run must have one end, which the list of runs
        also has.
        """
        await self.again(run_id)
        async with asyncio.timeout(60):
            seen = await self.penstock.all(run_id)
        assert [event.sequence for event in seen] == [*range(1, len(seen) + 1)], run_id
        assert [event.type for event in seen if event.type in ENDS] == [seen[-1].type]

        async def listed() -> bool:
            status = await self.penstock.status(run_id)
            return f"lifecycle.{status}" == seen[-1].type

        await eventually(listed, 30, f"{run_id} is listed as it ended: {seen[-1].type}")
        message = self.runs[run_id]
        calls = [call for call in self.upstream.calls if call.form.get("message") == message]
        assert len(calls) <= 1, f"{message} went upstream {len(calls)} times"
        code = seen[-1].data.get("code", "")
        return f"{await self.penstock.status(run_id)} {code}".strip()

    async def are_gone(self, run_ids: list[str]) -> None:
        """Wait until the edge answers 410 for all these runs."""

        async def probe() -> bool:
            urls = [f"{self.penstock.edge()}/v1/runs/{run_id}/events" for run_id in run_ids]
            return {(await self.penstock.http.get(url)).status_code for url in urls} == {410}

        await eventually(probe, 60, "all are 410")

    async def paused(self) -> tuple[str, str]:
        """Pause a run; return its id and its approval's id."""
        (run_id,) = await self.start("delete", 1)
        *_, asked = await self.penstock.until(run_id, "lifecycle.paused")
        return run_id, str(asked.data["approval_id"])

    async def decide(self, approval_id: str, decision: str = "approve") -> int:
        """Decide when the approval exists; return the answer's status."""
        return (await self.penstock.decide(approval_id, decision)).status_code

    async def end_of(self, run_id: str) -> str:
        """Return how a run ended, with the error code if there is one."""
        async with asyncio.timeout(60):
            last = (await self.penstock.all(run_id))[-1]
        return f"{str(last.type).partition('.')[2]} {last.data.get('code', '')}".strip()

    @property
    def decisions_sent(self) -> int:
        """The number of decisions that were sent to the agent server."""
        return len([call for call in self.upstream.calls if call.path.endswith("/continue")])

    async def outcomes(self, run_ids: list[str]) -> list[str]:
        return list(await asyncio.gather(*map(self.check, run_ids)))

    async def says(self, stream: str) -> None:
        (edge,) = self.penstock.of("edge")

        async def said() -> bool:
            told = (await self.penstock.http.get(f"{edge.probes}/readyz")).json()
            return any(f"NATS has lost data: {stream} " in text for text in told.get("notices", ()))

        await eventually(said, 30, f"/readyz speaks of {stream}")
        metrics = (await self.penstock.http.get(f"{edge.probes}/metrics")).text
        (line,) = [
            line
            for line in metrics.splitlines()
            if line.startswith(f'penstock_nats_lost_messages{{service="edge",stream="{stream}"}}')
        ]
        assert float(line.rpartition(" ")[2]) > 0
        # `penstock doctor` shows the notice, too.
        arguments = ["doctor", "--json", "--nats", self.nats.url, "--probe", edge.probes]
        doctor = await asyncio.to_thread(CliRunner().invoke, app, arguments)
        findings = [json.loads(each) for each in doctor.stdout.splitlines()]
        notices = [each["text"] for each in findings if each["check"] == "notices"]
        assert any(f"NATS has lost data: {stream} " in text for text in notices), notices


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def scene(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Scene]:
    folder = tmp_path_factory.mktemp("older")
    nats = NatsServer(folder / "nats", name="older nats", on_disk=True)
    nats.start()
    settings: dict[str, Any] = {
        **{"pod_ttl_s": 4, "pod_renew_s": 0.5, "reap_s": 0.5},
        "watch_s": 1,  # the watchdog acts when it has seen a problem twice
    }
    try:
        async with misbehaving() as upstream:
            upstream.script(answers)
            agents = [{"id": "agent", "protocol": "agno", "url": upstream.url, "timeout_s": 60}]
            count = {"normalizer": 1, "approvals": 1, "connector": 1, "edge": 1}
            async with deployment(nats.url, folder, agents, count, **settings) as penstock:
                yield Scene(nats, penstock, upstream)
    finally:
        nats.remove()


async def last_id(scene: Scene, run_id: str) -> str:
    seen = await scene.penstock.all(run_id)
    assert seen[-1].id is not None
    return seen[-1].id


def both(*streams: str, short: tuple[bool, ...] = ()) -> list[Any]:
    """Return cases with running services and with restarted ones.

    The cases in `short` also run in `make test`.
    """
    name = "+".join(streams)
    return [
        pytest.param(
            list(streams),
            alive,
            id=f"{name}-{how}",
            marks=[] if alive in short else [pytest.mark.chaos],
        )
        for alive, how in ((True, "alive"), (False, "restarted"))
    ]


@pytest.mark.parametrize(
    ("older", "alive"),
    [
        *both("RAW", short=(False,)),
        *both("EVENTS"),
        *both("COMMANDS"),
        *both("KV_runs"),
        *both("KV_checkpoints"),
        *both("KV_claims", "KV_sent", "KV_sessions"),
        *both("COMMANDS", "KV_claims", "KV_sent"),
        *both("COMMANDS", "RAW"),
        *both("RAW", "EVENTS"),
    ],
)
async def test_an_older_store_under_some_streams(
    scene: Scene, older: list[str], alive: bool
) -> None:
    before = await scene.quick(2)
    kept = copied(scene.nats, *older)
    after = await scene.quick()
    cursor = await last_id(scene, after[-1])
    open_ones = await scene.slow()
    await scene.noted()

    await scene.restart(older, kept, alive=alive)

    # New runs must work at once.
    assert await scene.outcomes(await scene.start("quick", 3)) == ["completed"] * 3
    assert set(await scene.outcomes(before)) == {"completed"}
    if {"RAW", "EVENTS"} <= {*older}:
        await scene.are_gone(after)  # their source frames are lost as well
    else:
        assert set(await scene.outcomes(after)) == {"completed"}
    # If KV_claims is older and the connectors have ended, the watchdog finds the open runs.
    outcomes = set(await scene.outcomes(open_ones))
    if alive and "RAW" not in older:
        assert outcomes == {"completed"}
    elif alive:
        assert outcomes == {"failed history_lost"}
    else:
        assert outcomes <= {
            *("failed history_lost", "failed upstream_lost", "failed outcome_unknown")
        }
    for stream in older:
        if stream not in ("KV_checkpoints", "KV_sent", "KV_sessions"):
            await scene.says(stream)
    if "EVENTS" in older and "RAW" not in older:
        await refused(scene, after[-1], cursor)


async def refused(scene: Scene, run_id: str, cursor: str) -> None:
    """Check that a cursor of lost data gets a 410 with advice, at every endpoint."""
    edge, http = scene.penstock.edge(), scene.penstock.http
    session = (await http.get(f"{edge}/v1/runs/{run_id}")).json()["session_id"]
    paths = [
        *(f"/v1/runs/{run_id}/events?dialect={name}" for name in ("canonical", "unified", "agui")),
        f"/v1/sessions/{session}/events",
        "/v1/events",
    ]
    for path, accept in itertools.product(paths, ("text/event-stream", "application/json")):
        headers = {"last-event-id": cursor, "accept": accept}
        answer = await http.get(f"{edge}{path}", headers=headers)
        assert answer.status_code == 410, f"{path} {accept}: {answer.text}"
        assert "Begin again without a cursor" in json.dumps(answer.json())
    beyond = await http.get(
        f"{edge}/v1/runs/{run_id}/events", headers={"last-event-id": "99999999-0"}
    )
    assert beyond.status_code == 410


@pytest.mark.chaos
@pytest.mark.parametrize("alive", [True, False], ids=["alive", "restarted"])
async def test_a_power_cut(scene: Scene, alive: bool) -> None:
    """Every stream comes back as it was on the disk, and the streams are from two moments."""
    streams = all_streams(scene.nats)
    before = await scene.quick(2)
    first = copied(scene.nats, *streams[::2])
    await scene.quick(2)
    second = copied(scene.nats, *streams[1::2])
    for stream in streams[1::2]:
        (second / stream).rename(first / stream)
    lost = [*await scene.quick(2), *await scene.slow(2)]
    await scene.noted()

    await scene.restart(streams, first, alive=alive)

    assert await scene.outcomes(await scene.start("quick", 3)) == ["completed"] * 3
    assert set(await scene.outcomes(before)) == {"completed"}
    for run_id in lost:
        # Of some runs nothing is left, and the answer is a 404.
        with contextlib.suppress(AssertionError):
            answer = await scene.penstock.http.get(f"{scene.penstock.edge()}/v1/runs/{run_id}")
            assert answer.status_code == 404
            continue
        await scene.check(run_id)


@pytest.mark.parametrize(
    ("older", "alive"),
    [
        *both("KV_approvals"),
        *both("KV_sent"),
        *both("KV_pauses"),
        *both("KV_approvals", "KV_sent", "KV_pauses", short=(True,)),
        *both("COMMANDS", "KV_approvals", "KV_sent"),
    ],
)
async def test_an_older_store_under_what_is_kept_of_approvals(
    scene: Scene, older: list[str], alive: bool
) -> None:
    """No run waits for ever, no tool runs twice, and a decided approval stays decided."""
    sent_before = scene.decisions_sent
    decided, its_approval = await scene.paused()
    ended, withdrawn = await scene.paused()
    kept = copied(scene.nats, *older)
    assert await scene.decide(its_approval) == 200
    assert await scene.end_of(decided) == "completed"
    cancel = f"{scene.penstock.edge()}/v1/runs/{ended}/cancel"
    assert (await scene.penstock.http.post(cancel)).is_success
    assert await scene.end_of(ended) == "cancelled"
    asked, approval_id = await scene.paused()
    await scene.noted()

    await scene.restart(older, kept, alive=alive)

    assert await scene.outcomes(await scene.start("quick", 2)) == ["completed"] * 2
    # The older records have both approvals as pending, but the runs' events do not.
    url = f"{scene.penstock.approvals}/v1/approvals"
    for each, status in ((its_approval, "decided"), (withdrawn, "withdrawn")):

        async def restored(each: str = each, status: str = status) -> bool:
            shown = await scene.penstock.http.get(f"{url}/{each}")
            return shown.is_success and shown.json()["status"] == status

        await eventually(restored, 30, f"{each} is {status}")
        assert await scene.decide(each, "reject") == 409
    assert await scene.end_of(decided) == "completed"
    # The older records lack this approval, and it can still be decided.
    assert await scene.decide(approval_id) == 200
    how = await scene.end_of(asked)
    # The older store may or may not have the pause record that the agent server needs.
    assert how == "completed" or ("KV_pauses" in older and how == "failed internal")
    assert scene.decisions_sent == sent_before + (2 if how == "completed" else 1)
