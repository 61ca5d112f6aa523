"""Penstock with each kind of agent, and a workflow of Penstock for each scenario."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Mapping
from typing import Any, Final

import pytest_asyncio

from e2e.test_matrix import WORDS, agents
from penstock import sse
from penstock.settings import Config
from penstock_edge.service import EdgeService
from penstock_workflows.service import WorkflowsService
from support.drive.pipeline import PIPELINE, Event, Pipeline, Services, pipeline
from support.drive.workflows import define
from support.real.nats import NatsServer
from support.real.upstreams import Upstream

# The agent and the message of the one step of each workflow.
STEPS: Final[Mapping[str, tuple[str, str]]] = {
    "text": ("assistant", "text"),
    "tools": ("assistant", "tools"),
    "reasoning": ("assistant", "reason"),
    "sub-agents": ("team", "delegate2"),
    "error": ("assistant", "failmid"),
    "cancel": ("assistant", "slow"),
}
# Maps each kind of agent and scenario to the agent and the message. `elsewhere` is an approval that
# another person decides. The tools of a team are its sub-agents.
AGENTS: Final[Mapping[str, Mapping[str, tuple[str, str]]]] = {
    **{
        kind: {**words, **({"elsewhere": words["approved"]} if "approved" in words else {})}
        for kind, words in WORDS.items()
    },
    "workflow": {
        **{each: (f"flow-{each}", "go") for each in STEPS},
        **dict.fromkeys(("approved", "rejected", "elsewhere"), ("flow-approval", "go")),
    },
}


def _definitions() -> list[dict[str, Any]]:
    steps: dict[str, dict[str, Any]] = {
        f"flow-{name}": {"work": {"run": {"agent": agent, "message": json.dumps(message)}}}
        for name, (agent, message) in STEPS.items()
    }
    steps["flow-approval"] = {
        "sign_off": {"approve": {"title": '"Merge?"', "show": '{"score": 82}'}},
        "report": {"needs": ["sign_off"], **steps["flow-text"]["work"]},
    }
    return [
        {"dsl": "penstock/1", "name": name, "version": "1", "steps": each}
        for name, each in steps.items()
    ]


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def penstock(
    nats_server: NatsServer,
    agno_server: Upstream,
    adk_server: Upstream,
    pydantic_ai_server: Upstream,
    agno_agui_server: Upstream,
) -> AsyncIterator[Pipeline]:
    definitions = _definitions()
    flows = [{"id": each["name"], "protocol": "workflow"} for each in definitions]
    known = agents(agno_server, adk_server, pydantic_ai_server, agno_agui_server)
    config = Config.model_validate({"agents": [*known, *flows]})
    services: Services = (*PIPELINE, WorkflowsService, EdgeService)
    async with pipeline(nats_server.url, config, services) as running:
        for each in definitions:
            await define(running.bus, each)
        yield running


async def decided_elsewhere(penstock: Pipeline, run_id: str) -> None:
    """Approve what the run waits for, as another person does."""
    [*_, asked] = await penstock.events_until(run_id, "approval.requested")
    reply = await penstock.decide(asked.data["approval_id"], "approve")
    assert reply.status == 200, reply.detail


async def events_of_run(penstock: Pipeline, run_id: str) -> list[Event]:
    """Return all events of a run that has ended, also of the runs of a workflow's steps."""
    path = f"/v1/runs/{run_id}/events"
    answer = await penstock.http.get(path, params={"include": "children"}, timeout=30)
    assert answer.status_code == 200, answer.text
    bodies = [json.loads(frame.data) for frame in sse.Parser().feed(answer.content)]
    return [
        Event(
            "{category}.{action}".format(**body["event"]),
            body["sequence"],
            body.get("leg", 1),
            body["data"],
            body,
            {},
        )
        for body in bodies
        if "event" in body
    ]
