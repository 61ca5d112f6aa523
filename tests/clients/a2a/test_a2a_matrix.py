"""The official client over each upstream and interface: text, tools, approvals, error, cancel."""

from __future__ import annotations

import uuid
from collections.abc import AsyncIterator
from typing import Any

import pytest
import pytest_asyncio

from e2e.test_matrix import SCENARIOS, WORDS, penstock
from support.drive.pipeline import Pipeline
from support.real.a2a_client import INTERFACES, Official, events_of, normal, official

pytestmark = [pytest.mark.chaos, pytest.mark.asyncio(loop_scope="module"), pytest.mark.timeout(600)]

__all__ = ["penstock"]  # the fixture, with all upstreams
ENDS = {"completed": "COMPLETED", "failed": "FAILED", "cancelled": "CANCELED"}
DECISIONS = {"approved": "approve", "rejected": "reject"}


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def client(penstock: Pipeline) -> AsyncIterator[Official]:
    async with official(str(penstock.http.base_url)) as running:
        yield running


def said(*parts: dict[str, Any], **fields: Any) -> dict[str, Any]:
    message = {"messageId": uuid.uuid4().hex, "role": "ROLE_USER", "parts": [*parts]}
    return {"message": {**message, **fields}}


@pytest.mark.parametrize("interface", INTERFACES, ids=" ".join)
@pytest.mark.parametrize(
    ("upstream", "name"),
    [(upstream, name) for upstream, words in WORDS.items() for name in words],
)
async def test_the_official_client_has_the_whole_task(
    client: Official, upstream: str, name: str, interface: tuple[str, str]
) -> None:
    agent, words = WORDS[upstream][name]
    at: dict[str, Any] = {"agent": agent, "interface": interface}
    text = {"text": f"{words} {uuid.uuid4().hex[:8]}"}
    if name == "cancel":
        asked = await client.call("send_message", said(text), cut=3, **at)
        task = await client.call("cancel_task", {"id": asked["id"]}, **at)
    else:
        task = await client.call("send_message", said(text), **at)
    if name in DECISIONS:
        assert task["status"]["state"] == "TASK_STATE_INPUT_REQUIRED", task
        asks = [each["data"] for each in events_of(task) if each["type"] == "approval.requested"]
        [ask] = {each["approval_id"]: each for each in asks}.values()
        keys = ("approval_id", "digest")
        part = {"data": {**{key: ask[key] for key in keys}, "decision": DECISIONS[name]}}
        task = await client.call("send_message", said(part, taskId=task["id"]), **at)
    assert task["status"]["state"] == f"TASK_STATE_{ENDS[SCENARIOS[name].ends]}", task
    shows = [each["type"] for each in events_of(task)]
    expected = SCENARIOS[name].shows
    if not expected.startswith(("lifecycle.", "llm.stream", "llm.message")):
        assert expected in shows
    assert normal(await client.call("get_task", {"id": task["id"]}, **at)) == normal(task)
