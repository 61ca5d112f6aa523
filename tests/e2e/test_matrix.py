"""Each upstream in each scenario gives, in each dialect, a complete stream in order with one end.

Each test starts a run once, reads it live in all dialects at once, and then reads it again from its
middle.
"""

from __future__ import annotations

import asyncio
import json
import uuid
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import pytest
import pytest_asyncio

from penstock import sse
from penstock.dialects.vercel import DONE
from penstock.settings import Config
from penstock.sse import Frame
from penstock_conformance.protocols import agui_rules
from penstock_edge.service import EdgeService
from penstock_edge.views.dialects import DIALECTS
from support.drive.pipeline import PIPELINE, TERMINAL, Event, Pipeline, pipeline
from support.drive.short import in_short
from support.real.nats import NatsServer
from support.real.upstreams import Upstream
from support.recorded import vercel_rules

pytestmark = [pytest.mark.real, pytest.mark.asyncio(loop_scope="module")]

PYDANTIC_AI = ("text", "tool", "parallel", "reasoning", "approval", "error", "slow")
AGNO_AGUI = ("text", "parallel", "approval", "error", "slow")


Body = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Scenario:
    """How a run goes, whatever its upstream."""

    shows: str = "lifecycle.started"  # an event type that the run must have
    ends: str = "completed"
    decision: str = ""  # the decision about the run's approval; empty if there is none
    cancelled: bool = False  # whether the user cancels the run at its first text


SCENARIOS: Final[Mapping[str, Scenario]] = {
    "text": Scenario("llm.stream"),
    "tools": Scenario("llm.tool_result"),
    "reasoning": Scenario("llm.reasoning"),
    "approved": Scenario("approval.requested", decision="approve"),
    "rejected": Scenario("approval.requested", decision="reject"),
    "error": Scenario(ends="failed"),
    # An Agno workflow reports the failed step and continues.
    "step error": Scenario("workflow.step_failed"),
    "cancel": Scenario("llm.stream", ends="cancelled", cancelled=True),
}
OUTCOMES: Final = {"approve": "ok", "reject": "rejected"}

# For each upstream and scenario: the agent and the message. The scripts of the servers in
# tests/upstreams react to these messages. Agno's AG-UI server sends no reasoning.
WORDS: Final[Mapping[str, Mapping[str, tuple[str, str]]]] = {
    "agno agent": {
        "text": ("assistant", "text"),
        "tools": ("assistant", "tools"),
        "reasoning": ("assistant", "reason"),
        "approved": ("assistant", "confirm"),
        "rejected": ("assistant", "confirm"),
        "error": ("assistant", "failmid"),
        "cancel": ("assistant", "slow"),
    },
    "agno team": {
        "text": ("team", "text"),
        "tools": ("team", "delegate2"),
        "reasoning": ("team", "reason"),
        "approved": ("team", "delegateconfirm"),
        "rejected": ("team", "teamconfirm"),
        "error": ("team", "failmid"),
        "cancel": ("team", "delegateslow"),
    },
    "agno workflow": {
        "text": ("flow", "text"),
        "tools": ("flow", "tool"),
        "reasoning": ("flow", "reason"),
        "approved": ("gated-flow", "text"),
        "rejected": ("gated-flow", "text"),
        "step error": ("flow", "failmid"),
        "cancel": ("flow", "slow"),
    },
    "adk": {
        "text": ("adk", "plain hi"),
        "tools": ("adk", "parallel"),
        "reasoning": ("adk", "think"),
        "approved": ("adk", "confirm"),
        "rejected": ("adk", "bigconfirm"),
        "error": ("adk", "midstream"),
        "cancel": ("adk", "slow 100 50"),
    },
    "pydantic-ai": {
        "text": ("pydantic-ai-text", "hi"),
        "tools": ("pydantic-ai-parallel", "hi"),
        "reasoning": ("pydantic-ai-reasoning", "hi"),
        "approved": ("pydantic-ai-approval", "delete it"),
        "rejected": ("pydantic-ai-approval", "delete it"),
        "error": ("pydantic-ai-error", "hi"),
        "cancel": ("pydantic-ai-slow", "hi"),
    },
    "agno by AG-UI": {
        "text": ("agno-text", "hi"),
        "tools": ("agno-parallel", "hi"),
        "approved": ("agno-approval", "delete it"),
        "rejected": ("agno-approval", "delete it"),
        "error": ("agno-error", "hi"),
        "cancel": ("agno-slow", "hi"),
    },
}


def agents(
    agno_server: Upstream, adk_server: Upstream, pydantic_ai: Upstream, agno_agui: Upstream
) -> list[dict[str, Any]]:
    """Return the configuration of all agents of `WORDS`."""
    agno = {"protocol": "agno", "url": agno_server.url}
    urls = {f"pydantic-ai-{name}": f"{pydantic_ai.url}/{name}" for name in PYDANTIC_AI}
    urls |= {f"agno-{name}": f"{agno_agui.url}/{name}/agui" for name in AGNO_AGUI}
    return [
        {"id": "assistant", "agent": "demo-agent", **agno},
        {"id": "team", "agent": "demo-team", "kind": "team", **agno},
        {"id": "flow", "agent": "simple-wf", "kind": "workflow", **agno},
        {"id": "gated-flow", "agent": "hitl-wf", "kind": "workflow", **agno},
        {"id": "adk", "protocol": "adk", "url": adk_server.url, "agent": "demo"},
        *({"id": id, "protocol": "agui", "url": url} for id, url in urls.items()),
    ]


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def penstock(
    nats_server: NatsServer,
    agno_server: Upstream,
    adk_server: Upstream,
    pydantic_ai_server: Upstream,
    agno_agui_server: Upstream,
) -> AsyncIterator[Pipeline]:
    known = agents(agno_server, adk_server, pydantic_ai_server, agno_agui_server)
    config = Config.model_validate({"agents": known})
    async with pipeline(nats_server.url, config, (*PIPELINE, EdgeService)) as running:
        yield running


@dataclass(frozen=True, slots=True)
class Told:
    """What the events of a run say, independent of the dialect."""

    end: str
    text: str
    thoughts: str
    tools: list[str]
    results: int


def joined(bodies: Sequence[tuple[str, Body]], type: str, field: str) -> str:
    return "".join(body[field] for name, body in bodies if name == type)


def executions(bodies: Sequence[Body], legs: int) -> Told:
    """Read executions or canonical, whose events share the fields that are read here."""
    assert [body["sequence"] for body in bodies] == list(range(1, len(bodies) + 1))
    said = [("{category}.{action}".format(**body["event"]), body["data"]) for body in bodies]
    types = [type for type, _ in said]
    assert types[0] == "lifecycle.started"
    assert [type in TERMINAL for type in types] == [False] * (len(types) - 1) + [True]
    assert types.count("lifecycle.paused") == types.count("lifecycle.resumed") == legs - 1
    return Told(
        types[-1].removeprefix("lifecycle."),
        joined(said, "llm.stream", "content"),
        joined(said, "llm.reasoning", "thought"),
        sorted(data["tool"] for type, data in said if type == "llm.tool_call"),
        types.count("llm.tool_result"),
    )


def unified(bodies: Sequence[Body], legs: int) -> Told:
    assert len({body["event_id"] for body in bodies}) == len(bodies)
    said = [(body["type"], body["payload"]) for body in bodies]
    types = [type for type, _ in said]
    assert types[0] == "session_started"
    assert types.index("session_ended") == len(types) - 1
    assert types.count("agent_message_start") == types.count("agent_message_end")
    end = said[-1][1]["reason"]
    assert types.count("run_interrupted") == legs - 1 + (end == "cancelled")
    return Told(
        end,
        joined(said, "agent_message_delta", "delta"),
        joined(said, "agent_thought", "content"),
        sorted(payload["tool_name"] for type, payload in said if type == "tool_call_started"),
        types.count("tool_call_result"),
    )


def agui(bodies: Sequence[Body], legs: int) -> Told:
    """Read AG-UI, in which each leg is a run; all legs but the last one end in an interrupt."""
    assert agui_rules.faults(bodies) == agui_rules.faults(bodies, old=True) == []
    said = [(body["type"], body) for body in bodies]
    types = [type for type, _ in said]
    ends = [at for at, type in enumerate(types) if type in ("RUN_FINISHED", "RUN_ERROR")]
    assert ends[-1] == len(types) - 1
    assert len(ends) == types.count("RUN_STARTED") == legs
    assert all(bodies[at]["outcome"]["type"] == "interrupt" for at in ends[:-1])
    failed = {"cancelled": "cancelled"}.get(bodies[-1].get("code", ""), "failed")
    return Told(
        "completed" if types[-1] == "RUN_FINISHED" else failed,
        joined(said, "TEXT_MESSAGE_CONTENT", "delta"),
        joined(said, "REASONING_MESSAGE_CONTENT", "delta"),
        sorted(body["toolCallName"] for type, body in said if type == "TOOL_CALL_START"),
        types.count("TOOL_CALL_RESULT"),
    )


def strict(bodies: Sequence[Body], legs: int) -> Told:
    """Read AG-UI, and check that a strict client would find nothing to remark."""
    assert agui_rules.remarks(bodies) == []
    return agui(bodies, legs)


def adk(bodies: Sequence[Body], legs: int) -> Told:
    """Read ADK, which has no event for a good end; an error must be the last event."""
    errors = [body for body in bodies if {"error", "errorCode"} & body.keys()]
    assert bodies[len(bodies) - len(errors) :] == errors
    ids = [body["id"] for body in bodies if "id" in body and not body.get("partial")]
    assert len(set(ids)) == len(ids)
    parts = [
        (body.get("partial", False), part)
        for body in bodies
        for part in body.get("content", {}).get("parts", ())
    ]
    pieces = [part for partial, part in parts if partial]
    calls = [part["functionCall"]["name"] for _, part in parts if "functionCall" in part]
    aborted = {body.get("errorCode") for body in errors} == {"INVOCATION_ABORTED"}
    return Told(
        "cancelled" if aborted else "failed" if errors else "completed",
        "".join(part.get("text", "") for part in pieces if not part.get("thought")),
        "".join(part["text"] for part in pieces if part.get("thought")),
        sorted(name for name in calls if not name.startswith("adk_request_")),
        sum("functionResponse" in part for _, part in parts),
    )


AGNO_ENDS: Final = {"RunCompleted": "completed", "RunError": "failed", "RunCancelled": "cancelled"}


def agno(bodies: Sequence[Body], legs: int) -> Told:
    """Read Agno; a call that an approval asked for and that never started counts as rejected."""
    outer = [body["event"] for body in bodies if "parent_run_id" not in body]
    assert outer[0] == "RunStarted"
    assert [name in AGNO_ENDS for name in outer] == [False] * (len(outer) - 1) + [True]
    assert bodies[-1]["event"] == outer[-1]
    assert outer.count("RunPaused") == outer.count("RunContinued") == legs - 1
    said = [(body["event"], body) for body in bodies]
    started = [body["tool"] for name, body in said if name == "ToolCallStarted"]
    asked = [tool for name, body in said if name == "RunPaused" for tool in body.get("tools", ())]
    ids = {tool["tool_call_id"] for tool in started}
    refused = [
        tool
        for tool in asked
        # A confirmation that is about no tool is named `confirmation`.
        if tool["tool_call_id"] not in ids and tool["tool_name"] != "confirmation"
    ]
    answered = [name for name, _ in said if name in ("ToolCallCompleted", "ToolCallError")]
    return Told(
        AGNO_ENDS[outer[-1]],
        "".join(body.get("content", "") for name, body in said if name == "RunContent"),
        joined(said, "RunContent", "reasoning_content"),
        sorted(tool["tool_name"] for tool in started + refused),
        len(answered) + len(refused),
    )


VERCEL_ENDS: Final = {"finish": "completed", "error": "failed", "abort": "cancelled"}


def vercel(bodies: Sequence[Body], legs: int) -> Told:
    """Read a UI message stream, in which each leg is a step; all but the last end in questions."""
    assert vercel_rules.faults(bodies) == []
    types = [body["type"] for body in bodies]
    assert types.count("start") == types.count("start-step") == types.count("finish-step") == legs
    return Told(
        VERCEL_ENDS[types[-1]],
        vercel_rules.joined(bodies, "text-delta"),
        vercel_rules.joined(bodies, "reasoning-delta"),
        sorted(vercel_rules.tools(bodies)),
        vercel_rules.results(bodies),
    )


def a2a(bodies: Sequence[Body], legs: int) -> Told:
    """Read A2A: the text is in artifacts, the other events are data parts of status messages."""
    assert next(iter(bodies[0])) == "task"
    statuses = [body["statusUpdate"]["status"] for body in bodies if "statusUpdate" in body]
    states = [status["state"].removeprefix("TASK_STATE_") for status in statuses]
    assert [state in A2A_ENDS for state in states] == [False] * (len(states) - 1) + [True]
    assert "statusUpdate" in bodies[-1]
    shown = [part for status in statuses for part in status.get("message", {}).get("parts", ())]
    data = [part["data"] for part in shown if "data" in part]
    said = [(each["type"], each["data"]) for each in data]
    assert [type for type, _ in said].count("lifecycle.resumed") == legs - 1
    updates = [body["artifactUpdate"]["artifact"] for body in bodies if "artifactUpdate" in body]
    messages = [each for each in updates if not each["artifactId"].endswith("-result")]
    return Told(
        A2A_ENDS[states[-1]],
        "".join(part.get("text", "") for each in messages for part in each["parts"]),
        joined(said, "llm.reasoning", "thought"),
        sorted(data["tool"] for type, data in said if type == "llm.tool_call"),
        [type for type, _ in said].count("llm.tool_result"),
    )


A2A_ENDS: Final = {"COMPLETED": "completed", "FAILED": "failed", "CANCELED": "cancelled"}

# For each dialect, the function that checks the order and the end of a stream and reads it.
READERS: Final[Mapping[str, Callable[[Sequence[Body], int], Told]]] = {
    "canonical": executions,
    "executions": executions,
    "unified": unified,
    "agui": strict,
    "agui+runs": agui,
    "adk": adk,
    "agno": agno,
    "vercel": vercel,
    "a2a": a2a,
}


@dataclass(slots=True)
class Reader:
    """A client that reads the run over HTTP in any dialect."""

    penstock: Pipeline
    run_id: str

    async def read(self, dialect: str, after: str | None = None) -> list[Frame]:
        """Return the run's frames after this id, up to the end of the response.

        As any client, it asks again after a 503: on a starved machine, NATS may answer too late.
        """
        while True:
            answer = await self.penstock.http.get(
                f"/v1/runs/{self.run_id}/events",
                params={"dialect": dialect},
                headers={"last-event-id": after} if after else {},
                timeout=30,
            )
            if answer.status_code != 503:
                break
            await asyncio.sleep(float(answer.headers["retry-after"]))
        assert answer.status_code == (200 if answer.content else 204)
        return sse.Parser().feed(answer.content)

    async def read_all(self, after: Mapping[str, str | None]) -> dict[str, list[Frame]]:
        """Read all dialects at once, each after its own id."""
        read = await asyncio.gather(*(self.read(*each) for each in after.items()))
        return dict(zip(after, read, strict=True))


async def lived(penstock: Pipeline, run_id: str, scenario: Scenario) -> list[Event]:
    """Decide or cancel the run as the scenario says; return all events after the run has ended."""
    if scenario.decision:
        *_, paused = await penstock.events_until(run_id, "lifecycle.paused")
        reply = await penstock.decide(paused.data["approval_id"], scenario.decision)
        assert reply.status == 200, reply.detail
    if scenario.cancelled:
        await penstock.events_until(run_id, "llm.stream")
        answer = await penstock.http.post(f"/v1/runs/{run_id}/cancel", timeout=30)
        assert answer.status_code == 200, answer.text
    return await penstock.ended(run_id)


async def test_every_dialect_is_in_the_matrix() -> None:
    assert {*READERS, "raw"} == set(DIALECTS)


# `make test` tries all scenarios with one server, and these with one server of each protocol.
OF_EACH_PROTOCOL = ("approved", "error", "cancel")
CASES = [(upstream, name) for upstream, words in WORDS.items() for name in words]
SHORT = [
    (upstream, name)
    for upstream, name in CASES
    if upstream == "agno agent"
    or (upstream in ("adk", "pydantic-ai") and name in OF_EACH_PROTOCOL)
    or name == "step error"
]


@pytest.mark.parametrize(("upstream", "name"), in_short(CASES, SHORT))
async def test_a_run_is_whole_in_order_and_ends_once_in_every_dialect(
    penstock: Pipeline, upstream: str, name: str
) -> None:
    agent, words = WORDS[upstream][name]
    scenario = SCENARIOS[name]
    message = f"{words} {uuid.uuid4().hex[:8]}"
    answer = await penstock.http.post("/v1/runs", json={"agent": agent, "message": message})
    assert answer.status_code == 202, answer.text
    reader = Reader(penstock, answer.json()["run_id"])
    live = asyncio.create_task(reader.read_all(dict.fromkeys(DIALECTS)))
    events = await lived(penstock, reader.run_id, scenario)
    streams = await live

    assert scenario.shows in [event.type for event in events]
    results = [event.data["outcome"] for event in events if event.type == "llm.tool_result"]
    if scenario.decision and results:  # a workflow's step that needs approval is not a tool
        assert OUTCOMES[scenario.decision] in results

    legs = 2 if scenario.decision else 1
    told = {dialect: read(_bodies(streams[dialect]), legs) for dialect, read in READERS.items()}
    whole = told["canonical"]
    assert whole.end == scenario.ends
    assert told == dict.fromkeys(READERS, whole)
    bodies = [await penstock.body(reader.run_id, leg) for leg in range(1, legs + 1)]
    frames = [frame for body in bodies for frame in sse.Parser().feed(body)]
    assert told_by(streams["raw"]) == told_by(frames)

    # A run that is cancelled early may have a single frame.
    middles = {dialect: max(1, len(frames) // 2) for dialect, frames in streams.items()}
    ids = {dialect: streams[dialect][middle - 1].id for dialect, middle in middles.items()}
    assert await reader.read_all(ids) == {
        dialect: streams[dialect][middle:] for dialect, middle in middles.items()
    }
    ends = {dialect: frames[-1].id for dialect, frames in streams.items()}
    assert await reader.read_all(ends) == {dialect: [] for dialect in DIALECTS}


def _bodies(frames: Sequence[Frame]) -> list[Body]:
    return [json.loads(frame.data) for frame in frames if frame.data != DONE]


def told_by(frames: Sequence[Frame]) -> list[tuple[bytes, str | None]]:
    """Return data and event name of each frame, without the id, which Penstock replaces."""
    return [(frame.data, frame.event) for frame in frames]
