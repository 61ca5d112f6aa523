"""The official clients of OpenAI and A2A over each kind of agent: each sees what the run's events
say. The AI SDK's clients are asked the same in tests/e2e/test_vercel_matrix.py."""

from __future__ import annotations

import json
import uuid
from collections import Counter, defaultdict
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from typing import Any, Final

import pytest
import pytest_asyncio

from e2e.every_agent import AGENTS, decided_elsewhere, events_of_run, penstock
from support.drive.pipeline import Event, Pipeline
from support.real import a2a_client, openai_client
from support.real.a2a_client import Official
from support.real.openai_client import LANGUAGES, OLDER, OpenAIClient

pytestmark = [
    pytest.mark.real,
    pytest.mark.chaos,
    pytest.mark.timeout(600),
    pytest.mark.asyncio(loop_scope="module"),
]

__all__ = ["penstock"]  # the fixture, with all agents
Json = dict[str, Any]
DECISIONS: Final = {"approved": "approve", "rejected": "reject"}


@dataclass(frozen=True, slots=True)
class Seen:
    """What a client has of a run: its texts, and the names of the tools that have run."""

    run_id: str
    status: str  # "waiting", or how the run ended
    texts: Sequence[str]
    tools: Sequence[str]
    output_tokens: int


class Face:
    """A client in one chat with an agent."""

    async def ask(self, agent: str, words: str) -> Seen:
        raise NotImplementedError

    async def decide(self, agent: str, decision: str) -> Seen:
        raise NotImplementedError

    async def look_again(self, agent: str) -> Seen:
        """Return what the client has after another person has decided."""
        raise NotImplementedError

    async def cancel(self, agent: str, words: str) -> Seen:
        raise NotImplementedError


@dataclass(slots=True)
class ByResponses(Face):
    """OpenAI's Responses. One that asks names the response that follows."""

    client: OpenAIClient
    responses: list[Json] = field(default_factory=list)

    async def ask(self, agent: str, words: str) -> Seen:
        return await self._streamed({"model": agent, "input": words})

    async def decide(self, agent: str, decision: str) -> Seen:
        last, approve = self.responses[-1], decision == "approve"
        answers = [
            {
                "type": "mcp_approval_response",
                "approval_request_id": item["id"],
                "approve": approve,
            }
            for item in last["output"]
            if item["type"] == "mcp_approval_request"
        ]
        body = {"model": agent, "input": answers, "previous_response_id": last["id"]}
        return await self._streamed(body)

    async def look_again(self, agent: str) -> Seen:
        following = self.responses[-1]["metadata"]["next_response_id"]
        self.responses.append((await self.client.call("resume", id=following))[-1]["response"])
        return self._seen()

    async def cancel(self, agent: str, words: str) -> Seen:
        body = {"model": agent, "input": words}
        events = await self.client.call("stream", body=body, cut=4)
        response_id = events[0]["response"]["id"]
        await self.client.call("cancel", id=response_id)
        rest = await self.client.call("resume", id=response_id)
        self.responses.append(rest[-1]["response"])
        return self._seen()

    async def _streamed(self, body: Json) -> Seen:
        events = await self.client.call("stream", body=body)
        self.responses.append(events[-1]["response"])
        return self._seen()

    def _seen(self) -> Seen:
        items = [item for each in self.responses for item in each["output"]]
        last = self.responses[-1]
        asks = any(item["type"] == "mcp_approval_request" for item in last["output"])
        texts = [item.get("content") or item.get("summary") or () for item in items]
        calls = [item for item in items if item["type"] == "mcp_call"]
        used = [each["usage"] for each in self.responses if each["usage"]]
        return Seen(
            last["metadata"]["run_id"],
            "waiting" if asks else last["status"],
            [part["text"] for parts in texts for part in parts],
            [item["name"] for item in calls if item["status"] in ("completed", "failed")],
            sum(each["output_tokens"] for each in used),
        )


@dataclass(slots=True)
class ByChat(Face):
    """OpenAI's Chat Completions, which show calls as texts, and neither ask nor cancel."""

    client: OpenAIClient
    messages: list[Json] = field(default_factory=list)
    told: list[Json] = field(default_factory=list)

    async def ask(self, agent: str, words: str) -> Seen:
        self.messages.append({"role": "user", "content": words})
        body = {"model": agent, "messages": self.messages}
        self.told.append(await self.client.call("chat", body=body))
        said = [each["choices"][0]["message"] for each in self.told]
        content = said[-1]["content"]
        self.messages.append({"role": "assistant", "content": content})
        return Seen(
            self.told[0]["id"].removeprefix("chatcmpl-")[:36],
            "waiting" if "(reference resp_" in content else "completed",
            [each.get(name) or "" for each in said for name in ("content", "reasoning_content")],
            (),
            sum(each["usage"]["completion_tokens"] for each in self.told if each["usage"]),
        )

    async def look_again(self, agent: str) -> Seen:
        return await self.ask(agent, "And now?")


@dataclass(slots=True)
class ByA2a(Face):
    """Tasks, with the extension."""

    client: Official
    interface: tuple[str, str]
    task: Json = field(default_factory=dict)

    async def ask(self, agent: str, words: str) -> Seen:
        return await self._call(agent, "send_message", self._said({"text": words}))

    async def decide(self, agent: str, decision: str) -> Seen:
        asked = {each["approval_id"]: each["digest"] for each in self._data("approval.requested")}
        parts = [
            {"data": {"approval_id": approval_id, "digest": digest, "decision": decision}}
            for approval_id, digest in asked.items()
        ]
        return await self._call(agent, "send_message", self._said(*parts, taskId=self.task["id"]))

    async def look_again(self, agent: str) -> Seen:
        named = {"id": self.task["id"]}
        seen = await self._call(agent, "subscribe", named)
        ended = self.task.get("raised") == "UnsupportedOperationError"  # before it subscribed
        return await self._call(agent, "get_task", named) if ended else seen

    async def cancel(self, agent: str, words: str) -> Seen:
        await self._call(agent, "send_message", self._said({"text": words}), cut=3)
        return await self._call(agent, "cancel_task", {"id": self.task["id"]})

    def _said(self, *parts: Json, **fields: Any) -> Json:
        message = {"messageId": uuid.uuid4().hex, "role": "ROLE_USER", "parts": [*parts]}
        return {"message": {**message, **fields}}

    def _data(self, type: str) -> list[Json]:
        found = a2a_client.events_of(self.task)
        return [each["data"] for each in found if each["type"] == type]

    async def _call(self, agent: str, method: str, request: Json, **more: Any) -> Seen:
        at: Json = {"agent": agent, "interface": self.interface}
        self.task = await self.client.call(method, request, **at, **more)
        if "raised" in self.task:
            assert method == "subscribe", self.task
            return Seen("", "", (), (), 0)
        state = self.task["status"]["state"].removeprefix("TASK_STATE_").lower()
        ends = {"input_required": "waiting", "canceled": "cancelled"}
        thoughts: defaultdict[str, str] = defaultdict(str)
        for each in self._data("llm.reasoning"):
            thoughts[each["reasoning_id"]] += each["thought"]
        artifacts = a2a_client.normal(self.task)["artifacts"]
        parts = [part for each in artifacts for part in each["parts"]]
        shown = [json.dumps(each["data"]) for each in a2a_client.events_of(self.task)]
        metadata: Json = next(iter(self.task.get("metadata", {}).values()), {})
        return Seen(
            self.task["id"],
            ends.get(state, state),
            [*(part.get("text", "") for part in parts), *thoughts.values(), *shown],
            [each["tool"] for each in self._data("llm.tool_result")],
            int((metadata.get("usage") or {}).get("output_tokens", 0)),
        )


A2A: Final = {
    f"a2a {language} {' '.join(interface)}": (language, interface)
    for language, interfaces in (
        ("python", a2a_client.INTERFACES),
        ("javascript", a2a_client.INTERFACES[:2]),
    )
    for interface in interfaces
}
SCENARIOS: Final = frozenset(name for rows in AGENTS.values() for name in rows)
# Maps each client to the scenarios that its protocol has.
FACES: Final[Mapping[str, frozenset[str]]] = {
    **{f"responses {each}": SCENARIOS for each in (*LANGUAGES, *OLDER)},
    **{f"chat {each}": SCENARIOS & {"text", "reasoning", "elsewhere"} for each in LANGUAGES},
    **dict.fromkeys(A2A, SCENARIOS),
}


@dataclass(slots=True)
class Clients:
    """All clients, whose processes are shared by the tests."""

    openai: dict[str, OpenAIClient]
    a2a: dict[str, Official]

    def face(self, name: str) -> Face:
        if name in A2A:
            language, interface = A2A[name]
            return ByA2a(self.a2a[language], interface)
        api, _, language = name.partition(" ")
        client = self.openai[language]
        return ByResponses(client) if api == "responses" else ByChat(client)


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def clients(penstock: Pipeline) -> AsyncIterator[Clients]:
    url = str(penstock.http.base_url)
    async with AsyncExitStack() as stack:
        enter, openai = stack.enter_context, openai_client.running
        by_openai = {each: enter(openai(each, url)) for each in (*LANGUAGES, *OLDER)}
        by_a2a = {
            each: await stack.enter_async_context(a2a_client.official(url, each))
            for each in LANGUAGES
        }
        yield Clients(by_openai, by_a2a)


CASES = [
    (name, upstream, scenario)
    for name, scenarios in FACES.items()
    for upstream, rows in AGENTS.items()
    for scenario in rows
    if scenario in scenarios
]


@pytest.mark.parametrize(("name", "upstream", "scenario"), CASES)
async def test_each_client_sees_what_each_kind_of_agent_did(
    penstock: Pipeline, clients: Clients, name: str, upstream: str, scenario: str
) -> None:
    agent, words = AGENTS[upstream][scenario]
    words = f"{words} {uuid.uuid4().hex[:8]}"
    face = clients.face(name)
    seen = await (face.cancel if scenario == "cancel" else face.ask)(agent, words)
    if scenario in DECISIONS:
        assert seen.status == "waiting", seen
        seen = await face.decide(agent, DECISIONS[scenario])
    elif scenario == "elsewhere":
        assert seen.status == "waiting", seen
        await decided_elsewhere(penstock, seen.run_id)
        seen = await face.look_again(agent)
    await penstock.ended(seen.run_id)
    events = await events_of_run(penstock, seen.run_id)
    assert seen.status == events[-1].type.removeprefix("lifecycle."), seen
    if scenario == "cancel":
        return  # a client may have left before what came last
    for text in said_in(events):
        assert any(text in shown for shown in seen.texts), (text, seen.texts)
    if isinstance(face, ByChat):
        return
    ran = [each.data["tool"] for each in events if each.type == "llm.tool_result"]
    assert Counter(seen.tools) == Counter(ran)
    of_run = events[-1].data.get("usage") or {}
    used = [each.data for each in events if each.type == "llm.usage"]
    counts = [of_run] if isinstance(face, ByA2a) else used
    assert seen.output_tokens == sum(each.get("output_tokens") or 0 for each in counts)


def said_in(events: Sequence[Event]) -> list[str]:
    """Return the texts and thoughts of the run, and the tasks of its sub-agents."""
    texts: defaultdict[str, str] = defaultdict(str)
    for each in events:
        match each.type:
            case "llm.stream":
                texts[each.data["message_id"]] += each.data["content"]
            case "llm.reasoning" if not each.data.get("debug"):
                texts[each.data["reasoning_id"]] += each.data["thought"]
            case "dispatch.worker":
                texts[f"{each.sequence}"] = each.data["task"]
    return list(texts.values())
