"""The real chat class of the Vercel AI SDK talks to real agents, with Penstock between them."""

from __future__ import annotations

import asyncio
import json
import uuid
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest
import pytest_asyncio

from penstock.settings import Config
from penstock_edge.service import EdgeService
from support.attacks.vercel_answers import FORGED, Waits, answered
from support.drive.pipeline import PIPELINE, Pipeline, pipeline
from support.drive.waiting import eventually
from support.real import vercel_docs
from support.real.nats import NatsServer
from support.real.node import run
from support.real.upstreams import Upstream
from support.real.vercel_client import SCRIPTS, Chat, State, answer_of, chat, parts, text
from support.recorded import vercel_rules

pytestmark = [pytest.mark.real, pytest.mark.asyncio(loop_scope="module")]


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def penstock(
    nats_server: NatsServer, agno_server: Upstream, adk_server: Upstream
) -> AsyncIterator[Pipeline]:
    agno = {"protocol": "agno", "url": agno_server.url}
    agents: list[dict[str, Any]] = [
        {"id": "assistant", "agent": "demo-agent", **agno},
        {"id": "team", "agent": "demo-team", "kind": "team", **agno},
        {"id": "adk", "protocol": "adk", "url": adk_server.url, "agent": "demo"},
    ]
    config = Config.model_validate({"agents": agents})
    async with pipeline(nats_server.url, config, (*PIPELINE, EdgeService)) as running:
        yield running


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def client() -> AsyncIterator[Chat]:
    async with chat("6") as running:
        yield running


async def begin(client: Chat, penstock: Pipeline, agent: str, **given: Any) -> str:
    """Open a new chat; return its id."""
    # An ADK server takes no slash.
    chat_id = f"chat {uuid.uuid4().hex[:8]}{'' if agent == 'adk' else '/'}ü"
    api = f"{str(penstock.http.base_url).rstrip('/')}/vercel/{agent}?sdk={client.version}"
    await client("open", chat=chat_id, api=api, **given)
    return chat_id


def path(agent: str, chat_id: str, last: str) -> str:
    return f"/vercel/{agent}/{quote(chat_id, safe='')}/{last}"


def shape(state: State) -> Any:
    """Return the last message without what differs between two runs."""
    message = answer_of(state)
    known = message["metadata"].pop("runId"), message["metadata"].pop("sessionId")
    assert known[0] == message.pop("id")
    return message


async def asked(client: Chat, penstock: Pipeline, title: str) -> State:
    """Begin a chat whose agent wants to call a tool that needs an approval."""
    await begin(client, penstock, "assistant")
    state = await client("send", text=f"confirm {title}")
    assert state["status"] == "ready", state["errors"]
    return state


def question(state: State) -> dict[str, Any]:
    (part,) = parts(state, "dynamic-tool")
    assert part["state"] == "approval-requested", part
    approval: dict[str, Any] = part["approval"]
    return approval


async def test_a_run_is_one_message_with_its_texts_thoughts_calls_and_usage(
    client: Chat, penstock: Pipeline
) -> None:
    await begin(client, penstock, "assistant")
    state = await client("send", text="reason")
    assert (state["status"], state["errors"]) == ("ready", [])
    assert [each["type"] for each in answer_of(state)["parts"]] == [
        "step-start",
        "reasoning",
        "text",
    ]
    assert {each["state"] for each in answer_of(state)["parts"] if "state" in each} == {"done"}
    metadata = answer_of(state)["metadata"]
    assert metadata["runId"] == answer_of(state)["id"]
    assert metadata["usage"]["output_tokens"] > 0
    state = await client("send", text="tool")
    (call,) = parts(state, "dynamic-tool")
    assert (call["state"], call["providerExecuted"]) == ("output-available", True)
    assert call["output"]
    assert [each["role"] for each in state["messages"]] == ["user", "assistant"] * 2


@pytest.mark.parametrize("approved", [True, False])
async def test_a_tool_that_needs_approval_runs_once_or_never(
    client: Chat, penstock: Pipeline, agno_server: Upstream, approved: bool
) -> None:
    title = f"Doc {uuid.uuid4().hex}"
    state = await asked(client, penstock, title)
    run_id = answer_of(state)["id"]
    assert question(state)["descriptor"]["digest"]
    state = await client("answer", id=question(state)["id"], approved=approved, reason="as I say")
    assert (state["status"], state["errors"]) == ("ready", [])
    (call,) = parts(state, "dynamic-tool")
    assert call["state"] == ("output-available" if approved else "output-denied")
    assert call["approval"]["reason"] == "as I say"
    assert answer_of(state)["id"] == run_id
    assert text(state)
    assert sum(title in json.dumps(run) for run in agno_server.tool_runs()) == approved
    assert [each["method"] for each in state["requests"]] == ["POST", "POST"]


async def test_a_value_that_a_tool_asks_for_is_the_output_of_its_call(
    client: Chat, penstock: Pipeline, agno_server: Upstream
) -> None:
    subject = uuid.uuid4().hex
    await begin(client, penstock, "assistant")
    state = await client("send", text=f"userinput {subject}")
    (call,) = parts(state, "dynamic-tool")
    assert (call["state"], call["providerExecuted"]) == ("input-available", False)
    asked = vercel_rules.asked_by(call)
    assert (asked["kind"], "to_address" in str(asked["input_schema"])) == ("input", True)
    value = {"subject": subject, "body": "Body", "to_address": "x@example.org"}
    state = await client("output", toolCallId=call["toolCallId"], output=value)
    assert (state["status"], state["errors"]) == ("ready", [])
    assert [each["method"] for each in state["requests"]] == ["POST", "POST"]
    assert answer_of(state)["metadata"]["status"] == "completed"
    (call,) = parts(state, "dynamic-tool")
    assert (call["state"], call["output"] == value) == ("output-available", False)
    ran = [run for run in agno_server.tool_runs() if subject in json.dumps(run)]
    assert [run["args"]["to_address"] for run in ran] == ["x@example.org"]


def waiting(state: State) -> Waits:
    (call,) = parts(state, "dynamic-tool")
    approval_id, _, item_id = call["approval"]["id"].partition("/")
    session = answer_of(state)["metadata"]["sessionId"]
    digest = call["approval"]["descriptor"]["digest"]
    return Waits("assistant", session, approval_id, digest, item_id, call["toolCallId"])


@pytest.mark.chaos
async def test_no_form_of_an_answer_without_the_digest_decides_anything(
    client: Chat, penstock: Pipeline, agno_server: Upstream
) -> None:
    title = f"Doc {uuid.uuid4().hex}"
    waits = waiting(await asked(client, penstock, title))
    answers = {}
    for name, (_, make) in FORGED.items():
        path, body = make(waits)
        answers[name] = await penstock.http.post(path, json=body)
        approval = await penstock.approval(waits.approval_id)
        assert (approval.status, approval.votes) == ("pending", []), name
    statuses = {name: answer.status_code for name, answer in answers.items()}
    assert statuses == {name: status for name, (status, _) in FORGED.items()}
    assert not any(title in json.dumps(run) for run in agno_server.tool_runs())
    path, body = answered(waits)
    right = await penstock.http.post(path, json=body)
    assert right.status_code == 200
    replayed = await penstock.http.post(path, json=body)
    assert replayed.status_code == 409
    assert sum(title in json.dumps(run) for run in agno_server.tool_runs()) == 1


async def test_what_another_person_has_decided_is_there_after_a_resume(
    client: Chat, penstock: Pipeline
) -> None:
    state = await asked(client, penstock, f"Doc {uuid.uuid4().hex}")
    await client("resume")
    assert question(await client("state")) == question(state)
    await penstock.decide(question(state)["id"].partition("/")[0], "approve")
    await penstock.ended(answer_of(state)["id"])
    state = await client("resume")
    assert [each["state"] for each in parts(state, "dynamic-tool")] == ["output-available"]
    assert (state["status"], len(state["messages"])) == ("ready", 2)


async def test_the_state_after_a_cut_and_a_resume_is_that_of_an_uncut_stream(
    client: Chat, penstock: Pipeline
) -> None:
    await begin(client, penstock, "assistant", cut=5)
    cut = await client("send", text="tools")
    assert (cut["status"], cut["errors"]) == ("error", ["network error"])
    resumed = await client("resume")
    await begin(client, penstock, "assistant")
    whole = await client("send", text="tools")
    assert (resumed["status"], resumed["error"]) == ("ready", None)
    assert shape(resumed) == shape(whole)
    assert len(parts(whole, "dynamic-tool")) == 3


@pytest.mark.chaos
async def test_the_documents_page_asks_its_user_goes_on_and_stops(
    penstock: Pipeline, agno_server: Upstream, tmp_path: Path
) -> None:
    title = f"Doc {uuid.uuid4().hex}"
    module = await asyncio.to_thread(vercel_docs.page, tmp_path)
    api = str(penstock.http.base_url).rstrip("/")
    script = (str(SCRIPTS / "page.mjs"), str(module), api, f"confirm {title}")
    done = await asyncio.to_thread(run, *script, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    shown = json.loads(done.stdout)
    assert "create_document: output-available" in shown["text"]
    listed = await penstock.http.get("/v1/runs", params={"session_id": shown["chat"]})
    assert [each["status"] for each in listed.json()["runs"]] == ["cancelled", "completed"]
    assert sum(title in json.dumps(run) for run in agno_server.tool_runs()) == 1


async def test_the_documents_transport_gets_exactly_the_rest(
    client: Chat, penstock: Pipeline, tmp_path: Path
) -> None:
    module = vercel_docs.transport(tmp_path, client.version)
    await begin(client, penstock, "assistant")
    whole = await client("send", text="tools")
    await begin(client, penstock, "assistant", cut=9, transport=str(module))
    cut = await client("send", text="tools")
    assert (cut["status"], cut["errors"]) == ("error", ["network error"])
    resumed = await client("resume")
    assert (resumed["status"], resumed["error"]) == ("ready", None)
    assert shape(resumed) == shape(whole)
    assert "after=" in resumed["requests"][-1]["url"]
    assert len(resumed["data"]) == len(whole["data"])  # no part came twice


async def test_a_stop_cancels_the_run_and_leaving_does_not(
    client: Chat, penstock: Pipeline
) -> None:
    chat_id = await begin(client, penstock, "adk")
    await client("begin", text="slow 50 100")

    async def speaks() -> State | None:
        state = await client("state")
        return state if state["status"] == "streaming" and text(state) else None

    run_id = answer_of(await eventually(speaks, what="the first text"))["id"]
    await client("stop")
    assert (await penstock.http.get(f"/v1/runs/{run_id}")).json()["status"] == "running"
    stopped = await penstock.http.post(path("adk", chat_id, "stop"))
    assert (stopped.status_code, stopped.json()["run_id"]) == (200, run_id)
    again = await penstock.http.post(path("adk", chat_id, "stop"))
    assert again.status_code == 409
    state = await client("resume")
    assert state["status"] == "ready"
    assert {each["state"] for each in parts(state, "text")} == {"done"}


async def test_an_error_of_the_agent_is_the_chats_error(client: Chat, penstock: Pipeline) -> None:
    await begin(client, penstock, "adk")
    state = await client("send", text="midstream")
    assert state["status"] == "error"
    metadata = answer_of(state)["metadata"]
    assert (metadata["status"], metadata["error"]) == ("failed", {"code": "upstream_error"})
    assert {each["state"] for each in parts(state, "text")} == {"done"}


async def test_a_message_is_generated_again_by_a_new_run_but_not_while_one_is_open(
    client: Chat, penstock: Pipeline
) -> None:
    state = await asked(client, penstock, f"Doc {uuid.uuid4().hex}")
    refused = await client("regenerate")
    assert json.loads(refused["error"])["status"] == 409
    assert len(refused["messages"]) == 1
    await penstock.decide(question(state)["id"].partition("/")[0], "reject")
    await penstock.ended(answer_of(state)["id"])
    again = await client("regenerate")
    assert (again["status"], len(again["messages"])) == ("ready", 2)
    assert answer_of(again)["id"] != answer_of(state)["id"]


async def test_the_members_of_a_team_are_parts_that_end(client: Chat, penstock: Pipeline) -> None:
    await begin(client, penstock, "team")
    state = await client("send", text="delegate2")
    members = [each["data"] for each in parts(state, "data-penstock-agent")]
    assert {each["status"] for each in members} == {"completed"}
    assert len({each["worker_name"] for each in members}) == 2
    spoken = [each["providerMetadata"]["penstock"] for each in parts(state, "text")[:-1]]
    assert {each["agent"] for each in spoken} <= {each["worker_name"] for each in members} | {
        "Demo Team"
    }


async def test_a_chat_without_a_message_has_nothing_to_resume(
    client: Chat, penstock: Pipeline
) -> None:
    chat_id = await begin(client, penstock, "assistant")
    state = await client("resume")
    assert (state["status"], state["messages"]) == ("ready", [])
    assert (await penstock.http.post(path("assistant", chat_id, "stop"))).status_code == 404
