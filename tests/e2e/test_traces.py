"""The spans of real runs, as an OTLP receiver gets them from separate processes."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import orjson
import pytest
import pytest_asyncio

from penstock import sse
from support.drive.bus import connected
from support.drive.workflows import define
from support.fakes.collector import Collector, Exported, collector
from support.fakes.misbehaving import Answer, misbehaving
from support.fakes.receiver import SECRET, Received, receiver
from support.real.deployment import Deployment, deployment
from support.real.nats import NatsServer
from support.real.upstreams import Upstream

pytestmark = [
    pytest.mark.real,
    pytest.mark.asyncio(loop_scope="module"),
    pytest.mark.timeout(180),  # the first test starts six services, which takes long under load
]

CLIENT = "00f067aa0ba902b7"  # the id of the client's span
APPROVED, NESTED, UNSAMPLED = "a" * 32, "b" * 32, "c" * 32
# Each is content of the runs below.
PROMPT, ANSWER = "zebra-4711", "Document created"
SERVICES = dict.fromkeys(
    ("normalizer", "approvals", "workflows", "connector", "edge", "automations"), 1
)
RULES = """
rules:
  - id: ends
    subjects: [lifecycle.completed]
    action: {{webhook: {{url: "{url}", secrets: ["{secret}"]}}}}
"""
FLOW = {
    "dsl": "penstock/1",
    "name": "flow",
    "version": "1",
    "steps": {
        "ask": {"run": {"agent": "fake", "message": '"' + PROMPT + '"'}, "output": "result.text"}
    },
    "output": "ask.output",
}


@dataclass(frozen=True)
class Seen:
    """What the collector, the receiver of webhooks and an agent server got."""

    collector: Collector
    webhooks: list[Received]
    agent_headers: list[dict[str, str]]
    new: str  # the run whose client sent an invalid traceparent

    def named(self, trace_id: str, name: str) -> Exported:
        """Return the one span of a trace with this name."""
        [found] = [span for span in self.collector.of(trace_id) if span.name == name]
        return found


async def start(penstock: Deployment, agent: str, message: str, traceparent: str) -> str:
    answer = await penstock.http.post(
        f"{penstock.edge()}/v1/runs",
        json={"agent": agent, "message": message},
        headers={"traceparent": traceparent},
    )
    assert answer.status_code == 202, answer.text
    return str(answer.json()["run_id"])


async def answer_agui(to: Answer, headers: list[dict[str, str]]) -> None:
    """Answer as an AG-UI server; keep the headers of the request."""
    headers.append({name.lower(): value for name, value in to.request.headers.items()})
    given = orjson.loads(to.request.body)
    ids = {"threadId": given["threadId"], "runId": given["runId"]}
    frames = [{"type": "RUN_STARTED", **ids}, {"type": "RUN_FINISHED", **ids}]
    await to.whole(b"".join(sse.encode(orjson.dumps(each)) for each in frames))


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def seen(
    tmp_path_factory: pytest.TempPathFactory, agno_server: Upstream
) -> AsyncIterator[Seen]:
    """Run a deployment with tracing and all runs of this module; yield when it has stopped.

    A service exports its last spans before it ends, so all spans are there.
    """
    folder = tmp_path_factory.mktemp("traces")
    nats = NatsServer(folder / "nats")
    nats.start()
    headers: list[dict[str, str]] = []
    try:
        with collector() as made:
            async with receiver() as hooks, misbehaving() as fake:
                fake.scripted = lambda request: True
                fake.script(lambda to: answer_agui(to, headers))
                rules = folder / "rules.yaml"
                rules.write_text(RULES.format(url=hooks.url(), secret=SECRET))
                agents: list[dict[str, Any]] = [
                    {
                        **{"id": "assistant", "protocol": "agno", "agent": "demo-agent"},
                        "url": agno_server.url,
                    },
                    {"id": "fake", "protocol": "agui", "url": fake.url},
                    {"id": "flow", "protocol": "workflow"},
                ]
                settings = {
                    "OTEL_EXPORTER_OTLP_ENDPOINT": made.url,
                    "rules": rules,
                    "webhook_allow_hosts": "127.0.0.1",
                }
                async with deployment(nats.url, folder, agents, SERVICES, **settings) as penstock:
                    async with connected(nats.url) as bus:
                        await define(bus, FLOW)
                    new = await run_all(penstock)
                    await hooks.count(5)  # of the four runs, and the run of the step
                yield Seen(made, hooks.requests, headers, new)
    finally:
        nats.remove()


async def run_all(penstock: Deployment) -> str:
    approved = await start(penstock, "assistant", f"confirm {PROMPT}", f"00-{APPROVED}-{CLIENT}-01")
    *_, paused = await penstock.until(approved, "lifecycle.paused")
    answer = await penstock.decide(paused.data["approval_id"], "approve")
    assert answer.is_success, answer.text
    nested = await start(penstock, "flow", PROMPT, f"00-{NESTED}-{CLIENT}-01")
    unsampled = await start(penstock, "fake", PROMPT, f"00-{UNSAMPLED}-{CLIENT}-00")
    new = await start(penstock, "fake", PROMPT, f"00-{'0' * 32}-{CLIENT}-01")
    for run_id in (approved, nested, unsampled, new):
        assert (await penstock.all(run_id))[-1].type == "lifecycle.completed"
    return new


async def test_a_run_with_an_approval_and_a_webhook_is_one_trace(seen: Seen) -> None:
    spans = seen.collector.of(APPROVED)
    request, run = (
        seen.named(APPROVED, "POST /v1/runs"),
        seen.named(APPROVED, "invoke_agent assistant"),
    )
    shown = sorted((span.service, span.name, span.parent) for span in spans)
    assert shown == sorted(
        [
            ("penstock-edge", "POST /v1/runs", CLIENT),
            ("penstock-normalizer", "invoke_agent assistant", request.id),
            ("penstock-connector", "leg assistant", run.id),
            ("penstock-connector", "leg assistant", run.id),
            ("penstock-approvals", "approval", run.id),
            ("penstock-automations", "delivery event", run.id),
        ]
    )
    legs = [span for span in spans if span.name == "leg assistant"]
    assert [leg.attributes["penstock.leg"] for leg in legs] == [1, 2]
    assert run.attributes["gen_ai.operation.name"] == "invoke_agent"
    assert run.attributes["gen_ai.agent.id"] == "assistant"
    assert run.attributes["gen_ai.usage.input_tokens"] > 0
    approval = seen.named(APPROVED, "approval")
    assert approval.attributes["penstock.approval.outcome"] == "approved"
    assert run.began_ns <= legs[0].began_ns < approval.began_ns < approval.ended_ns <= run.ended_ns
    assert not any(span.is_error for span in spans)
    delivery = seen.named(APPROVED, "delivery event")
    [webhook] = [each for each in seen.webhooks if APPROVED in each.headers["traceparent"]]
    assert webhook.headers["traceparent"] == f"00-{APPROVED}-{delivery.id}-01"


async def test_a_workflows_step_and_its_run_are_below_the_workflow(seen: Seen) -> None:
    workflow, step = seen.named(NESTED, "invoke_workflow flow"), seen.named(NESTED, "step ask")
    child, leg = seen.named(NESTED, "invoke_agent fake"), seen.named(NESTED, "leg fake")
    assert step.parent == workflow.id
    assert child.parent == step.id
    assert leg.parent == child.id
    assert step.attributes["penstock.step.outcome"] == "completed"
    assert step.began_ns <= child.began_ns <= child.ended_ns
    [headers] = [each for each in seen.agent_headers if NESTED in each["traceparent"]]
    assert headers["traceparent"] == f"00-{NESTED}-{leg.id}-01"


async def test_a_trace_that_the_client_does_not_sample_is_carried_and_not_exported(
    seen: Seen,
) -> None:
    assert seen.collector.of(UNSAMPLED) == []
    [headers] = [each for each in seen.agent_headers if UNSAMPLED in each["traceparent"]]
    assert headers["traceparent"].endswith("-00")


async def test_an_invalid_traceparent_is_ignored_and_the_run_begins_a_trace(seen: Seen) -> None:
    [run] = [
        span
        for span in seen.collector.spans
        if span.attributes.get("penstock.run.id") == seen.new and span.name == "invoke_agent fake"
    ]
    assert seen.named(run.trace_id, "POST /v1/runs").parent == ""
    assert run.parent == seen.named(run.trace_id, "POST /v1/runs").id


async def test_no_span_has_content(seen: Seen) -> None:
    assert seen.collector.spans
    for span in seen.collector.spans:
        text = str((span.name, span.attributes))
        assert PROMPT not in text
        assert ANSWER not in text


async def test_a_service_whose_collector_hangs_serves_and_stops(tmp_path: Path) -> None:
    nats = NatsServer(tmp_path / "nats")
    nats.start()
    agents = [{"id": "assistant", "protocol": "agno", "url": "http://127.0.0.1:9", "agent": "a"}]
    try:
        with collector() as made:
            made.hangs = True
            settings = {"OTEL_EXPORTER_OTLP_ENDPOINT": made.url, "OTEL_BSP_SCHEDULE_DELAY": "50"}
            async with deployment(nats.url, tmp_path, agents, {"edge": 1}, **settings) as penstock:
                await start(penstock, "assistant", PROMPT, "none")
                assert await asyncio.to_thread(made.asked.wait, 30)
                await start(penstock, "assistant", PROMPT, "none")
                [edge] = penstock.instances
                edge.process.popen.send_signal(signal.SIGTERM)
                # The exporter alone would try for 10 s and more.
                assert await asyncio.to_thread(edge.process.popen.wait, 40) == 0
                assert not made.over.is_set()
            assert "did not take the last spans" in edge.process.log.read_text()
    finally:
        nats.remove()
