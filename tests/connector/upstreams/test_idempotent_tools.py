"""The tools of docs/idempotent-tools.md act once in each leg, at the real agent servers."""

from __future__ import annotations

import re
import uuid

import pytest

from penstock.settings import Config
from penstock_connector.service import ConnectorService
from support.drive.pipeline import PIPELINE, Services, pipeline
from support.drive.repository import ROOT
from support.drive.short import in_short
from support.real.nats import NatsServer
from support.real.upstreams import Upstream

pytestmark = pytest.mark.real

TWO: Services = (*PIPELINE, ConnectorService)
CODE = ("agno/payments.py", "adk/agents/penstock_payments.py")


def test_the_document_has_the_code_that_the_servers_run() -> None:
    document = (ROOT / "docs" / "idempotent-tools.md").read_text()
    blocks = re.findall(r"```python\n(.*?)```", document, re.DOTALL)
    assert blocks == [(ROOT / "tests" / "upstreams" / path).read_text() for path in CODE]


@pytest.mark.parametrize(
    ("protocol", "agent"),
    in_short([("agno", "demo-agent"), ("adk", "demo")], [("agno", "demo-agent")]),
)
async def test_a_tool_acts_once_in_a_leg_and_again_in_the_next_run(
    nats_server: NatsServer,
    agno_server: Upstream,
    adk_server: Upstream,
    protocol: str,
    agent: str,
) -> None:
    server = {"agno": agno_server, "adk": adk_server}[protocol]
    given = {"id": "a", "protocol": protocol, "url": server.url, "agent": agent}
    config = Config.model_validate({"agents": [given]})
    to = uuid.uuid4().hex[:8]
    async with pipeline(nats_server.url, config, TWO) as penstock:
        payments = []
        for _ in range(2):
            events = await penstock.ended(await penstock.start_run("a", f"pay {to}"))
            results = [each.data for each in events if each.type == "llm.tool_result"]
            assert len(results) >= 2, "the model has called the tool more than once"
            payments.append({str(each["result"]) for each in results})
            assert "idempotency_key" not in "".join(str(each.data) for each in events)
        first, second = payments
        assert len(first) == len(second) == 1, "the repeated calls had no effect"
        assert first != second, "another run has another key"
        # A leg that carries a decision has the key of its own number.
        session = uuid.uuid4().hex
        run_id = await penstock.start_run("a", f"confirm {to}", session_id=session)
        *_, paused = await penstock.events_until(run_id, "lifecycle.paused")
        await penstock.decide(paused.data["approval_id"])
        await penstock.ended(run_id)
    assert [run["key"] for run in server.tool_runs() if run["session"] == session] == [
        f"{run_id}-2"
    ]
