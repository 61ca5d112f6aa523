"""The edge answers the requests of `adk web` as the real ADK server behind it does."""

from __future__ import annotations

import platform
import uuid
from collections.abc import AsyncIterator
from importlib.metadata import version
from typing import Any

import httpx
import pytest

from penstock.bus import Bus
from penstock.settings import AdkAgent, AgnoAgent, Config
from penstock.web.auth import Auth, AuthConfig, StreamTokens
from support.drive.clients import Client, MakeEdge
from support.fakes.guarded_server import MemoryStore, StoreAway
from support.fakes.issuer import SECRET, token
from support.fakes.pretend import PretendRun
from support.real.upstreams import Upstream

pytestmark = pytest.mark.real

NOWHERE = "http://127.0.0.1:9"


def config(adk: str) -> Config:
    other = AgnoAgent(id="assistant", protocol="agno", url=NOWHERE, agent="demo", name="Demo")
    served = {"protocol": "adk", "url": adk}
    return Config(
        agents=[
            other,
            AdkAgent(id="adk", agent="demo", accepts=["stateDelta"], **served),
            AdkAgent(id="closed", agent="team", **served),
            AdkAgent(id="gone", protocol="adk", url=NOWHERE, agent="gone"),
        ]
    )


@pytest.fixture
async def edge(make_edge: MakeEdge, adk_server: Upstream) -> Client:
    return await make_edge(config=config(adk_server.url))


@pytest.fixture
async def direct(adk_server: Upstream) -> AsyncIterator[httpx.AsyncClient]:
    """Return a client of the real ADK server, whose answers the edge must repeat."""
    async with httpx.AsyncClient(base_url=adk_server.url, timeout=20, trust_env=False) as client:
        yield client


@pytest.fixture
async def session(direct: httpx.AsyncClient) -> str:
    """Return the path of a session of the app `demo` with two saved versions of an artifact."""
    user = f"user {uuid.uuid4()}"
    path = f"/apps/demo/users/{user}/sessions/s1"
    assert (await direct.post(path)).status_code == 200
    for _ in range(2):
        message = {"role": "user", "parts": [{"text": "artifact"}]}
        body = {"appName": "demo", "userId": user, "sessionId": "s1", "newMessage": message}
        assert (await direct.post("/run", json=body)).status_code == 200
    return path


def told(answer: httpx.Response) -> tuple[int, Any]:
    return answer.status_code, answer.content


async def test_artifacts_are_what_the_adk_server_answers_byte_for_byte(
    edge: Client, direct: httpx.AsyncClient, session: str
) -> None:
    [name] = (await direct.get(f"{session}/artifacts")).json()
    paths = [
        "",
        f"/{name}",
        f"/{name}?version=0",
        f"/{name}/versions",
        f"/{name}/versions/1",
        f"/{name}/versions/latest",
        f"/{name}/versions/1/metadata",
        f"/{name}/versions/metadata",
        "/nothing",
        f"/{name}/versions/7",
        f"/{name}/versions/x",
        f"/{name}?version=x",
    ]
    for path in paths:
        theirs = await direct.get(f"{session}/artifacts{path}")
        ours = await edge.get(f"{session}/artifacts{path}")
        assert told(ours) == told(theirs), path
    assert (await edge.get(f"{session}/artifacts/{name}/versions")).json() == [0, 1]
    assert "inlineData" in (await edge.get(f"{session}/artifacts/{name}")).json()


async def test_artifacts_are_only_read(edge: Client, session: str) -> None:
    for method in ("POST", "PUT", "DELETE"):
        answer = await edge.request(method, f"{session}/artifacts/x")
        assert (answer.status_code, answer.headers["allow"]) == (405, "GET, HEAD")


@pytest.mark.parametrize("way", ["..", "%2E%2E", "a/..", "a%2F..%2F..", "a%5C..%5Cb"])
async def test_the_name_of_an_artifact_leads_nowhere_else(
    edge: Client, session: str, way: str
) -> None:
    target = f"{session.replace(' ', '%20')}/artifacts/{way}/versions".encode()
    # The path is given as a raw target, because httpx would resolve the dots of a URL.
    answer = await edge.get("/", extensions={"target": target})
    assert (answer.status_code, answer.json()) == (404, {"detail": "Artifact not found"})


async def test_an_agent_that_is_no_adk_agent_has_no_artifacts(edge: Client) -> None:
    path = "/apps/assistant/users/anonymous/sessions/s1/artifacts"
    for empty in (path, f"{path}/a/versions"):
        answer = await edge.get(empty)
        assert (answer.status_code, answer.json()) == (200, [])
    assert (await edge.get(f"{path}/a")).status_code == 404


async def test_the_state_of_a_session_is_changed_as_the_adk_server_changes_it(
    edge: Client, direct: httpx.AsyncClient, session: str
) -> None:
    for body in ({"stateDelta": {"colour": "blue"}}, {"state_delta": {"size": 3}}):
        answer = await edge.patch(session, json=body)
        assert answer.status_code == 200, answer.text
        # The order of the state's keys depends on whether the app had a state before.
        assert answer.json() == (await direct.get(session)).json()
    state = answer.json()["state"]
    assert (state["colour"], state["size"]) == ("blue", 3)
    missing, theirs = await edge.patch(session, json={}), await direct.patch(session, json={})
    assert missing.status_code == theirs.status_code == 422
    unknown = session.replace("/s1", "/s2")
    change = {"stateDelta": {"a": 1}}
    answers = [await each.patch(unknown, json=change) for each in (edge, direct)]
    assert told(answers[0]) == told(answers[1])
    assert answers[0].status_code == 404


@pytest.mark.parametrize(
    ("app", "body", "loc"),
    [
        ("team", {"stateDelta": {"colour": "blue"}}, ["stateDelta"]),
        ("demo", {"stateDelta": {"app:theme": "dark"}}, ["stateDelta", "app:theme"]),
        ("demo", {"state_delta": {"user:name": "Eve"}}, ["state_delta", "user:name"]),
        ("demo", {"stateDelta": {}, "invocationId": "i1"}, ["invocationId"]),
        ("demo", {"stateDelta": {}, "state_delta": {"a": 1}}, ["state_delta"]),
    ],
)
async def test_a_change_holds_what_a_start_may_hold_and_nothing_else(
    edge: Client, direct: httpx.AsyncClient, app: str, body: dict[str, Any], loc: list[str]
) -> None:
    path = f"/apps/{app}/users/{uuid.uuid4()}/sessions/s1"
    created = await direct.post(path)
    refused = await edge.patch(path, json=body)
    assert refused.status_code == 422
    assert [each["loc"] for each in refused.json()["detail"]] == [["body", *loc]]
    assert (await direct.get(path)).json()["state"] == created.json()["state"]


async def test_the_state_under_a_run_or_a_pause_stays_as_it_is(
    edge: Client, direct: httpx.AsyncClient, bus: Bus, session: str
) -> None:
    user = session.split("/")[4]
    run = PretendRun(bus)
    await run.join(user_id=user, agent="adk")
    await run.started()
    change = {"stateDelta": {"amount": 1000}}
    assert (await edge.patch(session, json=change)).status_code == 409
    await run.say("lifecycle.paused", reason="approval_required", approval_id="a")
    assert (await edge.patch(session, json=change)).status_code == 409
    assert "amount" not in (await direct.get(session)).json()["state"]


async def test_the_apps_are_described_as_their_server_does_or_as_they_are_known(
    edge: Client, direct: httpx.AsyncClient
) -> None:
    names = (await edge.get("/list-apps", params={"relative_path": "./"})).json()
    assert names == ["assistant", "demo", "gone", "team"]
    theirs = (await direct.get("/list-apps", params={"detailed": "true"})).json()
    by_name = {app["name"]: app for app in theirs["apps"]}
    ours = (await edge.get("/list-apps", params={"detailed": "true"})).json()
    assert set(ours) == set(theirs) == {"apps"}
    assert [app["name"] for app in ours["apps"]] == names
    described = {app["name"]: app for app in ours["apps"]}
    assert all(described[name] == by_name[name] for name in ("demo", "team"))
    assert described["assistant"] == {
        "name": "assistant",
        "rootAgentName": "Demo",
        "description": "",
        "language": "python",
        "isComputerUse": False,
        "agents": None,
    }
    assert {tuple(app) for app in ours["apps"]} == {tuple(by_name["demo"])}
    wrong = await edge.get("/list-apps", params={"detailed": "perhaps"})
    assert wrong.status_code == 422


async def test_the_version_is_penstocks_in_the_shape_of_adks(
    edge: Client, direct: httpx.AsyncClient
) -> None:
    ours, theirs = (await edge.get("/version")).json(), (await direct.get("/version")).json()
    assert list(ours) == list(theirs)
    assert ours["version"] == version("penstock-edge")
    assert ours["language_version"] == platform.python_version()


async def test_what_an_adk_server_keeps_is_its_users_own_and_needs_the_scope_raw(
    make_edge: MakeEdge, adk_server: Upstream, session: str
) -> None:
    user = session.split("/")[4]
    auth = Auth(AuthConfig(jwt_secret=SECRET), StreamTokens(MemoryStore(), StoreAway))
    edge = await make_edge(config=config(adk_server.url), auth=auth)
    asked: list[tuple[str, str, Any]] = [
        ("GET", f"{session}/artifacts", None),
        ("GET", f"{session}/artifacts/report.txt/versions", None),
        ("PATCH", session, {"stateDelta": {"colour": "blue"}}),
    ]
    for method, path, body in asked:

        async def status(who: str, scope: str, *request: Any) -> int:
            headers = {"authorization": f"Bearer {token(sub=who, scope=scope)}"}
            method, path, body = request
            return (await edge.request(method, path, json=body, headers=headers)).status_code

        assert await status(user, "read start raw", method, path, body) == 200
        assert await status(user, "read start", method, path, body) == 403
        assert await status("bob", "read start raw", method, path, body) == 403
