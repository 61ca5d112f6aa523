"""Each version of the AI SDK's client answers each kind of pause by its own functions."""

from __future__ import annotations

import json
import uuid
from collections.abc import AsyncIterator

import pytest
import pytest_asyncio

from e2e.test_kinds import servers
from e2e.test_vercel_matrix import answered, begin, client
from penstock.settings import Config
from penstock_edge.service import EdgeService
from support.drive.pipeline import PIPELINE, Pipeline, pipeline
from support.kinds.table import ADK, AGNO, AGUI, Row, Server, agents, named
from support.real.nats import NatsServer
from support.real.upstreams import Upstream
from support.real.vercel_client import Chat, answer_of, parts

pytestmark = [
    pytest.mark.real,
    pytest.mark.chaos,
    pytest.mark.timeout(600),
    pytest.mark.asyncio(loop_scope="module"),
]

__all__ = ["client", "servers"]  # the fixtures
# A tool of the frontend is given with a run, which a chat cannot do.
KINDS = [row for row in (*AGNO, *ADK, *AGUI) if not row.tools]


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def penstock(
    nats_server: NatsServer, servers: dict[Server, Upstream]
) -> AsyncIterator[Pipeline]:
    config = Config.model_validate({"agents": agents(servers)})
    async with pipeline(nats_server.url, config, (*PIPELINE, EdgeService)) as running:
        yield running


@pytest.mark.parametrize("row", KINDS, ids=lambda row: row.id)
async def test_each_version_answers_each_kind_of_pause(
    client: Chat, penstock: Pipeline, servers: dict[Server, Upstream], row: Row
) -> None:
    mark = uuid.uuid4().hex
    await begin(client, penstock, row.agent)
    state = await client("send", text=row.message.replace("{}", mark))
    run_id = answer_of(state)["id"]
    assert answer_of(state)["metadata"]["status"] == "waiting", state
    state = await answered(client, state, "approve", named(row.value, mark))
    events = await penstock.ended(run_id, 40)
    assert events[-1].type == "lifecycle.completed", events[-1].data
    assert (state["status"], state["errors"]) == ("ready", [])
    assert answer_of(state)["metadata"]["status"] == "completed"
    assert all(each["state"] == "output-available" for each in parts(state, "dynamic-tool"))
    if "{}" in row.message:
        ran = [each for each in servers[row.server].tool_runs() if mark in json.dumps(each)]
        assert [each["tool"] for each in ran] == [tool for tool, _ in row.runs]
