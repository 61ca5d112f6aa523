"""The connector of a fork is killed: the fork begins once, and its first run stays as it was."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from signal import SIGKILL
from typing import Any

import httpx
import pytest

from penstock.settings import Config
from penstock_approvals.service import ApprovalsService
from penstock_connector.service import ConnectorService
from penstock_edge.service import EdgeService
from penstock_normalizer.service import NormalizerService
from support.drive.pipeline import Event, Pipeline, Services, new_run_id, pipeline
from support.drive.steps import Step
from support.drive.waiting import eventually
from support.real.connectors import FAST, Hurt, connector_process
from support.real.nats import NatsServer
from support.real.upstreams import Upstream

pytestmark = [pytest.mark.chaos, pytest.mark.real]

WITHOUT_CONNECTOR: Services = (NormalizerService, ApprovalsService, EdgeService)
PEER: Services = (ConnectorService,)
SOON: dict[str, Any] = {"ack_wait_s": 1}

# The writes around which the connector is killed. Whether the server was called is known before
# the `open`, and after the first bytes of the answer.
KILLS = {
    "claimed": Hurt(Step.CLAIM, "after"),
    "noted": Hurt(Step.NOTE, "after"),
    "queued": Hurt(Step.JOIN, "after"),
    "before the open": Hurt(Step.OPEN),
    "opened": Hurt(Step.OPEN, "after"),
    "sent": Hurt(Step.BYTES),
    "answered": Hurt(Step.BYTES, "after"),
    "before the end": Hurt(Step.END),
}
NOT_BEGUN = {"claimed", "noted", "queued", "before the open"}


@dataclass(frozen=True, slots=True)
class Kind:
    """A kind of agent server: what a fork says for a short answer, and for one that takes
    seconds."""

    server: str  # the fixture
    agent: dict[str, Any]
    short: str
    long: str
    continues: bool = False  # whether another connector can go on with a part of the answer
    says_end: bool = True  # whether the last frame shows that the answer is whole


KINDS = {
    "agno": Kind("agno_server", {"protocol": "agno", "agent": "demo-agent"}, "text", "slow"),
    "adk": Kind(
        "adk_server",
        {"protocol": "adk", "agent": "resumable", "resumable": True},
        "plain hi",
        "slow 40 50",
        continues=True,
        says_end=False,
    ),
    # The path of the server says how it answers: `/text` or `/slow`.
    "agui": Kind("pydantic_ai_server", {"protocol": "agui"}, "text", "slow"),
}


def configured(name: str, server: Upstream, says: str) -> Config:
    agent = {"id": "forked", "url": server.url, **KINDS[name].agent}
    if name == "agui":
        agent["url"] += f"/{says}"
    return Config.model_validate({"agents": [agent]})


async def ended_run(penstock: Pipeline, says: str) -> list[Event]:
    """Run the agent to its end; one whose every answer takes long is cancelled."""
    body = {"agent": "forked", "message": says}
    run_id = (await penstock.http.post("/v1/runs", json=body)).json()["run_id"]
    if says == "slow":
        await penstock.events_until(run_id, "llm.stream")
        await penstock.cancel(run_id, by="anonymous")
    events = await penstock.ended(run_id)
    await penstock.record(run_id, events[-1].type.removeprefix("lifecycle."))
    return events


async def fork(penstock: Pipeline, run_id: str, key: str, **body: Any) -> httpx.Response:
    body |= {"idempotency_key": key}
    answer = await penstock.http.post(f"/v1/runs/{run_id}/fork", json=body)
    assert answer.is_success, answer.text
    return answer


async def begun(name: str, server: Upstream, first: Event, session_id: str, says: str) -> int:
    """Return how often the server was asked to begin a fork of the run."""
    if name == "adk":
        path = f"/apps/resumable/users/anonymous/sessions/{session_id}"
        async with httpx.AsyncClient() as http:
            session = (await http.get(f"{server.url}{path}")).json()
        said = [event for event in session.get("events", ()) if event["author"] == "user"]
        return [event["content"]["parts"][0].get("text") for event in said[1:]].count(says)
    asked = f'"POST /{says} '
    if name == "agno":
        asked = f'"POST /agents/demo-agent/runs/{first.body["run_id"]}/continue '
    return server.log.read_text().count(asked)


async def nobody_holds(penstock: Pipeline, run_id: str) -> None:
    async def probe() -> bool:
        return not await penstock.bus.bucket("claims").keys(f"active.*.{run_id}")

    await eventually(probe, what="that nobody holds the run")


@pytest.mark.parametrize("kill", KILLS)
@pytest.mark.parametrize("name", KINDS)
async def test_a_fork_whose_connector_is_killed_begins_at_most_once_and_ends_once(
    nats_server: NatsServer,
    tmp_path: Path,
    request: pytest.FixtureRequest,
    name: str,
    kill: str,
) -> None:
    kind = KINDS[name]
    server: Upstream = request.getfixturevalue(kind.server)
    says = kind.long if kill == "answered" else kind.short
    config, key = configured(name, server, says), new_run_id()
    async with pipeline(nats_server.url, config, WITHOUT_CONNECTOR) as penstock:
        async with pipeline(nats_server.url, config, PEER, **FAST, **SOON):
            first = await ended_run(penstock, says if name == "agui" else kind.short)
        run_id = first[0].body["run_id"]
        before = await begun(name, server, first[0], "none", says)
        async with connector_process(penstock.bus, config, tmp_path, KILLS[kill], **SOON) as victim:
            forked = (await fork(penstock, run_id, key, message=says)).json()
            assert await victim.died() == -SIGKILL
        # A client that asks again gets the same fork.
        again = await fork(penstock, run_id, key, message=says)
        assert (again.status_code, again.json()["run_id"]) == (200, forked["run_id"])
        async with pipeline(nats_server.url, config, PEER, **FAST, **SOON):
            events = await penstock.ended(forked["run_id"])
            await nobody_holds(penstock, forked["run_id"])
        asked = await begun(name, server, first[0], forked["session_id"], says) - before
        stays = await penstock.ended(run_id)
    last = events[-1]
    assert [event.sequence for event in events] == list(range(1, len(events) + 1))
    assert events[0].data["forked_from"] == forked["forked_from"]
    assert [event.body for event in stays] == [event.body for event in first]
    completes = {"answered": kind.continues, "before the end": kind.says_end}
    if completes.get(kill, kill in NOT_BEGUN):
        assert (last.type, asked) == ("lifecycle.completed", 1), last.data
    else:
        code = "upstream_lost" if kill in completes else "outcome_unknown"
        assert (last.data.get("code"), asked) == (code, int(kill != "opened")), last.data


async def test_a_fork_that_waits_for_a_person_outlives_its_connector(
    nats_server: NatsServer, agno_server: Upstream, tmp_path: Path
) -> None:
    config, title = configured("agno", agno_server, "text"), new_run_id()

    async def allowed(run_id: str) -> list[Event]:
        *_, paused = await penstock.events_until(run_id, "lifecycle.paused")
        await penstock.decide(paused.data["approval_id"])
        return await penstock.ended(run_id)

    async with pipeline(nats_server.url, config, WITHOUT_CONNECTOR) as penstock:
        async with connector_process(penstock.bus, config, tmp_path) as victim:
            body = {"agent": "forked", "message": f"confirm {title}"}
            run_id = (await penstock.http.post("/v1/runs", json=body)).json()["run_id"]
            first = await allowed(run_id)
            [result] = [each for each in first if each.type == "llm.tool_result"]
            await penstock.record(run_id, "completed")
            answer = await fork(penstock, run_id, new_run_id(), sequence=result.sequence - 1)
            forked = answer.json()["run_id"]
            await penstock.events_until(forked, "lifecycle.paused")
            await victim.kill()
        async with pipeline(nats_server.url, config, PEER, **FAST):
            events = await allowed(forked)
    assert events[-1].type == "lifecycle.completed", events[-1].data
    assert [event.sequence for event in events] == list(range(1, len(events) + 1))
    runs = [run for run in agno_server.tool_runs() if run["args"].get("title") == title]
    assert len(runs) == 2, "once in the first run, and once in the fork"
