"""The checks of agent servers before the first run, with real servers and with wrong ones."""

from __future__ import annotations

import asyncio
import json
import socket
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, closing
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest

from penstock.settings import Config, agent_config
from penstock_connector.checks import Finding, check_all
from support.fakes.serving import close_after
from support.real.upstreams import Upstream


async def found(url: str, protocol: str = "agno", agent: str = "", **more: Any) -> Finding:
    """Return the finding about this one agent."""
    config = {"id": "mine", "protocol": protocol, "url": url, "agent": agent, **more}
    [finding] = await check_all(Config(agents=[agent_config(config)]).server_agents, 20.0)
    assert finding.agent == "mine"
    return finding


@pytest.mark.real
@pytest.mark.parametrize(
    ("agent", "kind"),
    [("demo-agent", "agent"), ("demo-team", "team"), ("simple-wf", "workflow")],
)
async def test_an_agno_server_has_what_it_has(agno_server: Upstream, agent: str, kind: str) -> None:
    finding = await found(agno_server.url, agent=agent, kind=kind)
    assert finding.verdict == "ok"
    assert finding.text == f"{agno_server.url} is an Agno AgentOS and has the {kind} {agent}"


@pytest.mark.real
async def test_an_agno_server_without_the_agent_names_the_nearest(agno_server: Upstream) -> None:
    finding = await found(agno_server.url, agent="demoagent")
    assert finding.verdict == "wrong_agent"
    assert 'has no agent demoagent: did you mean "demo-agent"? (agents: demo-' in finding.text
    assert finding.text.endswith("set `agent` to one of them")


@pytest.mark.real
async def test_a_team_that_is_configured_as_an_agent_is_told(agno_server: Upstream) -> None:
    finding = await found(agno_server.url, agent="demo-team")
    assert finding.verdict == "wrong_agent"
    assert finding.text.endswith("but a team of that name: set `kind: team`")


@pytest.mark.real
async def test_an_agno_server_below_another_path_is_found(agno_server: Upstream) -> None:
    finding = await found(f"{agno_server.url}/v1", agent="demo-agent")
    assert finding.verdict == "wrong_protocol"
    assert finding.text.endswith(f"set `url: {agno_server.url}`")


@pytest.mark.real
@pytest.mark.parametrize("protocol", ["adk", "agui"])
async def test_an_agno_server_that_is_configured_as_another_is_told(
    agno_server: Upstream, protocol: str
) -> None:
    finding = await found(agno_server.url, protocol, "demo-agent")
    assert finding.verdict == "wrong_protocol"
    assert "an Agno AgentOS (agents: demo-agent, " in finding.text
    assert finding.text.endswith("set `protocol: agno`")


@pytest.mark.real
async def test_an_adk_server_has_the_app_or_names_its_apps(adk_server: Upstream) -> None:
    assert (await found(adk_server.url, "adk", "demo")).verdict == "ok"
    finding = await found(adk_server.url, "adk", "Demo")
    assert finding.verdict == "wrong_agent"
    assert 'has no app Demo: did you mean "demo"? (apps: demo, loop' in finding.text


@pytest.mark.real
@pytest.mark.parametrize("protocol", ["agno", "agui"])
async def test_an_adk_server_that_is_configured_as_another_is_told(
    adk_server: Upstream, protocol: str
) -> None:
    finding = await found(adk_server.url, protocol, "nobody")
    assert finding.verdict == "wrong_protocol"
    assert "an ADK server (apps: demo, loop" in finding.text
    assert "set `protocol: adk` and `agent` to one of them (it is nobody" in finding.text


@pytest.mark.real
async def test_an_agui_endpoint_is_recognised_by_what_it_takes(
    langgraph_server: Upstream, agno_agui_server: Upstream
) -> None:
    for url in (f"{langgraph_server.url}/delete", f"{agno_agui_server.url}/text/agui"):
        finding = await found(url, "agui")
        assert (finding.verdict, finding.text) == ("ok", f"{url} takes AG-UI runs")


@pytest.mark.real
async def test_an_agui_endpoint_that_tells_nothing_is_not_said_to_be_one(
    pydantic_ai_server: Upstream,
) -> None:
    finding = await found(f"{pydantic_ai_server.url}/text", "agui")
    assert finding.verdict == "unproven"
    assert finding.is_fine
    assert finding.text.endswith("/text takes a POST; whether it speaks AG-UI, only a run shows")


@pytest.mark.real
@pytest.mark.parametrize("path", ["", "/text", "/agui"])
async def test_the_address_of_an_agui_server_without_its_path_is_told_with_the_paths(
    agno_agui_server: Upstream, path: str
) -> None:
    finding = await found(agno_agui_server.url + path, "agui")
    assert not finding.is_fine
    assert f"{agno_agui_server.url}/text/agui, " in finding.text
    assert finding.text.endswith("et `url` to one of them")


@pytest.mark.real
async def test_an_agui_server_that_is_configured_as_agno_is_told(
    langgraph_server: Upstream,
) -> None:
    finding = await found(langgraph_server.url, "agno")
    assert finding.verdict == "wrong_protocol"
    assert f"AG-UI endpoints there are {langgraph_server.url}/delete" in finding.text


# Servers of other kinds, with the answers that they give.

Answers = dict[str, tuple[int, dict[str, str], str]]


class Wrong:
    """A server with these answers, and 404 for all other paths; it records the requests."""

    def __init__(self, answers: Answers) -> None:
        self.answers = answers
        self.asked: list[str] = []
        self.url = ""

    async def __call__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = (await reader.readuntil(b"\r\n\r\n")).decode()
        method, path, _ = head.split(" ", 2)
        self.asked.append(head)
        assert method == "GET"
        status, headers, body = self.answers.get(path, (404, {}, "not here"))
        lines = [f"HTTP/1.1 {status} x", "connection: close", f"content-length: {len(body)}"]
        lines += [f"{name}: {value}" for name, value in headers.items()]
        writer.write(("\r\n".join(lines) + "\r\n\r\n" + body).encode())
        await writer.drain()
        writer.close()


@asynccontextmanager
async def served(answers: Answers) -> AsyncIterator[Wrong]:
    wrong = Wrong(answers)
    server = await asyncio.start_server(close_after(wrong), "127.0.0.1", 0)
    wrong.url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    async with server:
        yield wrong


@pytest.mark.parametrize("protocol", ["agno", "adk", "agui"])
async def test_an_unreachable_server_is_reported_with_its_address(protocol: str) -> None:
    with closing(socket.create_server(("127.0.0.1", 0))) as listener:
        url = f"http://127.0.0.1:{listener.getsockname()[1]}"
    finding = await found(url, protocol)
    assert finding.verdict == "unreachable"
    assert finding.text.startswith(f"cannot reach {url}")
    assert "is the server running there" in finding.text


async def test_a_server_that_is_silent_is_given_up() -> None:
    with closing(socket.create_server(("127.0.0.1", 0))) as listener:
        url = f"http://127.0.0.1:{listener.getsockname()[1]}"
        config = agent_config({"id": "a", "protocol": "adk", "url": url})
        [finding] = await check_all(Config(agents=[config]).server_agents, 0.2)
    assert finding.verdict == "unreachable"
    assert finding.text == f"{url}/list-apps did not answer within 0.2 s"


@pytest.mark.parametrize(
    ("protocol", "body"),
    [
        ("agno", "<html>Welcome</html>"),
        ("agno", "[{}]"),
        ("agno", '{"agents": null}'),
        ("adk", '{"apps": []}'),
        ("adk", "[1]"),
        ("agui", "{}"),
    ],
)
async def test_a_server_that_is_something_else_is_told_with_its_own_words(
    protocol: str, body: str
) -> None:
    paths = ("/", "/config", "/list-apps")
    async with served({path: (200, {}, body) for path in paths}) as wrong:
        finding = await found(wrong.url, protocol)
        assert finding.verdict == "wrong_protocol"
        assert f" answered 200: {body}" in finding.text
        assert "check " in finding.text


@pytest.mark.parametrize(
    ("protocol", "path"), [("agno", "/config"), ("adk", "/list-apps"), ("agui", "/")]
)
async def test_a_server_that_wants_credentials_is_told_without_those_that_were_sent(
    protocol: str, path: str
) -> None:
    answer: tuple[int, dict[str, str], str] = (401, {}, "not with secret-token-1234")
    async with served({path: answer}) as wrong:
        headers = {"Authorization": "Bearer secret-token-1234"}
        finding = await found(wrong.url, protocol, headers=headers)
        assert all("secret-token-1234" in head for head in wrong.asked)
    assert finding.verdict == "refused"
    assert "secret-token-1234" not in finding.text
    assert "Set the headers that it wants under `headers` (Authorization set)" in finding.text


async def test_a_password_in_the_url_is_used_and_not_shown() -> None:
    async with served({"/list-apps": (200, {}, '["mine"]')}) as wrong:
        finding = await found(wrong.url.replace("//", "//me:open-sesame@"), "adk")
        assert "authorization: Basic" in wrong.asked[0].replace("Authorization", "authorization")
    assert finding.verdict == "ok"
    assert "open-sesame" not in finding.text


async def test_a_redirected_agui_url_is_told_with_where_it_leads() -> None:
    async with served({"/agent": (307, {"location": "/agent/"}, "")}) as wrong:
        finding = await found(f"{wrong.url}/agent", "agui")
        assert finding.text.endswith(f"set `url: {wrong.url}/agent/`")
    assert not finding.is_fine


class OnlyPost(BaseHTTPRequestHandler):
    """A server of Python's standard library that knows only POST: it answers a GET with 501."""

    def do_POST(self) -> None:
        self.send_response(200)
        self.end_headers()

    def log_message(self, *_: object) -> None:
        pass


async def test_an_agui_server_that_knows_no_get_is_unproven_and_not_wrong() -> None:
    with ThreadingHTTPServer(("127.0.0.1", 0), OnlyPost) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        try:
            finding = await found(f"http://127.0.0.1:{server.server_port}/agent", "agui")
        finally:
            server.shutdown()
    assert (finding.verdict, finding.is_fine) == ("unproven", True)
    assert finding.text.endswith("/agent takes no GET; whether it speaks AG-UI, only a run shows")


async def test_an_agui_path_with_a_parameter_is_recognised() -> None:
    schema = {"$ref": "#/components/schemas/RunAgentInput"}
    operation = {"requestBody": {"content": {"application/json": {"schema": schema}}}}
    document = json.dumps({"paths": {"/agui/{agent}": {"post": operation}}})
    async with served({"/openapi.json": (200, {}, document)}) as wrong:
        assert (await found(f"{wrong.url}/agui/a.b", "agui")).verdict == "ok"
        assert (await found(f"{wrong.url}/agui/a/b", "agui")).verdict == "wrong_agent"


async def test_an_answer_without_end_is_cut_and_its_control_characters_are_not_shown() -> None:
    async with served({"/config": (200, {}, "\x1b[2J" + "x" * 9_000_000)}) as wrong:
        finding = await found(wrong.url)
    assert finding.verdict == "wrong_protocol"
    assert "\x1b" not in finding.text
    assert len(finding.text) < 500
