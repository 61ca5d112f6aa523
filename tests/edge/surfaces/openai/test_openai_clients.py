"""OpenAI's own clients, unchanged, against the edge; the run behind it is pretended."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest

from penstock.bus import Bus
from penstock.bus.records.approvals import DecideRequest
from penstock.bus.records.runs import RunRecord, StartCommand
from penstock.dialects.openai import RequestId
from support.drive.clients import Client, MakeEdge
from support.drive.short import in_short
from support.fakes.cutter import cutter
from support.fakes.pretend import PretendApprovals, PretendConnector, PretendRun
from support.real.openai_client import LANGUAGES, OpenAIClient, Refused, running

ITEM = {
    "digest": "sha256:" + 16 * "0123",
    "tool": "delete_file",
    "args": {"path": "a"},
    "tool_call_id": "c1",
}


# `make test` tries most with the first language alone, `make faults` all with each.
@pytest.fixture(scope="module", params=in_short(LANGUAGES, LANGUAGES[:1]))
def openai(request: pytest.FixtureRequest, edge: Client) -> Iterator[OpenAIClient]:
    with running(request.param, str(edge.base_url)) as client:
        yield client


async def hello(run: PretendRun, command: StartCommand) -> None:
    run.session_id = command.session_id
    await run.started()
    await run.say("llm.reasoning", thought="Hm.", reasoning_id="r1", final=True)
    call = {"tool": "look", "tool_call_id": "c0"}
    await run.say("llm.tool_call", **call, args={"at": "x"})
    await run.say("llm.tool_result", **call, result={"seen": 1}, outcome="ok")
    await run.text("Hello, ", command.message)
    done = f"Hello, {command.message}"
    await run.say("llm.message_completed", message_id="m1", content=done, role="assistant")
    await run.say("llm.usage", input_tokens=3, output_tokens=2, reported="call", estimated=False)
    await run.completed(done)


@pytest.fixture
async def runs(bus: Bus) -> AsyncIterator[list[StartCommand]]:
    """Play `hello` for each start; return the commands."""
    commands: list[StartCommand] = []

    async def play(run: PretendRun, command: StartCommand) -> None:
        # A repeated request may publish the command again, and a connector claims a run once.
        if command.run_id not in [each.run_id for each in commands]:
            commands.append(command)
            await hello(run, command)

    connector = PretendConnector(bus, play)
    await connector.start()
    yield commands
    await connector.stop()


def kinds(output: list[dict[str, Any]]) -> list[str]:
    return [item["type"] for item in output]


def texts(output: list[dict[str, Any]]) -> list[Any]:
    """Return the items without what the client's accumulator adds."""
    parts = [item.get("content") or item.get("summary") or [item] for item in output]
    return [(part.get("text"), part.get("output")) for item in parts for part in item]


def body(**fields: Any) -> dict[str, Any]:
    return {"model": "assistant", "input": "you", **fields}


async def test_a_response_is_read_whole(openai: OpenAIClient, runs: list[StartCommand]) -> None:
    whole = await openai.call("create", body=body())
    assert whole["status"] == "completed"
    assert whole["output_text"] == "Hello, you"
    assert kinds(whole["output"]) == ["reasoning", "mcp_call", "message"]
    assert whole["output"][1]["output"] == '{"seen":1}'
    assert whole["usage"]["total_tokens"] == 5
    [command] = runs
    named = {"run_id": command.run_id, "session_id": command.session_id}
    assert whole["metadata"] == named
    again = await openai.call("retrieve", id=whole["id"])
    assert again["output"] == whole["output"]
    [item] = await openai.call("inputs", id=whole["id"])
    assert item["content"][0]["type"] == "input_text"


@pytest.mark.parametrize("every", in_short([1, 4], [4]))
async def test_a_stream_is_numbered_without_gaps_and_resumed_exactly_at_each_number(
    openai: OpenAIClient, runs: list[StartCommand], every: int
) -> None:
    events = await openai.call("stream", body=body())
    assert [event["sequence_number"] for event in events] == [*range(len(events))]
    assert events[-1]["type"] == "response.completed"
    response_id = events[0]["response"]["id"]
    for after in range(0, len(events), every):
        assert await openai.call("resume", id=response_id, after=after) == events[after + 1 :]
    final = await openai.call("final", id=response_id, after=4)
    assert texts(final["output"]) == texts(events[-1]["response"]["output"])


@pytest.mark.parametrize("openai", LANGUAGES, indirect=True)
async def test_a_stream_that_the_client_left_is_continued(
    openai: OpenAIClient, runs: list[StartCommand]
) -> None:
    read = await openai.call("stream", body=body(background=True), cut=3)
    rest = await openai.call("resume", id=read[0]["response"]["id"], after=2)
    numbers = [event["sequence_number"] for event in read + rest]
    assert numbers == [*range(len(numbers))]
    assert rest[-1]["response"]["status"] == "completed"


async def test_a_chat_is_streamed_and_read_whole(
    openai: OpenAIClient, runs: list[StartCommand]
) -> None:
    messages = [{"role": "user", "content": "you"}]
    asked = {"model": "assistant", "messages": messages}
    whole = await openai.call("chat", body=asked)
    assert whole["choices"][0]["message"]["content"] == "Hello, you"
    assert whole["choices"][0]["finish_reason"] == "stop"
    options = {"stream": True, "stream_options": {"include_usage": True}}
    chunks = await openai.call("chat", body={**asked, **options})
    said = [each["choices"][0]["delta"].get("content") or "" for each in chunks if each["choices"]]
    assert "".join(said) == "Hello, you"
    assert chunks[-1]["usage"]["total_tokens"] == 5


async def test_the_models_are_the_agents(openai: OpenAIClient) -> None:
    assert await openai.call("models") == ["assistant", "helper"]
    with pytest.raises(Refused) as refused:
        await openai.call("create", body=body(model="nobody"))
    assert (refused.value.status, refused.value.body["code"]) == (404, "model_not_found")


async def test_a_decision_is_an_item_with_the_digest_and_continues_the_run(
    openai: OpenAIClient, edge: Client, bus: Bus
) -> None:
    approvals = PretendApprovals(bus)
    await approvals.start()
    asked: list[str] = []

    async def play(run: PretendRun, command: StartCommand) -> None:
        await run.started()
        await run.say("llm.tool_call", tool="delete_file", tool_call_id="c1", args={}, pending=True)
        approval_id = await approvals.request(
            run.run_id, "assistant", command.session_id, {"i1": "confirmation"}, i1=ITEM
        )
        asked.append(approval_id)
        item = {"item_id": "i1", "kind": "confirmation", "editable": False, **ITEM}
        await run.say("approval.requested", approval_id=approval_id, digest="d", items=[item])
        await run.say("lifecycle.paused", reason="approval_required", approval_id=approval_id)

        async def go_on(decision: DecideRequest) -> None:
            decided = [each.model_dump() for each in decision.items]
            facts = {"outcome": "approved", "by": "u", "automatic": False, "items": decided}
            await run.say("approval.decided", approval_id=approval_id, **facts)
            run.leg_number = 2
            await run.say("lifecycle.resumed", approval_id=approval_id)
            call = {"tool": "delete_file", "tool_call_id": "c1"}
            await run.say("llm.tool_result", **call, result="gone", outcome="ok")
            await run.text("Deleted.")
            await run.completed()

        approvals.on_decision = go_on

    connector = PretendConnector(bus, play)
    await connector.start()
    first = await openai.call("create", body=body())
    [request] = first["output"]
    assert request["type"] == "mcp_approval_request"
    assert request["id"] == str(RequestId.of(asked[0], ITEM))
    following = first["metadata"]["next_response_id"]
    assert (await openai.call("retrieve", id=following))["status"] == "queued"
    path = f"/openai/v1/responses/{following}"
    watching = asyncio.create_task(edge.get(path, params={"stream": "true"}))
    answer = {"type": "mcp_approval_response", "approval_request_id": request["id"]}
    given = [{**answer, "approve": True, "reason": "fine"}]
    then = await openai.call("create", body=body(input=given, previous_response_id=first["id"]))
    assert then["output_text"] == "Deleted."
    assert then["id"] == following
    assert '"text":"Deleted."' in (await watching).text, "another person's client sees it, too"
    assert then["output"][0]["approval_request_id"] == request["id"]
    [decision] = approvals.decisions
    assert decision.decider.channel == "openai"
    assert [(item.item_id, item.decision, item.note) for item in decision.items] == [
        ("i1", "approve", "fine")
    ]
    [item] = await openai.call("inputs", id=then["id"])
    assert (item["approval_request_id"], item["approve"]) == (request["id"], True)
    again = await openai.call("retrieve", id=first["id"])
    assert again["output"] == first["output"], "the first leg ends with its request"
    assert again["metadata"] == first["metadata"]
    await connector.stop()


CALLS = {
    "whole": ("create", body()),
    "stream": ("stream", body()),
    "at once": ("create", body(background=True)),
    "chat": ("chat", {"model": "assistant", "messages": [{"role": "user", "content": "you"}]}),
}


@pytest.mark.parametrize("name", CALLS)
async def test_a_request_that_the_client_repeats_starts_one_run(
    openai: OpenAIClient, edge: Client, runs: list[StartCommand], name: str
) -> None:
    do, asked = CALLS[name]
    # The first two responses do not arrive.
    async with cutter(str(edge.base_url), [0, 0]) as broken:
        await openai.call(do, body=asked, url=broken.url)
        assert (broken.cut, len(runs)) == (2, 1)
        # The user says the same again.
        await openai.call(do, body=asked, url=broken.url)
    assert len(runs) == 2


async def test_what_a_retry_repeats_is_not_a_request_of_another_time_path_or_user(
    edge: Client, bus: Bus, runs: list[StartCommand]
) -> None:
    async def start(count: int, path: str = "/openai/v1/responses", **fields: Any) -> None:
        headers = {"x-stainless-retry-count": f"{count}"}
        answer = await edge.post(path, json=body(background=True, **fields), headers=headers)
        assert answer.is_success, answer.text

    await start(1)  # the first request never arrived
    await start(1)
    assert len(runs) == 1
    await start(0)
    await start(2)
    await start(2, input="they")
    assert len(runs) == 3
    # The run of the newest request has ended long ago, so the retry is of a later request.
    record = await bus.bucket("runs").load(runs[-2].run_id, RunRecord)
    assert record is not None
    ended = {"status": "completed", "updated_at": "2026-01-01T00:00:00.000Z"}
    await bus.bucket("runs").put(record.run_id, record.model_copy(update=ended).dump())
    await start(1)
    assert len(runs) == 4


async def test_an_idempotency_key_is_taken_as_it_is(edge: Client, runs: list[StartCommand]) -> None:
    headers = {"idempotency-key": f"key of {id(runs)}", "x-stainless-retry-count": "0"}
    for _ in range(2):
        answer = await edge.post("/openai/v1/responses", json=body(), headers=headers)
        assert answer.is_success, answer.text
    assert len(runs) == 1


@pytest.mark.parametrize(
    ("fields", "status", "param"),
    [
        ({"input": []}, 400, "input"),
        ({"input": [{"role": "user", "content": [{"type": "input_image"}]}]}, 400, "input"),
        ({"input": [{"type": []}]}, 400, "input"),
        ({"input": [{"role": "user", "content": [{"type": {}}]}]}, 400, "input"),
        ({"previous_response_id": "resp_1"}, 404, "previous_response_id"),
        ({"input": 1}, 422, None),
    ],
)
async def test_a_refusal_has_openais_shape(
    edge: Client, fields: dict[str, Any], status: int, param: str | None
) -> None:
    answer = await edge.post("/openai/v1/responses", json=body(**fields))
    assert answer.status_code == status
    error = answer.json()["error"]
    assert (error["type"], error["param"]) == ("invalid_request_error", param)


async def test_a_response_waits_in_the_queue_and_is_read_while_it_runs(
    edge: Client, bus: Bus
) -> None:
    begun = await edge.post("/openai/v1/responses", json=body(background=True))
    response_id, path = begun.json()["id"], f"/openai/v1/responses/{begun.json()['id']}"
    assert begun.json()["status"] == "queued"
    run = PretendRun(bus, response_id.removeprefix("resp_"))
    await run.started()
    await run.text("Hel", "lo")
    now = (await edge.get(path)).json()
    assert (now["status"], now["output"][0]["content"][0]["text"]) == ("in_progress", "Hello")
    await run.say("lifecycle.failed", error="it broke", code="upstream_error")
    ended = (await edge.get(path)).json()
    assert (ended["status"], ended["output"][0]["status"]) == ("failed", "incomplete")
    assert ended["error"]["message"] == "upstream_error: it broke"
    over = await edge.get(path, params={"stream": "true", "starting_after": "999"})
    assert (over.status_code, over.content) == (200, b"")


async def test_a_response_of_more_events_than_a_page_has_is_read_whole(
    make_edge: MakeEdge, run: PretendRun
) -> None:
    edge = await make_edge(page_events=5)
    await run.started()
    pieces = [f"{number} " for number in range(20)]
    await run.text(*pieces)
    await run.completed()
    whole = (await edge.get(f"/openai/v1/responses/resp_{run.run_id}")).json()
    assert whole["status"] == "completed"
    assert whole["output"][0]["content"][0]["text"] == "".join(pieces)


async def test_a_chat_whose_run_fails_is_an_error(edge: Client, bus: Bus) -> None:
    async def play(run: PretendRun, command: StartCommand) -> None:
        await run.started()
        await run.text("Hel")
        await run.say("lifecycle.failed", error="it broke", code="upstream_error")

    connector = PretendConnector(bus, play)
    await connector.start()
    asked = {"model": "assistant", "messages": [{"role": "user", "content": "you"}]}
    whole = await edge.post("/openai/v1/chat/completions", json=asked)
    assert (whole.status_code, whole.json()["error"]["type"]) == (502, "server_error")
    streamed = await edge.post("/openai/v1/chat/completions", json={**asked, "stream": True})
    assert '"message":"upstream_error: it broke"' in streamed.text
    assert streamed.text.endswith("data: [DONE]\n\n")
    await connector.stop()
