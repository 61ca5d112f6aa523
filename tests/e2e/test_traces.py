"""The spans of real runs, as an OTLP receiver gets them from separate processes."""

from __future__ import annotations

import asyncio
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
APPROVED, NESTED, UNSAMPLED, DECIDING = "a" * 32, "b" * 32, "c" * 32, "d" * 32
KILLED, BY_ADK, CANCELLED = "e" * 32, "1" * 32, "2" * 32
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


async def answer_with_a_tool(to: Answer, may_end: asyncio.Event) -> None:
    """Answer as an AG-UI server; a tool runs until `may_end` is set."""
    given = orjson.loads(to.request.body)
    ids = {"threadId": given["threadId"], "runId": given["runId"]}
    call = {"toolCallId": "call-1"}
    await to.head()
    for each in (
        {"type": "RUN_STARTED", **ids},
        {"type": "TOOL_CALL_START", **call, "toolCallName": "dig"},
        {"type": "TOOL_CALL_ARGS", **call, "delta": orjson.dumps({"for": PROMPT}).decode()},
        {"type": "TOOL_CALL_END", **call},
    ):
        await to.send(sse.encode(orjson.dumps(each)))
    await may_end.wait()
    result = {"type": "TOOL_CALL_RESULT", **call, "messageId": "m1", "content": ANSWER}
    for each in (result, {"type": "RUN_FINISHED", **ids}):
        await to.send(sse.encode(orjson.dumps(each)))
    await to.end()


async def answer_agui(to: Answer, headers: list[dict[str, str]]) -> None:
    """Answer as an AG-UI server; keep the headers of the request."""
    headers.append({name.lower(): value for name, value in to.request.headers.items()})
    given = orjson.loads(to.request.body)
    ids = {"threadId": given["threadId"], "runId": given["runId"]}
    frames = [{"type": "RUN_STARTED", **ids}, {"type": "RUN_FINISHED", **ids}]
    await to.whole(b"".join(sse.encode(orjson.dumps(each)) for each in frames))


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def seen(
    tmp_path_factory: pytest.TempPathFactory, agno_server: Upstream, adk_server: Upstream
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
                may_end = asyncio.Event()
                fake.script(
                    lambda to: answer_with_a_tool(to, may_end), lambda to: answer_agui(to, headers)
                )
                rules = folder / "rules.yaml"
                rules.write_text(RULES.format(url=hooks.url(), secret=SECRET))
                agents: list[dict[str, Any]] = [
                    {
                        **{"id": "assistant", "protocol": "agno", "agent": "demo-agent"},
                        "url": agno_server.url,
                    },
                    {"id": "adk", "protocol": "adk", "agent": "demo", "url": adk_server.url},
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
                    await run_with_a_killed_normalizer(penstock, may_end)
                    new = await run_all(penstock)
                    await hooks.count(7)  # of the six runs that completed, and the step's run
                yield Seen(made, hooks.requests, headers, new)
    finally:
        nats.remove()


async def run_with_a_killed_normalizer(penstock: Deployment, may_end: asyncio.Event) -> None:
    run_id = await start(penstock, "fake", PROMPT, f"00-{KILLED}-{CLIENT}-01")
    await penstock.until(run_id, "llm.tool_call")
    [normalizer] = penstock.of("normalizer")
    await penstock.kill(normalizer)
    await penstock.start("normalizer")
    may_end.set()
    assert (await penstock.all(run_id))[-1].type == "lifecycle.completed"


async def run_all(penstock: Deployment) -> str:
    by_adk = await start(penstock, "adk", "weather", f"00-{BY_ADK}-{CLIENT}-01")
    cancelled = await start(penstock, "assistant", "confirm", f"00-{CANCELLED}-{CLIENT}-01")
    await penstock.until(cancelled, "lifecycle.paused")
    answer = await penstock.http.post(f"{penstock.edge()}/v1/runs/{cancelled}/cancel")
    assert answer.is_success, answer.text
    assert (await penstock.all(cancelled))[-1].type == "lifecycle.cancelled"
    approved = await start(penstock, "assistant", f"confirm {PROMPT}", f"00-{APPROVED}-{CLIENT}-01")
    *_, paused = await penstock.until(approved, "lifecycle.paused")
    deciding = f"00-{DECIDING}-{CLIENT}-01"
    answer = await penstock.decide(paused.data["approval_id"], "approve", traceparent=deciding)
    assert answer.is_success, answer.text
    nested = await start(penstock, "flow", PROMPT, f"00-{NESTED}-{CLIENT}-01")
    unsampled = await start(penstock, "fake", PROMPT, f"00-{UNSAMPLED}-{CLIENT}-00")
    new = await start(penstock, "fake", PROMPT, f"00-{'0' * 32}-{CLIENT}-01")
    for run_id in (by_adk, approved, nested, unsampled, new):
        assert (await penstock.all(run_id))[-1].type == "lifecycle.completed"
    return new


async def test_a_run_with_an_approval_and_a_webhook_is_one_trace(seen: Seen) -> None:
    spans = seen.collector.of(APPROVED)
    request, run = (
        seen.named(APPROVED, "POST /v1/runs"),
        seen.named(APPROVED, "invoke_agent assistant"),
    )
    legs = [span for span in spans if span.name == "leg assistant"]
    chats = [span for span in spans if span.name.startswith("chat ")]
    shown = sorted((span.service, span.name, span.parent) for span in spans if span not in chats)
    assert shown == sorted(
        [
            ("penstock-edge", "POST /v1/runs", CLIENT),
            ("penstock-normalizer", "invoke_agent assistant", request.id),
            ("penstock-connector", "leg assistant", run.id),
            ("penstock-connector", "leg assistant", run.id),
            ("penstock-normalizer", "execute_tool create_document", legs[1].id),
            ("penstock-approvals", "approval", run.id),
            ("penstock-automations", "delivery event", run.id),
        ]
    )
    assert [leg.attributes["penstock.leg"] for leg in legs] == [1, 2]
    assert sorted(span.parent for span in chats) == sorted(leg.id for leg in legs)
    assert all(span.attributes["gen_ai.usage.input_tokens"] > 0 for span in chats)
    for leg in legs:
        (sent, sent_ns), (first, first_ns) = leg.events
        assert (sent, first) == ("request sent", "first bytes")
        assert leg.began_ns <= sent_ns <= first_ns <= leg.ended_ns
    assert run.attributes["gen_ai.operation.name"] == "invoke_agent"
    assert run.attributes["gen_ai.agent.id"] == "assistant"
    assert run.attributes["gen_ai.usage.input_tokens"] > 0
    approval = seen.named(APPROVED, "approval")
    assert approval.attributes["penstock.approval.outcome"] == "approved"
    assert run.began_ns <= legs[0].began_ns < approval.began_ns < approval.ended_ns <= run.ended_ns
    tool = seen.named(APPROVED, "execute_tool create_document")
    assert legs[1].began_ns <= tool.began_ns <= tool.ended_ns <= run.ended_ns
    assert approval.ended_ns <= tool.ended_ns
    assert tool.links == (f"{APPROVED}-{approval.id}",)
    assert not any(span.is_error for span in spans)
    delivery = seen.named(APPROVED, "delivery event")
    [webhook] = [each for each in seen.webhooks if APPROVED in each.headers["traceparent"]]
    assert webhook.headers["traceparent"] == f"00-{APPROVED}-{delivery.id}-01"


async def test_a_decision_and_its_approval_are_linked_in_both_directions(seen: Seen) -> None:
    """The decision is a request in the trace of the client that decided."""
    [decision] = seen.collector.of(DECIDING)
    approval = seen.named(APPROVED, "approval")
    assert decision.name == "POST /v1/approvals/{approval_id}/decision"
    assert decision.parent == CLIENT
    assert decision.links == (f"{APPROVED}-{approval.id}",)
    assert approval.links == (f"{DECIDING}-{decision.id}",)


async def test_an_approval_whose_run_is_cancelled_has_a_span(seen: Seen) -> None:
    approval = seen.named(CANCELLED, "approval")
    assert approval.attributes["penstock.approval.status"] == "withdrawn"
    assert approval.parent == seen.named(CANCELLED, "invoke_agent assistant").id


async def test_a_tool_that_a_real_adk_server_runs_is_below_its_leg(seen: Seen) -> None:
    tool, leg = seen.named(BY_ADK, "execute_tool get_weather"), seen.named(BY_ADK, "leg adk")
    assert tool.parent == leg.id
    assert tool.attributes["gen_ai.tool.call.id"]
    assert tool.links == ()


async def test_a_tools_span_outlives_the_kill_of_the_normalizer_and_is_exported_once(
    seen: Seen,
) -> None:
    """The tool ran before, during and after the kill."""
    [tool] = [
        span
        for span in seen.collector.spans
        if span.trace_id == KILLED and span.name == "execute_tool dig"
    ]
    leg = seen.named(KILLED, "leg fake")
    assert tool.parent == leg.id
    assert leg.began_ns <= tool.began_ns < tool.ended_ns <= leg.ended_ns + 1_000_000_000


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


@pytest.mark.chaos
async def test_a_ratio_samples_a_trace_in_every_service_or_in_none(
    tmp_path: Path, nats_server: NatsServer, agno_server: Upstream
) -> None:
    """This sampler looks only at the last 64 bits of the trace's id, not at the client's flag."""
    low, high = "5" * 16 + "1" * 16, "5" * 16 + "f" * 16
    agents = [{"id": "assistant", "protocol": "agno", "agent": "demo-agent"}]
    services = {"normalizer": 1, "approvals": 1, "connector": 1, "edge": 1}
    with collector() as made:
        settings = {
            "OTEL_EXPORTER_OTLP_ENDPOINT": made.url,
            "OTEL_TRACES_SAMPLER": "traceidratio",
            "OTEL_TRACES_SAMPLER_ARG": "0.5",
        }
        agents[0]["url"] = agno_server.url
        async with deployment(nats_server.url, tmp_path, agents, services, **settings) as penstock:
            for trace_id, flag in ((low, "00"), (high, "01")):
                traceparent = f"00-{trace_id}-{CLIENT}-{flag}"
                run_id = await start(penstock, "assistant", "confirm", traceparent)
                *_, paused = await penstock.until(run_id, "lifecycle.paused")
                answer = await penstock.decide(paused.data["approval_id"], "approve", traceparent)
                assert answer.is_success, answer.text
                assert (await penstock.all(run_id))[-1].type == "lifecycle.completed"
    names = sorted(
        f"{span.service} {span.name}" for span in made.of(low) if "chat" not in span.name
    )
    assert names == [
        "penstock-approvals POST /v1/approvals/{approval_id}/decision",
        "penstock-approvals approval",
        "penstock-connector leg assistant",
        "penstock-connector leg assistant",
        "penstock-edge POST /v1/runs",
        "penstock-normalizer execute_tool create_document",
        "penstock-normalizer invoke_agent assistant",
    ]
    assert made.of(high) == []
