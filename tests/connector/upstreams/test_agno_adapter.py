"""Requests to Agno equal the recorded ones: the stored objects, with only the decision set."""

from __future__ import annotations

import copy
import itertools
import shlex
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl

import httpx
import orjson
import pytest

from penstock.bus.records.approvals import ContinueCommand, Decided
from penstock.bus.records.legs import PauseRecord
from penstock.bus.records.runs import StartCommand
from penstock.dialects.agno.decode import AgnoDecoder
from penstock.dialects.base import AgentFacts, AgentKind, Pause
from penstock.settings import AgnoAgent
from penstock.sse import Frame, Parser
from penstock_connector.upstreams.agno import AgnoUpstream
from penstock_connector.upstreams.base import Call, ReattachState
from support.recorded.agno import CONTINUES, GOLDEN
from support.recorded.goldens import Decisions

SECTIONS = ("tools", "requirements", "step_requirements")
KINDS: dict[str, AgentKind] = {"team": "team", "wf": "workflow"}

# Fields in which the recorded request differs from ours, because it did something that we must not
# do, or because it left something out.
OTHERWISE: dict[str, dict[str, Any]] = {
    # The recorded request confirmed a tool that had already run.
    "confirm_mix_auto_and_confirm": {"confirmed": None},
    # The recorded request named a call that does not exist.
    "wrong_tool_call_id": {"tool_call_id": "toolu_02_0_create_document"},
    # The recorded requests left out the note.
    "team_member_reject": {"confirmation_note": "no"},
    "wf_hitl_rejected": {"rejection_feedback": "no"},
}


def kind_of(name: str) -> AgentKind:
    return KINDS.get(name.partition("_")[0], "agent")


def agent(kind: str = "agent", **fields: Any) -> AgnoAgent:
    given = {
        "id": "a",
        "protocol": "agno",
        "url": "http://agno:7777",
        "agent": "demo",
        "kind": kind,
    }
    return AgnoAgent.model_validate(given | fields)


def start_command(**fields: Any) -> StartCommand:
    given = {
        "run_id": "run-1",
        "agent": "a",
        "session_id": "s-1",
        "user_id": "ada",
        "message": "Grüße \u2028 & = +",
        "created_at": "2026-11-20T10:00:00.000Z",
    }
    return StartCommand.model_validate(given | fields)


def form(call: Call) -> dict[str, str]:
    return dict(parse_qsl(call.content.decode(), keep_blank_values=True, strict_parsing=True))


@pytest.fixture
async def client() -> httpx.AsyncClient:
    """Return a client that refuses every request: building a request needs no server."""

    def refuse(request: httpx.Request) -> httpx.Response:
        raise AssertionError(f"{request.method} {request.url}")

    return httpx.AsyncClient(transport=httpx.MockTransport(refuse))


@pytest.mark.parametrize(
    ("kind", "path"),
    [
        ("agent", "/agents/demo/runs"),
        ("team", "/teams/demo/runs"),
        ("workflow", "/workflows/demo/runs"),
    ],
)
async def test_a_start_is_a_form_with_our_run_id(
    client: httpx.AsyncClient, kind: str, path: str
) -> None:
    call = await AgnoUpstream(client).start(agent(kind), start_command())
    assert call.url == f"http://agno:7777{path}"
    assert call.headers["content-type"] == "application/x-www-form-urlencoded"
    further = {"background": "true", "metadata": '{"idempotency_key":"run-1-1"}'}
    assert form(call) == (further if kind != "workflow" else {}) | {
        "message": "Grüße \u2028 & = +",
        "stream": "true",
        "session_id": "s-1",
        "user_id": "ada",
        "run_id": "run-1",
    }


async def test_further_input_becomes_fields_and_cannot_replace_ours(
    client: httpx.AsyncClient,
) -> None:
    given = {"session_state": {"n": 1}, "add_history": True, "session_id": "another", "run_id": "x"}
    sent = form(await AgnoUpstream(client).start(agent(), start_command(input=given)))
    assert sent["session_state"] == '{"n":1}'
    assert sent["add_history"] == "true"
    assert sent["session_id"] == "s-1"
    assert sent["run_id"] == "run-1"


def recorded() -> list[Any]:
    return [
        pytest.param(version, name, id=f"{version.name}/{name}")
        for version in sorted(GOLDEN.iterdir())
        for name, legs in CONTINUES.items()
        if (version / f"{name}__{legs[0][0]}.req").exists()
    ]


def pauses(folder: Path, name: str) -> list[tuple[str, Decisions, Pause]]:
    """Return each recorded continue with its decisions and the pause that it answers."""
    decoder = AgnoDecoder(AgentFacts(id="a", kind=kind_of(name)))
    decoder.open(1)
    body = (folder / f"{name}.sse").read_bytes()
    found = []
    for leg, (suffix, decided) in enumerate(CONTINUES[name], 2):
        drafts = [draft for frame in Parser().feed(body) for draft in decoder.feed(frame)]
        (pause,) = [draft for draft in [*drafts, *decoder.end()] if isinstance(draft, Pause)]
        found.append((suffix, decided, pause))
        body = (folder / f"{name}__{suffix}.sse").read_bytes()
        decoder.open(leg)
        decoder.decided(decided)
    return found


@pytest.mark.parametrize(("folder", "name"), recorded())
async def test_a_continue_is_the_recorded_one(
    client: httpx.AsyncClient, folder: Path, name: str
) -> None:
    for suffix, decided, pause in pauses(folder, name):
        words = shlex.split((folder / f"{name}__{suffix}.req").read_text())
        fields = [field for flag, field in itertools.pairwise(words) if "urlencode" in flag]
        wanted = dict(field.split("=", 1) for field in fields)
        stored = copy.deepcopy(pause.resume)
        kind = kind_of(name)
        call = await resumed(client, pause.resume, decided, kind, wanted["session_id"])
        assert pause.resume == stored, "what is stored stays as it is"
        assert call.url.split("/runs/")[1] == words[-1].split("/runs/")[1]
        sent = form(call)
        (section,) = [section for section in SECTIONS if section in sent]
        assert without(name, orjson.loads(sent[section])) == without(
            name, orjson.loads(wanted[section])
        )
        for field, value in OTHERWISE.get(name, {}).items():
            assert orjson.loads(sent[section])[0][field] == value


async def resumed(
    client: httpx.AsyncClient,
    resume: dict[str, Any],
    decided: Decisions,
    kind: str = "agent",
    session_id: str = "s-1",
) -> Call:
    items = [Decided(item_id=item_id, **decision) for item_id, decision in decided.items()]
    command = ContinueCommand(
        run_id="run-1", agent="a", session_id=session_id, leg=2, approval_id="p", items=items
    )
    pause = PauseRecord(
        run_id="run-1", approval_id="p", leg=1, protocol="agno", fold={}, resume=resume
    )
    return await AgnoUpstream(client).resume(agent(kind), command, pause)


def without(name: str, objects: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the objects without the fields in which the recorded request differs from ours."""
    left_out = OTHERWISE.get(name, {})
    if name == "wf_agent_reject":
        for step in objects:
            for requirement in step["executor_requirements"]:
                requirement.pop("confirmation_note", None)
    return [
        {field: value for field, value in each.items() if field not in left_out} for each in objects
    ]


async def test_a_rejected_external_tool_gets_a_result_that_says_so(
    client: httpx.AsyncClient,
) -> None:
    tool = {"tool_call_id": "c", "tool_name": "run", "external_execution_required": True}
    resume = {"kind": "agent", "items": {"c": ["tools", 0]}, "tools": [tool]}
    rejected = {"c": {"decision": "reject", "note": "too risky", "value": None}}
    (sent,) = orjson.loads(form(await resumed(client, resume, rejected))["tools"])
    assert sent == tool | {"result": "too risky"}


async def test_two_members_with_one_call_id_get_their_own_decisions(
    client: httpx.AsyncClient,
) -> None:
    def requirement(member: str) -> dict[str, Any]:
        call = {"tool_call_id": "c", "tool_name": "delete", "requires_confirmation": True}
        return {"id": member, "member_run_id": member, "tool_execution": call}

    resume = {
        "kind": "team",
        "items": {"c": ["requirements", 0], "c#2": ["requirements", 1]},
        "requirements": [requirement("ann"), requirement("bob")],
    }
    decided: Decisions = {
        "c": {"decision": "reject", "note": None, "value": None},
        "c#2": {"decision": "approve", "note": None, "value": None},
    }
    ann, bob = orjson.loads(form(await resumed(client, resume, decided, "team"))["requirements"])
    assert (ann["confirmation"], ann["tool_execution"]["confirmed"]) == (False, False)
    assert (bob["confirmation"], bob["tool_execution"]["confirmed"]) == (True, True)


async def test_a_router_gets_its_choices(client: httpx.AsyncClient) -> None:
    step = {"step_id": "r", "requires_route_selection": True, "available_choices": ["a", "b"]}
    resume = {
        "kind": "workflow",
        "items": {"r": ["step_requirements", 0]},
        "step_requirements": [step],
    }
    chosen: Decisions = {"r": {"decision": "approve", "note": None, "value": "b"}}
    (sent,) = orjson.loads(
        form(await resumed(client, resume, chosen, "workflow"))["step_requirements"]
    )
    assert sent == step | {"selected_choices": ["b"]}


async def test_a_background_run_is_resumed_after_the_last_event_that_came_whole(
    client: httpx.AsyncClient,
) -> None:
    upstream, seen = AgnoUpstream(client), ReattachState()
    call = Call("http://agno:7777/agents/demo/runs", {}, b"", "run/1", "s-1")
    for data in (
        b'{"event":"RunContent","content":{"event_index":99},"event_index":7,"tool":{}}',
        b'{"event":"ToolCallStarted","tool":{"tool_args":{"event_index":3}}}',
        b'{"event_index": no JSON',
        b'["event_index"]',
        b"not a word of it",
    ):
        upstream.watch(Frame(data), seen)
    again = await upstream.reattach(agent(), call, seen)
    assert again is not None
    assert again.url == "http://agno:7777/agents/demo/runs/run%2F1/resume"
    assert form(again) == {"last_event_index": "7", "session_id": "s-1"}


async def test_a_run_of_which_nothing_came_is_asked_for_whole(client: httpx.AsyncClient) -> None:
    upstream = AgnoUpstream(client)
    call = await upstream.start(agent(), start_command())
    again = await upstream.reattach(agent(), call, ReattachState())
    assert again is not None
    assert "last_event_index" not in form(again)


@pytest.mark.parametrize("kind", ["agent", "workflow"])
async def test_a_run_without_numbers_is_not_come_back_to(
    client: httpx.AsyncClient, kind: str
) -> None:
    upstream, seen = AgnoUpstream(client), ReattachState()
    call = await upstream.start(agent(kind=kind), start_command())
    if kind == "agent":
        upstream.watch(Frame(b'{"event":"RunStarted"}', "RunStarted"), seen)
    assert await upstream.reattach(agent(kind=kind), call, seen) is None


async def test_events_that_the_server_has_forgotten_are_noticed(client: httpx.AsyncClient) -> None:
    upstream, seen = AgnoUpstream(client), ReattachState()
    for index in (4, 5, 9):
        assert seen.refusal is None
        upstream.watch(Frame(b'{"event":"RunContent","event_index":%d}' % index), seen)
    assert seen.refusal == "the agent server has forgotten the events 6 to 8"


async def test_foreign_ids_stay_in_their_place_in_the_path(client: httpx.AsyncClient) -> None:
    call = await AgnoUpstream(client).start(agent(agent=".."), start_command())
    assert httpx.URL(call.url).raw_path == b"/agents/%2E%2E/runs"
