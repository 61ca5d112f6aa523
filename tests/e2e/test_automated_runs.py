"""Rules over real services: a rule approves, a second one starts a run, and clients see both."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import httpx
import orjson
import pytest

from penstock.bus.records.approvals import ApprovalRecord
from penstock.settings import AgnoAgent, Config
from penstock_automations.rules.store import RuleStore
from penstock_automations.service import AutomationsService
from penstock_edge.service import EdgeService
from support.drive.automations import rule_with, user
from support.drive.pipeline import PIPELINE, Event, Pipeline, Services, pipeline
from support.real.nats import NatsServer
from support.real.upstreams import Upstream

pytestmark = pytest.mark.real

OWNER = "anonymous"  # callers of an edge without authentication


@asynccontextmanager
async def ruled(nats: NatsServer, agno: Upstream, *rules: Any) -> AsyncIterator[Pipeline]:
    """Run all services with these rules."""
    agent = AgnoAgent(id="assistant", protocol="agno", url=agno.url, agent="demo-agent")
    services: Services = (*PIPELINE, EdgeService, AutomationsService)
    async with pipeline(nats.url, Config(agents=[agent]), services) as penstock:
        store = RuleStore(penstock.bus)
        for earlier in await store.all():
            await store.delete(earlier.id)
        for each in rules:
            await store.apply(each, user(OWNER))
        for service in penstock.services:
            if isinstance(service, AutomationsService):
                await service.apply_rule_changes()
        yield penstock


async def start(http: httpx.AsyncClient, message: str) -> dict[str, Any]:
    answer = await http.post("/v1/runs", json={"agent": "assistant", "message": message})
    assert answer.status_code == 202
    record: dict[str, Any] = answer.json()
    return record


async def followed(
    http: httpx.AsyncClient, path: str, wanted: int, timeout_s: float = 30, **query: Any
) -> list[dict[str, Any]]:
    """Return the events of a stream from its beginning until so many are of automations."""
    found: list[dict[str, Any]] = []
    async with (
        asyncio.timeout(timeout_s),
        http.stream("GET", path, params=query, headers={"accept": "text/event-stream"}) as stream,
    ):
        async for line in stream.aiter_lines():
            if line.startswith("data: "):
                found.append(orjson.loads(line.removeprefix("data: ")))
                if b"automation" in line.encode():
                    wanted -= 1
            if wanted == 0:
                break
    return found


GATE = rule_with(
    "gate",
    {"decide": {"decision": "approve", "note": "by rule"}},
    "approval.requested",
    name="ApproveNotes",
)
NEXT = rule_with(
    "next",
    {
        "run": {
            "agent": "assistant",
            "message": "text after {{ event.run_id }}",
            "session_id": "{{ event.session_id }}-next",
        }
    },
    "lifecycle.completed",
    name="FollowUp",
)


async def test_rules_approve_and_start_a_run_and_the_unified_stream_says_so(
    nats_server: NatsServer, agno_server: Upstream
) -> None:
    title = f"note-{uuid.uuid4()}"
    async with ruled(nats_server, agno_server, GATE, NEXT) as penstock:
        http = penstock.http
        parent = await start(http, f"confirm {title}")
        path = f"/v1/sessions/{parent['session_id']}/events"
        events = await followed(http, path, 4, dialect="unified")
        said = [each for each in events if each["type"].startswith("automation_")]
        [outcome] = [
            each
            for each in await penstock.events_until(parent["run_id"], is_outcome_of("next"))
            if is_outcome_of("next")(each)
        ]
        child = str(outcome.data["started_run_id"])
        shown = (await http.get(f"/v1/runs/{parent['run_id']}")).json()["deliveries"]
        assert [(each["automation"], each["status"]) for each in shown] == [
            ("gate", "delivered"),
            ("next", "delivered"),  # its outcome came after the run's end
        ]
        assert shown[1]["started_run_id"] == child
        approval_id = next(
            each.data["approval_id"]
            for each in await penstock.events_until(parent["run_id"], "approval.requested")
            if each.type == "approval.requested"
        )
        assert [(each["type"], each["payload"]) for each in said] == [
            (
                "automation_triggered",
                payload(parent, workflow="ApproveNotes", trigger="approval.requested"),
            ),
            (
                "automation_completed",
                payload(parent, workflow="ApproveNotes", result=f"approved approval {approval_id}"),
            ),
            (
                "automation_triggered",
                payload(parent, workflow="FollowUp", trigger="lifecycle.completed"),
            ),
            (
                "automation_completed",
                payload(
                    parent,
                    workflow="FollowUp",
                    result=f"started run {child} of agent assistant",
                ),
            ),
        ]
        decided = (await http.get(f"/v1/approvals/{approval_id}")).json()
        decision = ApprovalRecord.model_validate(decided).decision
        assert decision is not None
        assert (decision.by, decision.note) == ("automation gate", "by rule")
        assert [each["args"] for each in agno_server.tool_runs()].count({"title": title}) == 1
        # The rule's run is a run as every other one, and names the run that led to it.
        bodies = [each.body for each in await penstock.ended(child)]
        assert bodies[-1]["event"]["action"] == "completed"
        assert {each["parent_run_id"] for each in bodies} == {parent["run_id"]}
        shown = (await http.get(f"/v1/runs/{child}")).json()
        assert shown["session_id"] == f"{parent['session_id']}-next"
        assert (shown["automations"], shown["depth"]) == (["next"], 1)
        assert shown["message"] == f"text after {parent['run_id']}"


def is_outcome_of(rule_id: str) -> Callable[[Event], bool]:
    def probe(event: Event) -> bool:
        return event.type == "automation.completed" and event.data["automation"] == rule_id

    return probe


def payload(run: dict[str, Any], **fields: str) -> dict[str, str]:
    return {"run_id": run["run_id"], **fields}


BESIDE = rule_with(
    "beside",
    {"run": {"agent": "assistant", "message": "text", "session_id": "of {{ event.run_id }}"}},
    "lifecycle.started",
    name="RunBeside",
)


async def test_a_rule_that_acts_during_a_run_is_in_the_runs_stream(
    nats_server: NatsServer, agno_server: Upstream
) -> None:
    """Agno's and ADK's documents have no event for a rule."""
    async with ruled(nats_server, agno_server, BESIDE) as penstock:
        run = await start(penstock.http, "slow")
        await penstock.events_until(run["run_id"], "automation.completed")
        assert (await penstock.http.post(f"/v1/runs/{run['run_id']}/cancel")).is_success
        path = f"/v1/runs/{run['run_id']}/events"
        shown = {}
        for dialect in ("canonical", "unified", "executions", "agui", "agno", "adk"):
            events = await followed(penstock.http, path, -1, dialect=dialect)
            shown[dialect] = [each for each in events if "RunBeside" in str(each)]
        numbers = {dialect: len(events) for dialect, events in shown.items()}
        told = dict.fromkeys(("canonical", "unified", "executions", "agui"), 2)
        assert numbers == {**told, "agno": 0, "adk": 0}
        assert [each["name"] for each in shown["agui"]] == [
            "penstock.automation.triggered",
            "penstock.automation.completed",
        ]


async def test_a_rule_that_fails_is_a_completed_automation_that_says_so(
    nats_server: NatsServer, agno_server: Upstream
) -> None:
    unfillable = {"run": {"agent": "assistant", "message": "{{ event.data.metrics.nope }}"}}
    rule = rule_with("broken", unfillable, "lifecycle.completed", name="Broken")
    async with ruled(nats_server, agno_server, rule) as penstock:
        run = await start(penstock.http, "text")
        path = f"/v1/sessions/{run['session_id']}/events"
        *_, failed = await followed(penstock.http, path, 2, dialect="unified")
        assert failed["type"] == "automation_completed"
        result = failed["payload"]["result"]
        assert result.startswith("failed")
        assert "the data has no event.data.metrics.nope" in result
