"""Clients of agent protocols answer the approvals of a workflow's run, also several at once."""

from __future__ import annotations

import json
from typing import Any

import orjson
import pytest

from e2e.workflows.conftest import Flows
from penstock import sse
from penstock_conformance.protocols import agui_rules

pytestmark = [pytest.mark.real, pytest.mark.asyncio(loop_scope="session")]


async def agui(flows: Flows, thread: str, run: str, *answers: dict[str, Any]) -> dict[str, Any]:
    """Send a request of an AG-UI client; return the last event of its run."""
    body = {
        **{"threadId": thread, "runId": run, "protocolVersion": "1.0", "state": {}, "tools": []},
        **{"context": [], "forwardedProps": {}},
        "messages": [{"id": "m1", "role": "user", "content": "go"}],
        **({"resume": list(answers)} if answers else {}),
    }
    answer = await flows.penstock.http.post(f"{flows.penstock.edge()}/agui/two_ask", json=body)
    assert answer.status_code == 200, answer.text
    events = [
        json.loads(line.removeprefix("data:"))
        for line in answer.text.splitlines()
        if line.startswith("data:")
    ]
    assert agui_rules.faults(events) == []
    last: dict[str, Any] = events[-1]
    return last


async def test_an_agui_client_gets_the_output_of_a_workflow_as_a_message(flows: Flows) -> None:
    body = {
        **{"threadId": "output", "runId": "r1", "state": {}, "tools": [], "context": []},
        **{"messages": [{"id": "m1", "role": "user", "content": "go"}], "forwardedProps": {}},
    }
    answer = await flows.penstock.http.post(f"{flows.penstock.edge()}/agui/condition", json=body)
    events = [orjson.loads(frame.data) for frame in sse.Parser().feed(answer.content)]
    assert agui_rules.faults(events) == []
    told = [each["delta"] for each in events if each["type"] == "TEXT_MESSAGE_CONTENT"]
    assert told == ["low skipped"]


def interrupts(finished: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """Return the interrupts of a run's end by the tool that they are about."""
    outcome = finished.get("outcome") or {}
    return {each["metadata"]["penstock"]["tool"]: each for each in outcome.get("interrupts", ())}


def yes(interrupt: dict[str, Any]) -> dict[str, Any]:
    return {"interruptId": interrupt["id"], "status": "resolved", "payload": {"approved": True}}


async def test_an_agui_client_answers_two_approvals_one_after_the_other(flows: Flows) -> None:
    asked = interrupts(await agui(flows, "two", "r1"))
    assert asked.keys() == {"sign_off", "create_document"}
    left = interrupts(await agui(flows, "two", "r2", yes(asked["create_document"])))
    assert left.keys() == {"sign_off"}
    assert left["sign_off"]["id"] == asked["sign_off"]["id"]
    finished = await agui(flows, "two", "r3", yes(left["sign_off"]))
    assert finished["type"] == "RUN_FINISHED"
    assert interrupts(finished) == {}


async def test_an_agui_client_answers_two_approvals_at_once(flows: Flows) -> None:
    asked = interrupts(await agui(flows, "both", "r1"))
    finished = await agui(flows, "both", "r2", *map(yes, asked.values()))
    assert finished["type"] == "RUN_FINISHED"
    assert interrupts(finished) == {}
