"""The tools of docs/idempotent-tools.md act once in each leg, at the real agent servers."""

from __future__ import annotations

import re
import uuid
from contextlib import AbstractAsyncContextManager
from pathlib import Path

import pytest

from penstock.settings import Config
from penstock_approvals.service import ApprovalsService
from penstock_connector.service import ConnectorService
from penstock_normalizer.service import NormalizerService
from support.drive.pipeline import PIPELINE, Event, Pipeline, Services, pipeline
from support.drive.repository import ROOT
from support.drive.short import in_short
from support.drive.steps import Step
from support.real.connectors import ConnectorProcess, Hurt, connector_process
from support.real.nats import NatsServer
from support.real.upstreams import Upstream

pytestmark = pytest.mark.real

TWO: Services = (*PIPELINE, ConnectorService)
WITHOUT_CONNECTOR: Services = (NormalizerService, ApprovalsService)
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


@pytest.mark.chaos
@pytest.mark.timeout(300)
@pytest.mark.parametrize(
    ("protocol", "agent", "message", "asks"),
    [("agno", "demo-agent", "confirmtwice", 2), ("adk", "demo", "confirm", 1)],
)
async def test_a_leg_has_the_same_key_when_connectors_die_before_they_send_it(
    nats_server: NatsServer,
    agno_server: Upstream,
    adk_server: Upstream,
    tmp_path: Path,
    protocol: str,
    agent: str,
    message: str,
    asks: int,
) -> None:
    server = {"agno": agno_server, "adk": adk_server}[protocol]
    given = {"id": "a", "protocol": protocol, "url": server.url, "agent": agent}
    config = Config.model_validate({"agents": [given]})
    session = uuid.uuid4().hex
    async with pipeline(nats_server.url, config, WITHOUT_CONNECTOR) as penstock:

        def connector(hurt: Hurt | None) -> AbstractAsyncContextManager[ConnectorProcess]:
            return connector_process(penstock.bus, config, tmp_path, hurt, ack_wait_s=1)

        async with connector(Hurt(Step.CLAIM)) as victim:
            run_id = await penstock.start_run("a", message, session_id=session)
            await victim.died()
        for leg in range(1, asks + 1):
            # A later connector first sends the leg before which the last one died.
            async with connector(Hurt(Step.CLAIM_SENDING, times=min(leg, 2))) as victim:
                await _decided_after(penstock, run_id, leg)
                await victim.died()
        async with connector(None):
            assert (await penstock.ended(run_id, 60))[-1].type == "lifecycle.completed"
    keys = [run["key"] for run in server.tool_runs() if run["session"] == session]
    assert keys == [f"{run_id}-{leg}" for leg in range(2, asks + 2)]


BEFORE_SENDING = [Hurt(Step.CLAIM), Hurt(Step.CLAIM, "after"), Hurt(Step.NOTE, "after")]


@pytest.mark.chaos
@pytest.mark.timeout(300)
@pytest.mark.parametrize(
    ("protocol", "agent", "hurt"),
    [
        *(("agno", "demo-agent", each) for each in (*BEFORE_SENDING, Hurt(Step.BYTES, times=2))),
        *(("adk", "demo", each) for each in BEFORE_SENDING),
    ],
    ids=str,
)
async def test_the_first_leg_has_the_same_key_wherever_its_connector_dies(
    nats_server: NatsServer,
    agno_server: Upstream,
    adk_server: Upstream,
    tmp_path: Path,
    protocol: str,
    agent: str,
    hurt: Hurt,
) -> None:
    server = {"agno": agno_server, "adk": adk_server}[protocol]
    given = {"id": "a", "protocol": protocol, "url": server.url, "agent": agent}
    config = Config.model_validate({"agents": [given]})
    session, to = uuid.uuid4().hex, uuid.uuid4().hex[:8]
    async with pipeline(nats_server.url, config, WITHOUT_CONNECTOR) as penstock:

        def connector(hurt: Hurt | None) -> AbstractAsyncContextManager[ConnectorProcess]:
            return connector_process(penstock.bus, config, tmp_path, hurt, ack_wait_s=1)

        async with connector(hurt) as victim:
            run_id = await penstock.start_run("a", f"pay {to}", session_id=session)
            await victim.died()
        async with connector(None):
            events = await penstock.ended(run_id, 60)
    assert events[-1].type == "lifecycle.completed", events[-1].data
    keys = [run["key"] for run in server.tool_runs() if run["session"] == session]
    assert len(keys) >= 2, "the model has called the tool more than once"
    assert set(keys) == {f"{run_id}-1"}
    results = [each.data["result"] for each in events if each.type == "llm.tool_result"]
    assert len({str(each) for each in results}) == 1, "the repeated calls had no effect"


async def _decided_after(penstock: Pipeline, run_id: str, leg: int) -> None:
    def pauses(event: Event) -> bool:
        return event.type == "lifecycle.paused" and event.leg == leg

    *_, paused = await penstock.events_until(run_id, pauses, 60)
    reply = await penstock.decide(paused.data["approval_id"])
    assert reply.status == 200, reply.detail
