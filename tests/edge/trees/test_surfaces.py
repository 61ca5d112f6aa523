"""Each contract starts a workflow with the runs of its steps in the response, and decides pauses.

The service `workflows` is a fake that plays a tree.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from functools import partial
from typing import Any

import orjson
import pytest
import uuid_utils

from penstock.bus import Bus, Msg, messages, streams, subjects
from penstock.bus.records.approvals import ApprovalRecord, DecideReply, DecideRequest
from penstock.bus.records.runs import RunRecord, StartCommand
from penstock.bus.records.workflows import LatestWorkflow, WorkflowRecord
from penstock.bus.write.objects import unwrap
from penstock.dialects.vercel import DONE
from penstock.settings import Config, WorkflowAgent
from penstock.sse import Frame
from support.attacks.vercel_answers import Json, agents, user
from support.drive.clients import Client, Stream, contents
from support.drive.waiting import eventually
from support.fakes.pretend_tree import PretendTree
from support.recorded import vercel_rules

CONFIG = Config(
    agents=[WorkflowAgent(id="diagnosis", protocol="workflow", agent="diagnosis", topology_id=123)]
)
RUN_SSE = {
    "appName": "diagnosis",
    "userId": "anonymous",
    "sessionId": "thread-1",
    "streaming": True,
}


@pytest.fixture(scope="module")
def config() -> Config:
    return CONFIG


class PretendWorkflows:
    """The service `workflows`: each start plays a tree, which goes on after the decision."""

    def __init__(self, bus: Bus) -> None:
        self._bus = bus
        self._tasks: set[asyncio.Task[None]] = set()
        self.decisions: list[tuple[str, DecideRequest]] = []
        # Until this event, the approvals that are asked for have no record.
        self.may_record = asyncio.Event()
        self.may_record.set()
        self.trees: list[PretendTree] = []

    async def start(self) -> None:
        record = WorkflowRecord(
            name="diagnosis",
            version="1",
            digest="d",
            definition={},
            created_at=messages.now(),
            created_by="ada",
        )
        bucket = self._bus.bucket("workflows")
        await bucket.put("v.diagnosis.1", record.dump())
        await bucket.put("latest.diagnosis", LatestWorkflow(version="1").dump())
        await self._bus.subscribe(subjects.command("workflows", "start", "*"), self._on_start)
        await self._bus.subscribe(subjects.decide("*"), self._on_decide)

    async def stop(self) -> None:
        self.may_record.set()
        for tree in self.trees:
            tree.decided.set()
        await asyncio.gather(*self._tasks)

    async def _on_start(self, msg: Msg) -> None:
        command = StartCommand.model_validate_json(await unwrap(self._bus, msg.data))
        tree = PretendTree(self._bus)
        tree.adopt(command.run_id, command.session_id)
        tree.on_pause = lambda: self._ask(tree)
        self.trees.append(tree)
        task = asyncio.create_task(tree.diagnosis())
        self._tasks.add(task)

    async def _ask(self, tree: PretendTree) -> None:
        """Write the record of the approval, and wait for the decision."""
        await self.may_record.wait()
        worker = tree.runs["metrics"]
        now = messages.now()
        record = ApprovalRecord(
            approval_id=tree.approval_id,
            run_id=worker.run_id,
            agent="metrics",
            session_id=worker.session_id,
            user_id="anonymous",
            leg=1,
            digest="d",
            items=[tree.item],
            requested_at=now,
            updated_at=now,
        )
        await self._bus.bucket("approvals").put(tree.approval_id, record.dump())
        await tree.decided.wait()

    async def _on_decide(self, msg: Msg) -> None:
        approval_id = msg.subject.rpartition(".")[2]
        self.decisions.append((approval_id, DecideRequest.model_validate_json(msg.data)))
        await msg.respond(DecideReply(status=200).dump())
        for tree in self.trees:
            if tree.approval_id == approval_id:
                tree.decided.set()


@pytest.fixture
async def workflows(bus: Bus) -> AsyncIterator[PretendWorkflows]:
    workflows = PretendWorkflows(bus)
    await workflows.start()
    yield workflows
    await workflows.stop()


def decision(workflows: PretendWorkflows) -> tuple[str, list[dict[str, Any]]]:
    """Return the approval and the items of the only decision."""
    [(approval_id, request)] = workflows.decisions
    return approval_id, [item.model_dump(exclude_none=True) for item in request.items or ()]


APPROVED = [{"item_id": "c1", "decision": "approve"}]


async def decide(bus: Bus, workflows: PretendWorkflows) -> None:
    """Decide the open approval as the approvals service's own API does."""
    while not workflows.trees or not workflows.trees[-1].asked:
        await asyncio.sleep(0.01)
    workflows.trees[-1].decided.set()


async def test_an_execution_shows_teams_workers_and_their_text(
    edge: Client, bus: Bus, workflows: PretendWorkflows
) -> None:
    path = "/api/service/v1/executions/trigger"
    body = {"topologyId": 123, "userMessage": "Hello"}
    async with Stream(edge, "POST", path, json=body) as stream:
        await decide(bus, workflows)
        events = contents(await stream.rest())
    assert {event["run_id"] for event in events} == {stream.run_id}
    types = [f"{each['event']['category']}.{each['event']['action']}" for each in events]
    assert types[0] == "lifecycle.started"
    assert types[-1] == "lifecycle.completed"
    assert types.index("dispatch.team") < types.index("dispatch.worker", types.index("llm.stream"))
    [worker] = {
        (each["source"]["agent_type"], each["source"]["team_name"])
        for each in events
        if each["event"]["action"] == "stream" and each["data"]["content"] == "three"
    }
    assert worker == ("worker", "Payments")
    async with Stream(
        edge, "GET", f"/v1/runs/{stream.run_id}/events", params={"dialect": "executions"}
    ) as again:
        assert contents(await again.rest()) == events


async def test_the_canonical_events_are_those_of_one_run_unless_the_request_asks_for_children(
    edge: Client, bus: Bus, workflows: PretendWorkflows
) -> None:
    body = {"agent": "diagnosis", "message": "Hello"}
    accept = {"accept": "text/event-stream"}
    async with Stream(edge, "POST", "/v1/runs", json=body, headers=accept) as stream:
        await decide(bus, workflows)
        own = contents(await stream.rest())
    assert not any(event["event"]["category"] == "llm" for event in own)
    path = f"/v1/runs/{stream.run_id}/events"
    async with Stream(edge, "GET", path, params={"include": "children"}) as stream:
        whole = contents(await stream.rest())
    assert len(whole) > len(own)

    async def page(**query: str) -> dict[str, Any]:
        headers = {"accept": "application/json"}
        found: dict[str, Any] = (await edge.get(path, params=query, headers=headers)).json()
        return found

    one = await page(include="children", limit="7")
    assert one["events"] == whole[:7]
    rest = await page(include="children", after=one["next"])
    assert one["events"] + rest["events"] == whole
    none = await page(include="none", dialect="unified")
    assert not any("agent_message" in event["type"] for event in none["events"])


@pytest.mark.parametrize(
    "query",
    [{"include": "all"}, {"include": "children", "dialect": "raw"}, {"dialect": "raw"}],
    ids=["unknown", "raw with children", "raw"],
)
async def test_an_invalid_include_starts_nothing(
    edge: Client, workflows: PretendWorkflows, query: dict[str, str]
) -> None:
    headers = {"accept": "text/event-stream"}
    body = {"agent": "diagnosis", "message": "Hello"}
    answer = await edge.post("/v1/runs", json=body, params=query, headers=headers)
    assert answer.status_code == 422
    assert "include" in answer.json()["detail"]
    assert workflows.trees == []


async def test_a_workflows_run_has_no_raw_bytes(
    edge: Client, bus: Bus, workflows: PretendWorkflows
) -> None:
    body = {"agent": "diagnosis", "message": "Hello"}
    accept = {"accept": "text/event-stream"}
    async with Stream(edge, "POST", "/v1/runs", json=body, headers=accept) as stream:
        await decide(bus, workflows)
        await stream.rest()
    for include in ("", "&include=none", "&include=children"):
        answer = await edge.get(f"/v1/runs/{stream.run_id}/events?dialect=raw{include}")
        assert answer.status_code == 422, answer.text
        assert "make no common stream" in answer.json()["detail"]


async def test_agno_pauses_with_the_call_of_a_worker_and_continues_with_the_answer(
    edge: Client, workflows: PretendWorkflows
) -> None:
    path, body = "/workflows/diagnosis/runs", {"message": "Hello", "stream": "true"}
    async with Stream(edge, "POST", path, data=body) as stream:
        first = contents(await stream.rest())
    paused = first[-1]
    assert paused["event"] == "WorkflowPaused"
    given = {
        "step_requirements": orjson.dumps(
            [confirmed(each) for each in paused["step_requirements"]]
        ).decode(),
        "stream": "true",
    }
    path = f"/workflows/diagnosis/runs/{stream.run_id}/continue"
    async with Stream(edge, "POST", path, data=given) as stream:
        second = contents(await stream.rest())
    assert decision(workflows) == (workflows.trees[0].approval_id, APPROVED)
    assert second[-1]["event"] == "WorkflowCompleted"
    texts = [each["content"] for each in second if each["event"] == "RunContent"]
    assert texts.count("three") == 2
    assert "one " not in texts


def confirmed(step: dict[str, Any]) -> dict[str, Any]:
    """Return a step requirement as Agno's client sends it back with a consent to its calls."""
    asked = step["executor_requirements"]
    return {**step, "executor_requirements": [{**each, "confirmation": True} for each in asked]}


async def test_agno_answers_a_request_without_a_stream_with_the_run(
    edge: Client, bus: Bus, workflows: PretendWorkflows
) -> None:
    path, body = "/workflows/diagnosis/runs", {"message": "Hello", "stream": "false"}
    answer = await edge.post(path, data=body)
    assert answer.json()["status"] == "PAUSED", answer.text
    await decide(bus, workflows)


async def test_adk_pauses_with_the_call_of_a_worker_and_continues_with_the_answer(
    edge: Client, workflows: PretendWorkflows
) -> None:
    asked = {**RUN_SSE, "newMessage": {"role": "user", "parts": [{"text": "Hello"}]}}
    async with Stream(edge, "POST", "/run_sse", json=asked) as stream:
        first = contents(await stream.rest())
    [call] = [
        part["functionCall"]
        for part in first[-1]["content"]["parts"]
        if part["functionCall"]["name"] == "adk_request_confirmation"
    ]
    response = {"id": call["id"], "name": call["name"], "response": {"confirmed": True}}
    message = {"role": "user", "parts": [{"functionResponse": response}]}
    async with Stream(edge, "POST", "/run_sse", json={**RUN_SSE, "newMessage": message}) as stream:
        second = contents(await stream.rest())
    assert decision(workflows) == (workflows.trees[0].approval_id, APPROVED)
    texts = [
        part["text"]
        for event in second
        for part in event.get("content", {}).get("parts", ())
        if "text" in part and not event.get("partial")
    ]
    assert texts.count("one two three") == 2


async def test_adks_older_pair_continues_at_the_frame_of_a_step(
    edge: Client, workflows: PretendWorkflows
) -> None:
    path = "/apps/diagnosis/users/anonymous/sessions/older/run"
    for number in (1, 2):
        await edge.post(path, json={"query": "Hello"})
        await eventually(partial(has_asked, workflows, number), what="a pause")
        workflows.trees[-1].decided.set()
    await workflows.stop()
    first = workflows.trees[0]
    after = {"after": f"{first.runs['plan'].places[3]}-0"}  # the plan's whole text is the next one
    async with Stream(edge, "GET", path, params=after) as stream:
        frames = contents(await stream.rest())
    assert {frame["runId"] for frame in frames} == {first.root.run_id}
    assert frames[0]["content"] == "The plan"
    assert frames[-1]["type"] == "research_complete"


async def has_asked(workflows: PretendWorkflows, number: int) -> bool:
    """Return whether this many workflows have begun, and the last one waits for a person."""
    return len(workflows.trees) == number and workflows.trees[-1].asked


def run_input(**more: Any) -> dict[str, Any]:
    """Return a RunAgentInput of AG-UI."""
    return {
        "threadId": "thread-1",
        "runId": "run-1",
        "messages": [{"id": "m1", "role": "user", "content": "Hello"}],
        "tools": [],
        "context": [],
        "state": {},
        "forwardedProps": {},
        **more,
    }


@pytest.mark.parametrize("recorded", ["before", "after"])
@pytest.mark.parametrize("answered", ["resume", "message"])
async def test_agui_is_interrupted_by_a_worker_and_continues_with_the_answer(
    edge: Client,
    workflows: PretendWorkflows,
    answered: str,
    recorded: str,
    unique_thread: Callable[[], str],
) -> None:
    """A client may answer before or after the approvals service has recorded the approval."""
    if recorded == "after":
        workflows.may_record.clear()
    thread = unique_thread()
    body = run_input(threadId=thread)
    async with Stream(edge, "POST", "/agui/diagnosis", json=body) as stream:
        first = contents(await stream.rest())
    [interrupt] = first[-1]["outcome"]["interrupts"]
    if answered == "resume":
        entry = {"interruptId": interrupt["id"], "status": "resolved", "payload": True}
        body = run_input(threadId=thread, runId="run-2", resume=[entry])
    else:
        result = {
            **{"id": "m2", "role": "tool", "content": "true"},
            "toolCallId": interrupt["toolCallId"],
        }
        messages = [*body["messages"], result]
        body = run_input(threadId=thread, runId="run-2", messages=messages)
    asyncio.get_running_loop().call_later(0.3, workflows.may_record.set)
    async with Stream(edge, "POST", "/agui/diagnosis", json=body) as stream:
        second = contents(await stream.rest())
    assert decision(workflows) == (workflows.trees[0].approval_id, APPROVED)
    assert second[0]["type"] == "RUN_STARTED"
    assert second[0]["runId"] == "run-2"
    assert second[-1]["type"] == "RUN_FINISHED"
    starts = [each["messageId"] for each in second if each["type"] == "TEXT_MESSAGE_START"]
    assert len(starts) == len(set(starts)) == 2


@pytest.fixture
def unique_thread() -> Callable[[], str]:
    """Return a function that returns a thread id of its own for each call."""
    return lambda: str(uuid_utils.uuid7())


async def test_a_tree_whose_beginning_has_expired_has_the_rest_and_says_so_once(
    edge: Client, bus: Bus, workflows: PretendWorkflows
) -> None:
    started = await edge.post("/v1/runs", json={"agent": "diagnosis", "message": "Hello"})
    run_id = started.json()["run_id"]
    while not workflows.trees or not workflows.trees[-1].asked:
        await asyncio.sleep(0.01)
    [tree] = workflows.trees
    for run in tree.runs.values():
        entry = await bus.bucket("runs").get(run.run_id)
        assert entry is not None
        record = RunRecord.model_validate_json(entry.value)
        done = run.run_id in (tree.runs["plan"].run_id, tree.runs["other"].run_id)
        status = {"status": "completed" if done else "running", "first_event": run.first}
        await bus.bucket("runs").put(run.run_id, record.model_copy(update=status).dump())
    purge = {"seq": tree.places[-1] + 1}
    await bus.api(f"STREAM.PURGE.{streams.EVENTS}", purge)
    path = f"/v1/runs/{run_id}/events"
    async with Stream(edge, "GET", path, params={"include": "children"}) as stream:
        await stream.read_until(b"history_truncated")
        tree.decided.set()
        frames = await stream.rest()
    assert stream.body.count(b"history_truncated") == 1
    events = contents(frames)[1:]
    texts = [each["data"] for each in events if each["event"]["action"] == "message_completed"]
    assert [each["content"] for each in texts] == ["one two three"] * 2
    assert {each["subrun"]["name"] for each in events if each.get("subrun")} == {
        *("team", "logs", "metrics")
    }
    assert events[-1]["event"]["action"] == "completed"


async def test_the_live_marker_comes_after_what_is_stored(
    edge: Client, bus: Bus, workflows: PretendWorkflows
) -> None:
    started = await edge.post("/v1/runs", json={"agent": "diagnosis", "message": "Hello"})
    while not workflows.trees or not workflows.trees[-1].asked:
        await asyncio.sleep(0.01)
    path = f"/v1/runs/{started.json()['run_id']}/events"
    query = {"include": "children", "markers": "on"}
    async with Stream(edge, "GET", path, params=query) as stream:
        await stream.read_until(b"penstock.live")
        await decide(bus, workflows)
        frames = await stream.rest()
    names = [frame.event for frame in frames]
    assert names.count("penstock.live") == 1
    assert names[names.index("penstock.live") - 1] == "lifecycle.paused"


async def test_a_thread_takes_the_cursor_of_a_step_and_continues_with_the_workflow(
    edge: Client, workflows: PretendWorkflows, unique_thread: Callable[[], str]
) -> None:
    thread = unique_thread()
    body = run_input(threadId=thread)
    async with Stream(edge, "POST", "/agui/diagnosis", json=body) as stream:
        frames = await stream.rest()
    [text] = [frame for frame in frames if b'"delta":"half"' in frame.data]
    await workflows.stop()  # the run has ended
    path = f"/agui/diagnosis/threads/{thread}/events"
    query = {"after": text.id or "", "until": "idle"}
    async with Stream(edge, "GET", path, params=query) as stream:
        rest = contents(await stream.rest())
    assert [each["type"] for each in rest if each["type"].startswith("RUN_")] == [
        *("RUN_FINISHED", "RUN_STARTED", "RUN_FINISHED")
    ]


async def test_a_chat_of_the_ai_sdk_has_the_steps_as_one_message_and_answers_a_step(
    edge: Client, workflows: PretendWorkflows
) -> None:
    chat = f"chat {uuid_utils.uuid7()}"

    async def leg(*messages: Json) -> list[Frame]:
        body = {"id": chat, "trigger": "submit-message", "messages": messages}
        async with Stream(edge, "POST", "/vercel/diagnosis", json=body) as stream:
            return await stream.rest()

    async def resumed(**query: str) -> list[Frame]:
        path = f"/vercel/diagnosis/{chat}/stream"
        async with Stream(edge, "GET", path, params=query) as stream:
            assert stream.response.status_code in (200, 204)
            return await stream.rest()

    def chunks(frames: list[Frame]) -> list[Json]:
        return [orjson.loads(frame.data) for frame in frames if frame.data != DONE]

    first = await leg(user())
    assert vercel_rules.faults(chunks(first)) == []
    assert await resumed() == first
    assert await resumed(after=first[-1].id or "") == []
    [asked] = [each for each in chunks(first) if each["type"] == "tool-approval-request"]
    approval = {"id": asked["approvalId"], "descriptor": asked["approvalDescriptor"]}
    shown = {"type": "dynamic-tool", "state": "approval-responded"}
    second = await leg(user(), agents({**shown, "approval": {**approval, "approved": True}}))
    assert decision(workflows) == (workflows.trees[-1].approval_id, APPROVED)
    assert workflows.decisions[0][1].digest == asked["approvalDescriptor"]["digest"]
    whole = await resumed()
    assert vercel_rules.faults(chunks(whole)) == []
    texts = [vercel_rules.joined(chunks(each), "text-delta") for each in (first, second, whole)]
    assert texts[0] + texts[1] == texts[2]
    assert texts[2].startswith("The plan")
    steps = {
        each["id"]: each["data"]
        for each in chunks(whole)
        if each["type"].endswith("-step") and "data" in each
    }
    assert {each["status"] for each in steps.values()} == {"completed", "failed"}
    for at in range(0, len(whole), 7):
        assert await resumed(after=whole[at].id or "") == whole[at + 1 :]
