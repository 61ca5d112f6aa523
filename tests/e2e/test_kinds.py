"""Every kind of pause of the real agent servers, ended in every way.

`support.kinds.table` has the kinds, `support.kinds.ways` has the ways and what each must do.
docs/approvals.md says what is shown by which server.
"""

from __future__ import annotations

import json
import logging
from collections.abc import AsyncIterator

import pytest

from penstock.bus.read import direct
from penstock.settings import Config
from support.drive.pipeline import PIPELINE, Pipeline, pipeline
from support.fakes.policies import written
from support.kinds.table import ADK, AGNO, AGUI, AUTH, SECRET, Row, Server, agents
from support.kinds.ways import POLICY, WAYS, every, paused
from support.real.nats import NatsServer
from support.real.upstreams import Upstream

pytestmark = [pytest.mark.real, pytest.mark.asyncio(loop_scope="module")]

Servers = dict[Server, Upstream]


def of_each_kind(rows: list[Row]) -> list[Row]:
    """Return the first row of each kind, or of each group of kinds that are asked for together."""
    return list({row.kinds: row for row in reversed(rows)}.values())


# `make test` tries all rows in these ways, and one row of each kind in the other ways.
ALL_ROWS = ("approved",)
ROWS = {"agno": AGNO, "adk": ADK, "agui": AGUI}
CASES = [
    pytest.param(rows if way in ALL_ROWS else of_each_kind(rows), way, id=f"{name}-{way}")
    for way in WAYS
    for name, rows in ROWS.items()
] + [
    pytest.param(rows, way, id=f"{name}-{way}-all", marks=pytest.mark.chaos)
    for way in WAYS
    if way not in ALL_ROWS
    for name, rows in ROWS.items()
]


@pytest.fixture(scope="module")
def servers(
    agno_server: Upstream,
    adk_server: Upstream,
    pydantic_ai_server: Upstream,
    agno_agui_server: Upstream,
    langgraph_server: Upstream,
) -> Servers:
    return {
        "agno": agno_server,
        "adk": adk_server,
        "pydantic_ai": pydantic_ai_server,
        "agno_agui": agno_agui_server,
        "langgraph": langgraph_server,
    }


@pytest.fixture(scope="module")
async def penstock(
    nats_server: NatsServer, servers: Servers, tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[Pipeline]:
    policy = written(tmp_path_factory.mktemp("kinds"), POLICY)
    config = Config.model_validate({"agents": agents(servers)})
    given = {"policy": policy, "audit_details": True, "outbox_s": 0.2}
    async with pipeline(nats_server.url, config, PIPELINE, **given) as penstock:
        yield penstock


@pytest.mark.parametrize(("rows", "way"), CASES)
async def test_each_kind_ends_in_each_way(
    penstock: Pipeline, servers: Servers, rows: list[Row], way: str
) -> None:
    await every(penstock, rows, servers, way)


@pytest.mark.parametrize("agent", ["adk", "adk-resumable"])
async def test_a_credential_is_sent_and_shown_nowhere(
    penstock: Pipeline, adk_server: Upstream, caplog: pytest.LogCaptureFixture, agent: str
) -> None:
    caplog.set_level(logging.DEBUG)
    row = next(row for row in ADK if (row.agent, row.message) == (agent, "needauth"))
    trial = await paused(penstock, row, adk_server, "plain")
    approval = trial.approval
    path = f"/v1/approvals/{approval.approval_id}"
    body = {
        "items": [{"item_id": approval.items[0]["item_id"], "decision": "approve", "value": AUTH}],
        "digest": approval.digest,
    }
    after = await penstock.http.get("/v1/approvals/events", headers={"accept": "application/json"})
    decided = await penstock.http.post(f"{path}/decision", json=body)
    assert decided.status_code == 200, decided.text
    events = await penstock.ended(approval.run_id, 30)
    assert "authorized" in json.dumps([event.data for event in events])  # the server has got it
    audit = json.dumps(await trial.audited("requested", "decided", "sent", ran=row.ran))
    cursor = after.json()["next"]
    accept = {"accept": "application/json"}
    shown = {
        "the answer": decided.text,
        "the record": (await penstock.http.get(path)).text,
        "the list": (await penstock.http.get("/v1/approvals?limit=1000")).text,
        "the live changes": (
            await penstock.http.get(f"/v1/approvals/events?after={cursor}", headers=accept)
        ).text,
        "the audit": audit,
        "the audit over HTTP": (await penstock.http.get(f"{path}/audit")).text,
        "the events": json.dumps([event.body for event in events]),
        "the log": caplog.text,
    }
    assert [name for name, text in shown.items() if SECRET in text] == []
    approvals = [each async for each in direct.replay(penstock.bus, "RAW", "rawp.*.*.approvals")]
    assert not any(SECRET.encode() in each.payload for each in approvals)
