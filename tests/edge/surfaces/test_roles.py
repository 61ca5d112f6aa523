"""The record of a run has the roles of its user, on whatever surface the run is started."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import pytest
import pytest_asyncio

from penstock.bus.records.runs import RunRecord
from support.drive.secured import Secured, bearer, secured
from support.real.nats import NatsServer

pytestmark = pytest.mark.asyncio(loop_scope="module")

ADK = {
    "appName": "assistant",
    "userId": "alice",
    "sessionId": "s-roles",
    "newMessage": {"role": "user", "parts": [{"text": "Hello"}]},
}
AGUI: dict[str, Any] = {
    "threadId": "t-roles",
    "runId": "r-roles",
    "messages": [{"id": "m1", "role": "user", "content": "Hello"}],
    "tools": [],
    "context": [],
    "state": {},
    "forwardedProps": {},
}
STARTS: dict[str, dict[str, Any]] = {
    "/v1/runs": {"json": {"agent": "assistant", "message": "Hello"}},
    "/api/service/v1/executions/trigger": {"json": {"topologyId": 123, "userMessage": "Hello"}},
    "/run_sse": {"json": ADK},
    "/agents/assistant/runs": {"data": {"message": "Hello"}},
    "/agui/assistant": {"json": AGUI},
}


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def penstock(nats_server: NatsServer) -> AsyncIterator[Secured]:
    async with secured(nats_server.url) as running:
        yield running


async def record(penstock: Secured, run_id: str) -> RunRecord:
    entry = await penstock.bus.bucket("runs").get(run_id)
    assert entry is not None
    return RunRecord.model_validate_json(entry.value or b"")


async def started(penstock: Secured, path: str, headers: dict[str, str]) -> str:
    """Start a run; return the run's id."""
    request = STARTS[path]
    async with penstock.http.stream("POST", path, headers=headers, **request) as answer:
        if "penstock-run-id" in answer.headers:
            return answer.headers["penstock-run-id"]
        await answer.aread()
        return str(answer.json()["run_id"])


@pytest.mark.parametrize("path", STARTS)
async def test_a_run_has_the_roles_of_the_user_who_starts_it(penstock: Secured, path: str) -> None:
    headers = bearer(roles=["finance", "audit"], scope="start read raw")
    found = await record(penstock, await started(penstock, path, headers))
    assert (found.user_id, found.roles) == ("alice", ["audit", "finance"])


async def test_a_run_that_is_started_for_another_user_has_no_roles(penstock: Secured) -> None:
    headers = bearer("bob", roles=["finance"], scope="start read raw act-as")
    found = await record(penstock, await started(penstock, "/run_sse", headers))
    assert (found.user_id, found.roles) == ("alice", None)
