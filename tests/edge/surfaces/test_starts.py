"""All surfaces check starts by the same table; a 422 names the refused field."""

from __future__ import annotations

from typing import Any

import httpx
import orjson
import pytest

from penstock.settings import AdkAgent, AgnoAgent, AguiAgent, Config, agent_config
from support.drive.agui_requests import run_input, tool, user
from support.drive.clients import Client, MakeEdge

NOWHERE = "http://127.0.0.1:9"
CONFIG = Config(
    agents=[
        AgnoAgent(id="assistant", protocol="agno", url=NOWHERE, agent="demo", topology_id=123),
        AdkAgent(id="helper", protocol="adk", url=NOWHERE, agent="vana"),
        AguiAgent(id="graph", protocol="agui", url=NOWHERE),
    ]
)
ENTRY = [{"interruptId": "i", "status": "resolved", "payload": {"approved": True}}]
COMMAND = {"command": {"resume": "yes"}}
ADK: dict[str, Any] = {
    "appName": "vana",
    "userId": "u",
    "sessionId": "s",
    "newMessage": {"role": "user", "parts": [{"text": "hi"}]},
}
TRIGGER = "/api/service/v1/executions/trigger"
LEGACY = "/apps/graph/users/u/sessions/s/run"


def v1(agent: str = "graph", **input: Any) -> tuple[str, Any]:
    return "/v1/runs", {"agent": agent, "message": "hi", "input": input}


def agui(agent: str = "graph", **fields: Any) -> tuple[str, Any]:
    return f"/agui/{agent}", run_input("t", **fields)


def adk(**fields: Any) -> tuple[str, Any]:
    return "/run_sse", {**ADK, **fields}


def part(**fields: Any) -> dict[str, Any]:
    return {"role": "user", "parts": [{"text": "hi"}, fields]}


def agno(agent: str = "assistant", **fields: Any) -> tuple[str, Any]:
    return f"/agents/{agent}/runs", {"message": "hi", "stream": "true", **fields}


ANSWERS: dict[str, tuple[tuple[str, Any], str]] = {
    "v1, resume": (v1(resume=ENTRY), "input.resume"),
    "v1, a command": (v1(forwardedProps=COMMAND), "input.forwardedProps.command"),
    "v1, upper case": (v1(RESUME=ENTRY), "input.RESUME"),
    "v1, in a field": (v1(config={"a": [{"Re-Sume": 1}]}), "input.config"),
    "v1, at an Agno agent": (v1("assistant", resume="yes"), "input.resume"),
    "v1, at an ADK agent": (v1("helper", invocation_id="e-1"), "input.invocation_id"),
    "agui, Command": (agui(forwardedProps={"Command": {"resume": 1}}), '"Command"'),
    "agui, snake case": (agui(forwarded_props=COMMAND), '"forwarded_props"'),
    "agui, both": (agui(forwardedProps={}, forwarded_props=COMMAND), '"forwarded_props"'),
    "agui, deeper": (agui(forwardedProps={"config": [{"RE_SUME": 1}]}), '"RE_SUME"'),
    "agui, kebab case": (agui(forwardedProps={"com-mand": {"resume": 1}}), '"com-mand"'),
    "agui, in another case": (agui(Resume=ENTRY), '"Resume"'),
    "agui, a node": (agui(forwardedProps={"nodeName": "tools"}), '"nodeName"'),
    "agui, at an Agno agent": (agui("assistant", forwardedProps=COMMAND), '"command"'),
    "run_sse, resume": (adk(resume=ENTRY), '"resume"'),
    "run_sse, an invocation": (adk(invocationId="e-1"), '"invocationId"'),
    "run_sse, a call": (adk(function_call_event_id="e"), '"function_call_event_id"'),
    "run_sse, at another agent": ((adk(appName="graph", command={"resume": 1})), '"command"'),
    "agno": (agno(resume="yes"), '"resume"'),
    "agno, requirements": (agno(step_requirements="[{}]"), '"step_requirements"'),
    "agno, at another agent": (agno("graph", Command="yes"), '"Command"'),
    "trigger": ((TRIGGER, {"topologyId": 123, "userMessage": "x", "resume": "y"}), "resume"),
    "trigger, deeper": (
        (TRIGGER, {"topologyId": 123, "userMessage": "x", "input": COMMAND}),
        "input.command",
    ),
    "legacy": ((LEGACY, {"query": "x", "forwardedProps": COMMAND}), '"command"'),
}
UNNAMED: dict[str, tuple[tuple[str, Any], str]] = {
    "ADK: state of the app": (adk(stateDelta={"app:a": 1}), '"stateDelta"'),
    "ADK: state of the user": (v1("helper", stateDelta={"user:a": 1}), "stateDelta.user:a"),
    "ADK: state of the session": (adk(stateDelta={"a": 1}), '"stateDelta"'),
    "ADK: another user": (v1("helper", user_id="mallory"), "input.user_id"),
    "ADK: a session by its other name": (v1("helper", sessionId="s"), "input.sessionId"),
    "ADK: what is unknown": (adk(customMetadata={"a": 1}), '"customMetadata"'),
    "ADK: a call": (adk(newMessage=part(functionCall={"name": "f"})), '"functionCall"'),
    "ADK: a file of the server": (adk(newMessage=part(fileData={"a": "b"})), '"fileData"'),
    "ADK: code": (adk(newMessage=part(executable_code={"a": "b"})), '"executable_code"'),
    "Agno: dependencies": (agno(dependencies='{"a": 1}'), '"dependencies"'),
    "Agno: state": (v1("assistant", session_state={"a": 1}), "input.session_state"),
    "Agno: filters": (v1("assistant", knowledge_filters={"a": 1}), "input.knowledge_filters"),
    "Agno: tools": (v1("assistant", tools=["shell"]), "input.tools"),
    "Agno: a file of the server": (agno(images='[{"filepath": "/etc/passwd"}]'), '"images"'),
    "Agno: another user": (v1("assistant", user_id="mallory"), "input.user_id"),
    "AG-UI: another user": (agui(forwardedProps={"user_id": "mallory"}), '"user_id"'),
    "AG-UI: another thread": (v1(threadId="t"), "input.threadId"),
    "AG-UI: a thread by another name": (agui(thread_id="t"), '"thread_id"'),
    "AG-UI: what is unknown": (agui(later=1), '"later"'),
}


@pytest.fixture(scope="module")
def config() -> Config:
    return CONFIG


async def refused(edge: Client, path: str, body: Any) -> str:
    """Send a start that must get 422; return the text of the answer."""
    answer: httpx.Response = await edge.post(path, json=body)
    assert answer.status_code == 422, answer.text
    return answer.text


@pytest.mark.parametrize(("asked", "named"), ANSWERS.values(), ids=ANSWERS)
async def test_what_could_answer_a_pause_is_422_and_named_on_every_surface(
    edge: Client, asked: tuple[str, Any], named: str
) -> None:
    assert named in await refused(edge, *asked)


@pytest.mark.parametrize(("asked", "named"), UNNAMED.values(), ids=UNNAMED)
async def test_a_start_passes_nothing_that_is_not_named(
    edge: Client, asked: tuple[str, Any], named: str
) -> None:
    said = await refused(edge, *asked)
    assert named in said
    assert "accepts" in said or "by Penstock" in said or "from the agent" in said


@pytest.mark.parametrize("role", ["tool", "assistant"])
async def test_a_conversation_does_not_end_in_what_would_answer_or_run_a_call(
    edge: Client, role: str
) -> None:
    """Agno's AG-UI interface takes a tool result at the end as the answer to its pause."""
    call = {"id": "c", "type": "function", "function": {"name": "f", "arguments": "{}"}}
    asked = {"id": "a", "role": "assistant", "toolCalls": [call]}
    said = [user("delete it"), asked, *([tool("c", '{"accepted": true}')] * (role == "tool"))]
    shown = {"id": "r", "role": "reasoning", "content": "hm"}
    body = run_input("t", *said, shown)
    for path, request in (("/agui/graph", body), v1(messages=[*said, shown])):
        assert '"messages"' in await refused(edge, path, request) or path == "/v1/runs"
    # An answered call in the middle of the conversation is history, so the start is accepted.
    earlier = [*said, *([tool("c", "done")] * (role == "assistant")), user("and now?", "u2")]
    answer = await edge.post("/v1/runs", json=v1(messages=earlier)[1])
    assert answer.status_code == 202


async def test_a_name_that_stands_twice_is_refused(edge: Client) -> None:
    """A server may read either of two equal keys, so the edge could check the wrong one."""
    body = orjson.dumps(run_input("t"))[:-1] + b',"forwardedProps":{"command":{"resume":1}}'
    twice = body + b',"forwardedProps":{}}'
    headers = {"content-type": "application/json"}
    answer = await edge.post("/agui/graph", content=twice, headers=headers)
    assert answer.status_code == 422
    assert "forwardedProps" in answer.text


async def test_what_the_configuration_names_is_passed(make_edge: MakeEdge) -> None:
    accepts = {
        "assistant": ["dependencies"],
        "helper": ["stateDelta", "stateDelta.app:theme", "stateDelta.user:*"],
        "graph": ["forwardedProps.locale"],
    }
    agents = [agent.model_copy(update={"accepts": accepts[agent.id]}) for agent in CONFIG.agents]
    edge = await make_edge(config=Config(agents=agents))
    state = {"a": 1, "app:theme": "dark", "user:name": "Ada"}
    for path, body in (
        v1("assistant", dependencies={"command": "no answer to Agno"}),
        v1("helper", stateDelta=state),
        v1("helper", state_delta=state),
        v1(forwardedProps={"locale": "de"}, state={"resume": "a curriculum vitae"}),
    ):
        assert (await edge.post(path, json=body)).status_code == 202
    assert "app:other" in await refused(edge, *v1("helper", stateDelta={"app:other": 1}))
    assert "command" in await refused(edge, *v1(forwardedProps={"locale": COMMAND}))


@pytest.mark.parametrize(
    ("protocol", "name"),
    [
        ("agui", "resume"),
        ("agui", "forwardedProps.Command"),
        ("agui", "forwardedProps"),
        ("adk", "invocation_id"),
        ("adk", "userId"),
        ("agno", "session_id"),
    ],
)
def test_a_configuration_cannot_let_an_answer_pass(protocol: str, name: str) -> None:
    with pytest.raises(ValueError, match="accepts"):
        agent_config({"id": "a", "protocol": protocol, "url": NOWHERE, "accepts": [name]})


@pytest.mark.parametrize("path", ["", "/s1"])
async def test_a_session_is_made_with_state_of_its_own_alone(edge: Client, path: str) -> None:
    sessions = f"/apps/vana/users/u/sessions{path}"
    for prefix in ("app:", "user:"):
        state = {f"{prefix}a": 1}
        said = await refused(edge, sessions, state if path else {"state": state})
        assert f"{prefix}a" in said
    if not path:
        assert "events" in await refused(edge, sessions, {"events": [{"author": "vana"}]})
