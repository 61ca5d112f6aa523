"""A2A's clients start, read, cancel and follow tasks, over JSON-RPC and REST, in 1.0 and 0.3."""

from __future__ import annotations

import asyncio
from typing import Any

import orjson
import pytest

from penstock.bus import Bus
from penstock.bus.records.approvals import DecideRequest
from penstock.dialects.a2a import EXTENSION, TaskFold
from penstock_edge.sources import read_run
from support.drive.clients import Client, Stream, contents
from support.fakes.pretend import PretendApprovals, PretendRun

V1 = {"a2a-version": "1.0"}
EXTENDED = {**V1, "a2a-extensions": EXTENSION}
ITEM = {"item_id": "C", "kind": "confirmation", "tool": "delete_file", "args": {"path": "a"}}


def message(*parts: dict[str, Any], **fields: Any) -> dict[str, Any]:
    return {"messageId": "m-1", "role": "ROLE_USER", "parts": list(parts), **fields}


def hello(**fields: Any) -> dict[str, Any]:
    return message({"text": "Hello"}, **fields)


def rpc(method: str, params: dict[str, Any]) -> dict[str, Any]:
    return {"jsonrpc": "2.0", "id": 7, "method": method, "params": params}


def post(edge: Client, method: str, headers: dict[str, str] = V1, **params: Any) -> Stream:
    return Stream(edge, "POST", "/a2a/assistant", json=rpc(method, params), headers=headers)


async def call(edge: Client, method: str, headers: dict[str, str] = V1, **params: Any) -> Any:
    answer = await edge.post("/a2a/assistant", json=rpc(method, params), headers=headers)
    assert answer.status_code == 200, answer.text
    body = answer.json()
    assert (body["jsonrpc"], body["id"]) == ("2.0", 7)
    return body.get("result") or body["error"]


def results(stream: list[Any]) -> list[Any]:
    return [each.data and orjson.loads(each.data)["result"] for each in stream]


@pytest.fixture
async def approvals(bus: Bus) -> PretendApprovals:
    approvals = PretendApprovals(bus)
    await approvals.start()
    return approvals


async def paused(bus: Bus, approvals: PretendApprovals) -> tuple[PretendRun, str]:
    """Return a run that waits for a decision, and the approval's id."""
    run = PretendRun(bus)
    await run.record(status="paused")
    await run.started()
    await run.text("I will", " delete it.")
    approval_id = await approvals.request(
        run.run_id, "assistant", run.session_id, {"C": "confirmation"}
    )
    await run.say("approval.requested", approval_id=approval_id, digest="d", items=[ITEM])
    await run.say("lifecycle.paused", reason="approval_required", approval_id=approval_id)
    return run, approval_id


async def goes_on(run: PretendRun, approval_id: str) -> None:
    await run.say("approval.decided", approval_id=approval_id, outcome="approved", by="u1")
    run.leg_number = 2
    await run.say("lifecycle.resumed", approval_id=approval_id)
    await run.say("llm.stream", content="Deleted.", message_id="m2")
    await run.completed()


async def test_a_message_streams_its_task_to_the_end(edge: Client, bus: Bus) -> None:
    async with post(edge, "SendStreamingMessage", message=hello()) as stream:
        run = PretendRun(bus, stream.run_id)
        await run.started()
        await run.text("Hi", " there")
        await run.completed()
        frames = await stream.rest()
    shown = results(frames)
    assert [next(iter(each)) for each in shown] == [
        "task",
        "statusUpdate",
        "artifactUpdate",
        "artifactUpdate",
        "artifactUpdate",
        "statusUpdate",
    ]
    assert shown[0]["task"]["status"]["state"] == "TASK_STATE_SUBMITTED"
    assert shown[-1]["statusUpdate"]["status"]["state"] == "TASK_STATE_COMPLETED"
    assert all(frame.id for frame in frames)


async def test_a_message_without_a_stream_gets_the_whole_task(edge: Client, bus: Bus) -> None:
    asked = asyncio.create_task(call(edge, "SendMessage", message=hello(contextId="c-whole")))
    run = await started(bus, edge, "c-whole")
    await run.text("Hi", " there")
    await run.completed()
    task = (await asked)["task"]
    assert task["id"] == run.run_id
    assert task["artifacts"][0]["parts"] == [{"text": "Hi there"}]


async def started(bus: Bus, edge: Client, context: str) -> PretendRun:
    for _ in range(200):
        runs = (await edge.get("/v1/runs", params={"session_id": context})).json()["runs"]
        if runs:
            run = PretendRun(bus, runs[0]["run_id"], context)
            await run.started()
            return run
        await asyncio.sleep(0.05)
    raise AssertionError("no run has begun")


async def test_a_client_that_subscribes_again_gets_the_task_whole_and_then_the_rest(
    edge: Client, run: PretendRun
) -> None:
    await run.started()
    await run.text("a", "b")
    path = f"/a2a/assistant/tasks/{run.run_id}:subscribe"
    async with Stream(edge, "POST", path, headers=V1) as stream:
        task = await stream.event()
        assert task["task"]["artifacts"][0]["parts"] == [{"text": "ab"}]
        await run.text("c")
        await run.completed()
        fold = TaskFold()
        fold.add(task)
        rest = contents(await stream.rest())
        for each in rest:
            fold.add(each)
    assert [next(iter(each)) for each in rest] == [
        *("artifactUpdate", "artifactUpdate", "statusUpdate")
    ]
    assert fold.task()["artifacts"][0]["parts"] == [{"text": "abc"}]
    assert fold.task()["status"]["state"] == "TASK_STATE_COMPLETED"
    answer = await edge.post(path, headers=V1)
    assert answer.status_code == 400
    assert answer.json()["error"]["details"][0]["reason"] == "UNSUPPORTED_OPERATION"


async def test_a_cursor_continues_exactly_after_its_frame(edge: Client, run: PretendRun) -> None:
    await run.started()
    await run.text("a", "b")
    path = f"/a2a/assistant/tasks/{run.run_id}:subscribe"
    events = f"/v1/runs/{run.run_id}/events"
    await run.completed()
    async with Stream(edge, "GET", events, params={"dialect": "a2a"}) as stream:
        whole = await stream.rest()
    for cut, frame in enumerate(whole[:-1], 1):
        headers = {**EXTENDED, "last-event-id": frame.id or ""}
        async with Stream(edge, "POST", path, headers=headers) as stream:
            assert await stream.rest() == whole[cut:]


async def test_a_pause_asks_with_a_digest_and_the_answer_streams_the_next_leg(
    edge: Client, bus: Bus, approvals: PretendApprovals
) -> None:
    run, approval_id = await paused(bus, approvals)
    task = await call(edge, "GetTask", id=run.run_id)
    assert task["status"]["state"] == "TASK_STATE_INPUT_REQUIRED"
    text, part = task["status"]["message"]["parts"]
    assert "delete_file" in text["text"]
    asked = part["data"]["data"]
    assert (asked["approval_id"], asked["digest"]) == (approval_id, "d")

    async def go_on(_: DecideRequest) -> None:
        await goes_on(run, approval_id)

    approvals.on_decision = go_on
    decision = {"approval_id": approval_id, "digest": asked["digest"], "decision": "approve"}
    answer = message({"data": decision}, taskId=run.run_id)
    async with post(edge, "SendStreamingMessage", EXTENDED, message=answer) as stream:
        shown = results(await stream.rest())
    assert b'"type":"approval.decided"' in stream.body
    assert shown[0]["task"]["artifacts"][0]["parts"] == [{"text": "I will delete it."}]
    assert shown[-1]["statusUpdate"]["status"]["state"] == "TASK_STATE_COMPLETED"
    [decided] = approvals.decisions
    assert (decided.digest, decided.decider.channel) == ("d", "a2a")
    assert [(item.item_id, item.decision) for item in decided.items] == [("C", "approve")]


async def test_a_decision_has_the_digest_that_its_client_sent_and_none_is_refused(
    edge: Client, bus: Bus, approvals: PretendApprovals
) -> None:
    run, approval_id = await paused(bus, approvals)
    decision = {"approval_id": approval_id, "decision": "approve"}
    asked = message({"data": decision}, taskId=run.run_id)
    assert (await call(edge, "SendMessage", message=asked))["code"] == -32602
    foreign = PretendRun(bus)
    await foreign.record(status="paused")
    await foreign.started()
    asked = message({"data": {**decision, "digest": "d"}}, taskId=foreign.run_id)
    assert (await call(edge, "SendMessage", message=asked))["code"] == -32602
    assert approvals.decisions == []
    asked = message({"data": {**decision, "digest": "another"}}, taskId=run.run_id)
    await call(edge, "SendMessage", message=asked, configuration={"returnImmediately": True})
    assert [each.digest for each in approvals.decisions] == ["another"]


async def test_a_yes_as_text_is_told_that_the_task_waits(
    edge: Client, bus: Bus, approvals: PretendApprovals
) -> None:
    run, _ = await paused(bus, approvals)
    task = (await call(edge, "SendMessage", message=message({"text": "yes"}, taskId=run.run_id)))[
        "task"
    ]
    assert task["status"]["state"] == "TASK_STATE_INPUT_REQUIRED"
    assert "a text decides nothing" in task["status"]["message"]["parts"][0]["text"]
    assert approvals.decisions == []


async def test_clients_of_0_3_read_the_same_task(edge: Client, bus: Bus) -> None:
    asked = {
        "kind": "message",
        "messageId": "m-3",
        "role": "user",
        "parts": [{"kind": "text", "text": "Hello"}],
    }
    async with post(edge, "message/stream", {}, message=asked) as stream:
        run = PretendRun(bus, stream.run_id)
        await run.started()
        await run.text("Hi")
        await run.completed()
        shown = results(await stream.rest())
    assert [each["kind"] for each in shown] == [
        *("task", "status-update", "artifact-update", "artifact-update", "status-update")
    ]
    assert [each.get("final") for each in shown] == [None, False, None, None, True]
    assert shown[2]["artifact"]["parts"] == [{"kind": "text", "text": "Hi"}]
    task = await call(edge, "tasks/get", {}, id=run.run_id)
    assert (task["kind"], task["status"]["state"]) == ("task", "completed")


async def test_a_list_has_the_callers_tasks_and_always_a_page_token(
    edge: Client, run: PretendRun
) -> None:
    await run.record(status="completed", session_id="c-list")
    for _ in range(100):
        page = await call(edge, "ListTasks", contextId="c-list")
        if page["tasks"]:
            break
        await asyncio.sleep(0.05)
    assert [task["id"] for task in page["tasks"]] == [run.run_id]
    assert page["nextPageToken"] == ""
    assert "artifacts" not in page["tasks"][0]


@pytest.mark.parametrize(
    ("method", "params", "code"),
    [
        ("GetTask", {"id": "nothing"}, -32001),
        ("CancelTask", {"id": "nothing"}, -32001),
        ("SendMessage", {"message": message({"raw": "AA=="})}, -32005),
        ("SendMessage", {"message": hello(taskId="nothing")}, -32001),
        ("SendMessage", {"message": {}}, -32602),
        ("CreateTaskPushNotificationConfig", {"url": "https://example.com"}, -32001),
        ("GetTaskPushNotificationConfig", {"taskId": "nothing"}, -32001),
        ("GetExtendedAgentCard", {}, -32004),
        ("message/send", {}, -32601),
        ("ListTasks", {"pageSize": 101}, -32602),
    ],
)
async def test_a_method_that_is_refused_has_the_protocols_code(
    edge: Client, method: str, params: dict[str, Any], code: int
) -> None:
    assert (await call(edge, method, **params))["code"] == code


async def test_an_error_over_rest_has_the_status_of_its_reason(
    edge: Client, run: PretendRun
) -> None:
    await run.started()
    await run.completed()
    task, found = f"tasks/{run.run_id}", {}
    for path in ("tasks/nothing:cancel", f"{task}:cancel", f"{task}:subscribe", "message:send"):
        body = {"message": message({"raw": "AA=="})} if path == "message:send" else None
        answer = await edge.post(f"/a2a/assistant/{path}", json=body, headers=V1)
        error = answer.json()["error"]
        assert error["code"] == answer.status_code
        found[error["details"][0]["reason"]] = (error["code"], error["status"])
    assert found == {
        "TASK_NOT_FOUND": (404, "NOT_FOUND"),
        "TASK_NOT_CANCELABLE": (400, "FAILED_PRECONDITION"),
        "UNSUPPORTED_OPERATION": (400, "FAILED_PRECONDITION"),
        "CONTENT_TYPE_NOT_SUPPORTED": (400, "INVALID_ARGUMENT"),
    }


async def test_another_version_is_refused(edge: Client) -> None:
    error = await call(edge, "GetTask", {"a2a-version": "99.0"}, id="x")
    assert error["code"] == -32009
    answer = await edge.get("/a2a/assistant/tasks/x")
    assert answer.json()["error"]["details"][0]["reason"] == "VERSION_NOT_SUPPORTED"


async def test_a_card_names_the_interfaces_and_the_extension(edge: Client) -> None:
    answer = await edge.get("/a2a/assistant/.well-known/agent-card.json")
    card = answer.json()
    url = str(answer.url).partition("/.well-known")[0]
    assert {each["url"] for each in card["supportedInterfaces"]} == {url}
    assert card["capabilities"]["extensions"][0]["uri"] == EXTENSION
    again = await edge.get(
        "/a2a/assistant/.well-known/agent-card.json",
        headers={"if-none-match": answer.headers["etag"]},
    )
    assert again.status_code == 304
    older = (await edge.get("/a2a/assistant/0.3/.well-known/agent-card.json")).json()
    assert (older["url"], older["protocolVersion"]) == (url, "0.3.0")
    assert "supportedInterfaces" not in older


async def test_with_the_extension_a_message_that_is_sent_again_begins_no_second_task(
    edge: Client,
) -> None:
    config = {"returnImmediately": True}
    asked = hello(messageId="m-again", contextId="c-again")
    tasks = [
        (await call(edge, "SendMessage", headers, message=asked, configuration=config))["task"][
            "id"
        ]
        for headers in (EXTENDED, EXTENDED, V1, V1)
    ]
    assert tasks[0] == tasks[1]
    assert len(set(tasks)) == 3


async def test_a_task_of_too_many_bytes_is_refused_and_its_stream_goes_on(
    edge: Client, bus: Bus, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = PretendRun(bus)
    await run.record(status="running")
    await run.started()
    await run.text("a" * 400, "b" * 400)
    task = await call(edge, "GetTask", id=run.run_id)
    assert task["status"]["state"] == "TASK_STATE_WORKING"
    monkeypatch.setattr(read_run, "BYTES_READ", 700)
    for method, params in (
        ("GetTask", {"id": run.run_id}),
        ("ListTasks", {"contextId": run.session_id, "includeArtifacts": True}),
    ):
        error = await call(edge, method, **params)
        assert "too many or too large" in error["message"]
    headers = {**V1, "last-event-id": f"{run.places[-1]}-0"}
    async with post(edge, "SubscribeToTask", headers, id=run.run_id) as stream:
        await run.completed()
        assert results(await stream.rest())[-1]["statusUpdate"]["status"]["state"].endswith("ED")
