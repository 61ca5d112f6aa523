"""Agno's surface serves runs of the real servers, to plain HTTP requests and to Agno's own client.

Two processes of each service run: start, continue and cancel go to different edges.
"""

from __future__ import annotations

import asyncio
import json
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from pathlib import Path
from typing import Any

import httpx
import pytest
import pytest_asyncio

from penstock.sse import Parser
from support.real.deployment import Deployment
from support.real.upstreams import AGNO, UPSTREAMS, Upstream

pytestmark = [pytest.mark.real, pytest.mark.asyncio(loop_scope="session")]

TRICKY = "unicode"


def title() -> str:
    return f"Doc {uuid.uuid4().hex[:8]}"


def session() -> str:
    return f"s-{uuid.uuid4().hex[:8]}"


def runs_of(server: Upstream, mark: str) -> int:
    """Return how often a tool ran whose arguments or session contain this mark."""
    return sum(mark in json.dumps(run) for run in server.tool_runs())


async def post(penstock: Deployment, path: str, edge: int = 0, **fields: str) -> httpx.Response:
    return await penstock.http.post(f"{penstock.edge(edge)}{path}", data=fields)


async def streamed(
    penstock: Deployment, path: str, edge: int = 0, **fields: str
) -> tuple[str, list[dict[str, Any]]]:
    """Stream a leg; return its run id and the bodies of its frames."""
    answer = await post(penstock, path, edge, stream="true", **fields)
    assert answer.status_code == 200, answer.text
    bodies = []
    for frame in Parser().feed(answer.content):
        body = json.loads(frame.data)
        assert body.get("event", "WorkflowRunOutput") == frame.event
        bodies.append(body)
    return answer.headers["penstock-run-id"], bodies


def events(bodies: Sequence[dict[str, Any]]) -> list[str]:
    """Return the names of the run's Agno events, without those that only some versions send."""
    names = [body.get("event", "") for body in bodies]
    return [name for name in names if "ModelRequest" not in name]


def text(bodies: Sequence[dict[str, Any]]) -> str:
    return "".join(b.get("content", "") for b in bodies if b.get("event") == "RunContent")


# by plain HTTP


@pytest.mark.parametrize(
    ("path", "message"), [("/agents/assistant", "text"), ("/agents/adk", "plain hi")]
)
async def test_text(penstock: Deployment, path: str, message: str) -> None:
    run_id, bodies = await streamed(
        penstock, f"{path}/runs", message=message, session_id="", user_id="u1"
    )
    said = events(bodies)
    assert said[0] == "RunStarted"
    assert said[-2:] == ["RunContentCompleted", "RunCompleted"]
    assert set(said[1:-2]) == {"RunContent"}
    assert {body["run_id"] for body in bodies} == {run_id}
    assert len({body["session_id"] for body in bodies}) == 1
    assert text(bodies) == bodies[-1]["content"] != ""


async def test_an_agno_upstreams_bytes_are_the_clients(penstock: Deployment) -> None:
    answer = await post(penstock, "/agents/assistant/runs", message=f"{TRICKY} hi", stream="true")
    run_id = answer.headers["penstock-run-id"]
    raw = [event.body async for event in penstock.events(run_id, edge=1, dialect="raw")]
    assert [json.loads(frame.data) for frame in Parser().feed(answer.content)] == raw
    assert "\u2028".encode() in answer.content


@pytest.mark.parametrize(
    ("path", "message"), [("/agents/assistant", "tool"), ("/agents/adk", "weather")]
)
async def test_a_tool_is_told_once_by_both_its_events(
    penstock: Deployment, path: str, message: str
) -> None:
    _, bodies = await streamed(penstock, f"{path}/runs", message=message)
    said = events(bodies)
    assert said.count("ToolCallStarted") == said.count("ToolCallCompleted") == 1
    (done,) = [body["tool"] for body in bodies if body.get("event") == "ToolCallCompleted"]
    assert isinstance(done["result"], str)
    assert done["tool_call_error"] is False
    assert said[-1] == "RunCompleted"


async def paused(
    penstock: Deployment, path: str, message: str, session_id: str
) -> tuple[str, list[dict[str, Any]]]:
    run_id, bodies = await streamed(
        penstock, f"{path}/runs", message=message, session_id=session_id
    )
    assert events(bodies)[-2:] == ["RunContentCompleted", "RunPaused"]
    return run_id, [tool for tool in bodies[-1]["tools"] if tool["requires_confirmation"]]


def server_of(path: str, agno_server: Upstream, adk_server: Upstream) -> Upstream:
    return adk_server if path.endswith("adk") else agno_server


BOTH = pytest.mark.parametrize("path", ["/agents/assistant", "/agents/adk"])


@BOTH
@pytest.mark.parametrize("confirmed", [True, False])
async def test_a_tool_runs_once_when_it_is_confirmed_and_never_when_not(
    penstock: Deployment, agno_server: Upstream, adk_server: Upstream, path: str, confirmed: bool
) -> None:
    server = server_of(path, agno_server, adk_server)
    name, session_id = title(), session()
    mark = session_id if path.endswith("adk") else name
    run_id, tools = await paused(penstock, path, f"confirm {name}", session_id)
    answer = [{**tool, "confirmed": confirmed} for tool in tools]
    fields = {"tools": json.dumps(answer), "session_id": session_id}
    url = f"{path}/runs/{run_id}/continue"
    again, bodies = await streamed(penstock, url, 1, **fields)
    said = events(bodies)
    assert again == run_id
    assert (said[0], said[-1]) == ("RunContinued", "RunCompleted")
    assert said.count("ToolCallStarted") == said.count("ToolCallCompleted") == int(confirmed)
    assert runs_of(server, mark) == int(confirmed)
    late = await post(penstock, url, 0, **fields)
    assert (late.status_code, set(late.json())) == (409, {"detail"})
    assert runs_of(server, mark) == int(confirmed)


@BOTH
async def test_of_three_continues_at_once_one_is_carried_out(
    penstock: Deployment, agno_server: Upstream, adk_server: Upstream, path: str
) -> None:
    server = server_of(path, agno_server, adk_server)
    name, session_id = title(), session()
    mark = session_id if path.endswith("adk") else name
    run_id, tools = await paused(penstock, path, f"confirm {name}", session_id)
    answer = json.dumps([{**tool, "confirmed": True} for tool in tools])
    url = f"{path}/runs/{run_id}/continue"
    answers = await asyncio.gather(
        *(post(penstock, url, edge, tools=answer, stream="true") for edge in range(3))
    )
    assert sorted(each.status_code for each in answers) == [200, 409, 409]
    assert runs_of(server, mark) == 1


@BOTH
async def test_what_does_not_fit_the_pause_reaches_no_upstream(
    penstock: Deployment, agno_server: Upstream, adk_server: Upstream, path: str
) -> None:
    server = server_of(path, agno_server, adk_server)
    name, session_id = title(), session()
    mark = session_id if path.endswith("adk") else name
    run_id, [tool] = await paused(penstock, path, f"confirm {name}", session_id)
    yes = {**tool, "confirmed": True}
    wrong: dict[str, tuple[Any, int]] = {
        "another id": ([{**yes, "tool_call_id": "toolu_99"}], 422),
        "changed arguments": ([{**yes, "tool_args": {**tool["tool_args"], "more": 1}}], 422),
        "another tool": ([{**yes, "tool_name": "delete_document"}], 422),
        "nothing": ([], 422),
        "no decision": ([tool], 422),
    }
    for what, (tools, status) in wrong.items():
        fields = {"tools": json.dumps(tools), "session_id": session_id}
        answer = await post(penstock, f"{path}/runs/{run_id}/continue", 1, **fields)
        assert (answer.status_code, set(answer.json())) == (status, {"detail"}), what
    url = f"{path}/runs/{run_id}/continue"
    assert (await post(penstock, url, tools="[{")).status_code == 400
    other = await post(penstock, url, tools=json.dumps([yes]), session_id="another")
    assert other.status_code == 404
    assert runs_of(server, mark) == 0
    _, bodies = await streamed(penstock, url, tools=json.dumps([yes]))
    assert events(bodies)[-1] == "RunCompleted"
    assert runs_of(server, mark) == 1


async def test_two_calls_are_decided_together(penstock: Deployment, agno_server: Upstream) -> None:
    run_id, tools = await paused(penstock, "/agents/assistant", "confirm2", session())
    assert len(tools) == 2
    url = f"/agents/assistant/runs/{run_id}/continue"
    one = await post(penstock, url, tools=json.dumps([{**tools[0], "confirmed": True}]))
    assert one.status_code == 422
    answer = [{**tools[0], "confirmed": True}, {**tools[1], "confirmed": False}]
    _, bodies = await streamed(penstock, url, tools=json.dumps(answer))
    done = [body["tool"]["tool_name"] for body in bodies if body["event"] == "ToolCallCompleted"]
    assert done == [tools[0]["tool_name"]]


async def test_a_run_that_pauses_again_is_continued_with_all_that_it_lists(
    penstock: Deployment,
) -> None:
    session_id = session()
    run_id, tools = await paused(penstock, "/agents/assistant", "confirmtwice", session_id)
    url = f"/agents/assistant/runs/{run_id}/continue"
    answer = json.dumps([{**tool, "confirmed": True} for tool in tools])
    _, bodies = await streamed(penstock, url, tools=answer, session_id=session_id)
    assert events(bodies)[-1] == "RunPaused"
    listed = bodies[-1]["tools"]
    assert len(listed) == 2  # the first of the two tools has already run
    answer = json.dumps([{**tool, "confirmed": True} for tool in listed])
    _, bodies = await streamed(penstock, url, 1, tools=answer, session_id=session_id)
    assert events(bodies)[-1] == "RunCompleted"


async def filled(tool: dict[str, Any]) -> dict[str, Any]:
    if tool["external_execution_required"]:
        return {**tool, "result": "file1"}
    if tool["user_feedback_schema"]:
        questions = [{**q, "selected_options": ["Paris"]} for q in tool["user_feedback_schema"]]
        return {**tool, "user_feedback_schema": questions, "answered": True}
    fields = [{**f, "value": f["value"] or "a@b.c"} for f in tool["user_input_schema"]]
    return {**tool, "user_input_schema": fields, "answered": True}


@pytest.mark.parametrize("message", ["userinput", "external", "getinput", "feedback"])
async def test_each_kind_of_pause_continues_with_its_answer(
    penstock: Deployment, message: str
) -> None:
    run_id, bodies = await streamed(penstock, "/agents/assistant/runs", message=message)
    assert bodies[-1]["event"] == "RunPaused"
    tools = bodies[-1]["tools"]
    url = f"/agents/assistant/runs/{run_id}/continue"
    empty = await post(penstock, url, tools=json.dumps(tools))
    assert empty.status_code == 422, empty.text
    answer = json.dumps([await filled(tool) for tool in tools])
    _, bodies = await streamed(penstock, url, 1, tools=answer)
    assert events(bodies)[-1] == "RunCompleted", bodies[-1]


@pytest.mark.parametrize(
    ("path", "message", "last"),
    [
        ("/agents/assistant", "slow", "RunCancelled"),
        ("/agents/adk", "slow 50 100", "RunCancelled"),
        ("/teams/team", "delegateslow", "TeamRunCancelled"),
    ],
)
async def test_a_cancel_ends_the_stream_with_its_word(
    penstock: Deployment, path: str, message: str, last: str
) -> None:
    parser, said = Parser(), []
    url = f"{penstock.edge()}{path}/runs"
    cancelled = None
    async with penstock.http.stream(
        "POST", url, data={"message": message, "stream": "true"}
    ) as answer:
        run_id = answer.headers["penstock-run-id"]
        async for chunk in answer.aiter_bytes():
            frames = [json.loads(frame.data) for frame in parser.feed(chunk)]
            said += events(frames)
            if cancelled is None and any(frame.get("content") for frame in frames):
                cancelled = await post(penstock, f"{path}/runs/{run_id}/cancel", 1)
    assert cancelled is not None
    assert (cancelled.status_code, cancelled.json()) == (200, {})
    assert last in said
    again = await post(penstock, f"{path}/runs/{run_id}/cancel")
    assert (again.status_code, set(again.json())) == (409, {"detail"})


@pytest.mark.parametrize(
    ("path", "message"), [("/agents/assistant", "slow"), ("/agents/adk", "slow 50 100")]
)
async def test_a_stream_that_broke_goes_on_at_another_edge_where_it_was(
    penstock: Deployment, path: str, message: str
) -> None:
    first: list[dict[str, Any]] = []
    rest: list[dict[str, Any]] = []
    parser, form = Parser(), {"message": message, "stream": "true"}
    runs = f"{penstock.edge()}{path}/runs"
    async with penstock.http.stream("POST", runs, data=form) as answer:
        run_id = answer.headers["penstock-run-id"]
        async for chunk in answer.aiter_bytes():
            first += [json.loads(frame.data) for frame in parser.feed(chunk)]
            if len([each for each in first if each.get("content")]) > 3:
                break
    form = {"last_event_index": str(first[-1]["event_index"])}
    url, parser, cancelled = f"{path}/runs/{run_id}/resume", Parser(), None
    async with penstock.http.stream("POST", f"{penstock.edge(1)}{url}", data=form) as answer:
        async for chunk in answer.aiter_bytes():
            rest += [json.loads(frame.data) for frame in parser.feed(chunk)]
            if cancelled is None and any(each["event"] == "subscribed" for each in rest):
                cancelled = await post(penstock, f"{path}/runs/{run_id}/cancel")
    assert [each["event"] for each in rest[:1]] == ["catch_up"]
    seen = [*first, *(each for each in rest if each["event"] not in ("catch_up", "subscribed"))]
    assert [each["event_index"] for each in seen] == [*range(len(seen))]
    assert "RunCancelled" in events(seen)
    again = await post(penstock, url)
    note, *whole = [json.loads(frame.data) for frame in Parser().feed(again.content)]
    assert (note["event"], note["status"], whole) == ("replay", "CANCELLED", seen)


@pytest.mark.parametrize(
    ("path", "message", "status"),
    [
        ("/agents/assistant", "text", "COMPLETED"),
        ("/agents/adk", "plain hi", "COMPLETED"),
        ("/teams/team", "delegate", "COMPLETED"),
        ("/workflows/flow", "text", "COMPLETED"),
        ("/agents/assistant", "failmid", "ERROR"),
        ("/agents/adk", "midstream", "ERROR"),
        ("/agents/assistant", "confirm a", "PAUSED"),
        ("/agents/adk", "confirm", "PAUSED"),
        ("/agents/nobody", "hi", "ERROR"),
    ],
)
async def test_without_a_stream_a_run_is_one_object(
    penstock: Deployment, path: str, message: str, status: str
) -> None:
    answer = await post(penstock, f"{path}/runs", message=message)
    assert answer.status_code == 200
    body = answer.json()
    assert body["status"] == status
    assert body["run_id"] == answer.headers["penstock-run-id"]
    assert body["content"]
    if status == "PAUSED":
        assert any(tool["requires_confirmation"] for tool in body["tools"])


async def test_dependencies_reach_the_upstream(penstock: Deployment) -> None:
    given = '{"document_id": null}'
    for dependencies in (given, "not JSON"):
        _, bodies = await streamed(
            penstock, "/agents/assistant/runs", message="text", dependencies=dependencies
        )
        assert events(bodies)[-1] == "RunCompleted"


async def test_a_team_and_a_workflow_tell_their_own(penstock: Deployment) -> None:
    _, bodies = await streamed(penstock, "/teams/team/runs", message="delegate")
    said = events(bodies)
    assert (said[0], said[-1]) == ("TeamRunStarted", "TeamRunCompleted")
    assert {"RunStarted", "RunCompleted"} <= set(said)
    _, bodies = await streamed(penstock, "/workflows/flow/runs", message="text")
    said = events(bodies)
    assert (said[0], said[-1]) == ("WorkflowStarted", "WorkflowCompleted")
    assert said.count("StepStarted") == said.count("StepCompleted") == 2


async def test_a_teams_member_is_confirmed_by_its_requirement(penstock: Deployment) -> None:
    run_id, bodies = await streamed(penstock, "/teams/team/runs", message="delegateconfirm")
    assert events(bodies)[-1] == "TeamRunPaused"
    url = f"/teams/team/runs/{run_id}/continue"
    tools = await post(penstock, url, tools=json.dumps(bodies[-1]["tools"]))
    assert tools.status_code == 422
    answer = [{**each, "confirmation": True} for each in bodies[-1]["requirements"]]
    _, bodies = await streamed(penstock, url, 1, requirements=json.dumps(answer))
    assert ran(bodies) == ["create_document"]
    assert events(bodies)[-1] == "TeamRunCompleted"


def ran(bodies: Sequence[dict[str, Any]]) -> list[str]:
    """Return the tools whose calls are reported as completed."""
    return [
        body["tool"]["tool_name"] for body in bodies if body.get("event") == "ToolCallCompleted"
    ]


async def test_the_call_of_a_workflows_agent_is_confirmed_by_its_step(
    penstock: Deployment, agno_server: Upstream
) -> None:
    name = title()
    run_id, bodies = await streamed(penstock, "/workflows/flow/runs", message=f"confirm {name}")
    steps = bodies[-1]["step_requirements"]
    for requirement in steps[0]["executor_requirements"]:
        requirement["confirmation"] = True
    url = f"/workflows/flow/runs/{run_id}/continue"
    _, bodies = await streamed(penstock, url, 1, step_requirements=json.dumps(steps))
    assert events(bodies)[-1] == "WorkflowCompleted"
    assert runs_of(agno_server, name) == 1


# by Agno's own client


class AgnosClient:
    """Agno's client in one process for all tests, because importing it takes seconds."""

    def __init__(self, process: asyncio.subprocess.Process, log: Path) -> None:
        self._process = process
        self._log = log

    async def ask(self, *what: str) -> list[Any]:
        """Have the client do one action of tests/upstreams/agno/remote.py; return what it read."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        logged = self._log.stat().st_size
        self._process.stdin.write(json.dumps(what).encode() + b"\n")
        answer = json.loads(await self._process.stdout.readline())
        assert "error" not in answer, answer["error"]
        # The client logged that it could not read something.
        assert self._log.stat().st_size == logged, self._log.read_text()[logged:]
        steps: list[Any] = answer["steps"]
        return steps


Remote = Callable[..., Awaitable[list[Any]]]


@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def agnos_client(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[AgnosClient]:
    log = tmp_path_factory.mktemp("agnos-client") / "stderr"
    with log.open("wb") as stderr:
        process = await asyncio.create_subprocess_exec(
            *(AGNO.python, UPSTREAMS / "agno" / "remote.py"),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=stderr,
            env={"PYTHONDONTWRITEBYTECODE": "1"},
            limit=64 * 1024 * 1024,
        )
    yield AgnosClient(process, log)
    assert process.stdin is not None
    process.stdin.close()
    await process.wait()


@pytest.fixture
def remote(penstock: Deployment, agnos_client: AgnosClient) -> Remote:
    """Return a function that has Agno's client do an action: kind, id, action, message."""

    async def ask(kind: str, id: str, action: str, message: str) -> list[Any]:
        return await agnos_client.ask(penstock.edge(0), kind, id, action, message)

    return ask


def classes(step: list[dict[str, Any]]) -> list[str]:
    return [event["class"] for event in step if "ModelRequest" not in event["class"]]


AGENTS = pytest.mark.parametrize(
    ("kind", "id", "message", "prefix"),
    [
        ("agents", "assistant", "text", "Run"),
        ("agents", "adk", "plain hi", "Run"),
        ("teams", "team", "delegate", "Run"),
        ("workflows", "flow", "text", "Workflow"),
    ],
)


@AGENTS
async def test_agnos_client_reads_a_stream(
    remote: Remote, kind: str, id: str, message: str, prefix: str
) -> None:
    [events] = await remote(kind, id, "stream", message)
    said = classes(events)
    assert (said[0], said[-1]) == (f"{prefix}StartedEvent", f"{prefix}CompletedEvent")
    assert len({event["session_id"] for event in events}) == 1


@AGENTS
async def test_agnos_client_reads_a_run(
    remote: Remote, kind: str, id: str, message: str, prefix: str
) -> None:
    [output] = await remote(kind, id, "run", message)
    assert output["status"] == "COMPLETED"
    assert output["content"]


@pytest.mark.parametrize("id", ["assistant", "adk"])
@pytest.mark.parametrize("action", ["confirm", "reject"])
async def test_agnos_client_decides(
    remote: Remote, agno_server: Upstream, adk_server: Upstream, id: str, action: str
) -> None:
    name = title()
    first, second = await remote("agents", id, action, f"confirm {name}")
    assert classes(first)[-1] == "RunPausedEvent"
    said = classes(second)
    assert (said[0], said[-1]) == ("RunContinuedEvent", "RunCompletedEvent")
    server = adk_server if id == "adk" else agno_server
    mark = first[0]["session_id"] if id == "adk" else name
    assert runs_of(server, mark) == int(action == "confirm")


@pytest.mark.parametrize("id", ["assistant", "adk"])
async def test_agnos_client_decides_without_streams(
    remote: Remote, agno_server: Upstream, adk_server: Upstream, id: str
) -> None:
    name = title()
    run, done = await remote("agents", id, "confirm-run", f"confirm {name}")
    assert (run["status"], done["status"]) == ("PAUSED", "COMPLETED")
    server = adk_server if id == "adk" else agno_server
    assert runs_of(server, run["session_id"] if id == "adk" else name) == 1


async def test_agnos_client_decides_for_a_teams_member(remote: Remote) -> None:
    first, second = await remote("teams", "team", "confirm", "delegateconfirm")
    assert classes(first)[-1] == "RunPausedEvent"
    assert ran(second) == ["create_document"]
    assert classes(second)[-1] == "RunCompletedEvent"


@pytest.mark.parametrize(("id", "message"), [("assistant", "slow"), ("adk", "slow 50 100")])
async def test_agnos_client_cancels(remote: Remote, id: str, message: str) -> None:
    [events] = await remote("agents", id, "cancel", message)
    assert "RunCancelledEvent" in classes(events)


async def test_agnos_client_learns_a_name(remote: Remote) -> None:
    assert await remote("agents", "assistant", "name", "") == ["assistant"]
