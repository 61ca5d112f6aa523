"""Nothing but a decision answers a pause, in any face: no text, history, replay or other user.

All services are separate processes, the agent servers are real, and each user has a token.
`support/attacks/smuggled.py` has the table of the forms.
"""

from __future__ import annotations

import uuid
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Any

import httpx
import pytest
import pytest_asyncio
from websockets.asyncio.client import connect
from websockets.exceptions import ConnectionClosed

from penstock.dialects.openai import RequestId
from support.attacks.smuggled import ATTACKS, DECISIONS, FACES, Caller, Request, Target
from support.drive.secured import bearer
from support.drive.short import in_short
from support.drive.waiting import eventually
from support.fakes.issuer import SECRET
from support.real.deployment import Deployment, deployment
from support.real.nats import NatsServer
from support.real.upstreams import Upstream

pytestmark = [pytest.mark.real, pytest.mark.asyncio(loop_scope="module"), pytest.mark.timeout(300)]

JSON = {"accept": "application/json"}
AGENTS = ["assistant", pytest.param("research", marks=pytest.mark.chaos)]
# `make test` attacks three faces, and repeats the answer of one.
OF_SHORT = ["/v1", "agno", "a2a"]
AGAIN = ["/v1"]


@dataclass(slots=True)
class Site:
    """Penstock, and the agent servers."""

    penstock: Deployment
    servers: dict[str, Upstream]

    async def send(self, caller: Caller, request: Request) -> httpx.Response | None:
        """Send the request and read the whole answer; a WebSocket has none."""
        user, scope = caller.value
        headers = {**request.headers, **bearer(user, scope=scope)}
        is_approvals = request.path.startswith(("/v1/approvals", "/d/"))
        base = self.penstock.approvals if is_approvals else self.penstock.edge()
        if request.messages:
            url = base.replace("http", "ws", 1) + request.path
            async with connect(url, additional_headers=headers) as socket:
                try:
                    for message in request.messages:
                        await socket.send(message)
                    while True:
                        await socket.recv()
                except ConnectionClosed:
                    return None
        content = {"data": request.form} if request.form is not None else {"json": request.body}
        return await self.penstock.http.request(
            request.method, base + request.path, headers=headers, **content
        )

    async def get(self, path: str) -> Any:
        answer = await self.send(Caller.OWNER, Request("GET", path, headers=JSON))
        assert answer is not None
        assert answer.status_code == 200, answer.text
        return answer.json()

    async def pause(self, agent: str, session: str = "") -> Target:
        """Start a run of Alice that waits before it runs a tool."""
        session = session or uuid.uuid4().hex
        body = {"agent": agent, "message": f"confirm {session}", "session_id": session}
        answer = await self.send(Caller.OWNER, Request("POST", "/v1/runs", body))
        assert answer is not None
        run_id = answer.json()["run_id"]

        async def asked() -> dict[str, Any] | None:
            shown = await self.get(f"/v1/approvals?run_id={run_id}")
            record = await self.get(f"/v1/runs/{run_id}")
            is_asked = shown["approvals"] and record["status"] == "paused"
            return shown["approvals"][0] if is_asked else None

        approval = await eventually(asked, 40, f"{agent} to ask")
        (item,) = approval["items"]
        frames = {
            dialect: (await self.get(f"/v1/runs/{run_id}/events?dialect={dialect}"))["events"]
            for dialect in ("agno", "adk", "agui")
        }
        (paused,) = [each for each in frames["agno"] if each["event"] == "RunPaused"]
        calls = [
            part["functionCall"]
            for each in frames["adk"]
            for part in (each.get("content") or {}).get("parts") or ()
            if part.get("functionCall", {}).get("name") == "adk_request_confirmation"
        ]
        (finished,) = [each for each in frames["agui"] if each["type"] == "RUN_FINISHED"]
        return Target(
            agent=agent,
            session=session,
            run_id=run_id,
            approval_id=approval["approval_id"],
            digest=approval["digest"],
            item_id=item["item_id"],
            tool_call_id=item["tool_call_id"],
            tool=paused["tools"][0],
            call=calls[0],
            interrupt=finished["outcome"]["interrupts"][0],
            openai_request=str(RequestId.of(approval["approval_id"], item)),
        )

    async def is_pending(self, target: Target) -> bool:
        shown = await self.get(f"/v1/approvals/{target.approval_id}")
        return bool(shown["status"] == "pending")

    def ran(self, target: Target) -> int:
        """Return how often a tool of the target's session has run."""
        runs = self.servers[target.agent].tool_runs()
        return sum(target.session in (run["session"], run["args"].get("title")) for run in runs)

    async def end(self, target: Target) -> str:
        """Wait for the end of the run; return how it ended."""

        async def status() -> str | None:
            found = str((await self.get(f"/v1/runs/{target.run_id}"))["status"])
            return found if found in ("completed", "failed", "cancelled") else None

        found = await eventually(status, 40, f"the end of {target.run_id}")
        assert found is not None
        return found


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def site(
    tmp_path_factory: pytest.TempPathFactory, agno_server: Upstream, adk_server: Upstream
) -> AsyncIterator[Site]:
    common: list[dict[str, Any]] = [
        {"id": "assistant", "protocol": "agno", "url": agno_server.url, "agent": "demo-agent"},
        {"id": "research", "protocol": "adk", "url": adk_server.url, "agent": "demo"},
    ]
    agents = [{**each, "topology_id": number} for number, each in enumerate(common, 1)]
    folder = tmp_path_factory.mktemp("smuggled")
    nats = NatsServer(folder / "nats")
    nats.start()
    try:
        async with deployment(nats.url, folder, agents, auth_jwt_secret=SECRET) as running:
            yield Site(running, {"assistant": agno_server, "research": adk_server})
    finally:
        nats.remove()


@pytest.mark.parametrize("agent", AGENTS)
@pytest.mark.parametrize("face", in_short(list(FACES), OF_SHORT))
async def test_nothing_but_a_decision_answers_a_pause(site: Site, face: str, agent: str) -> None:
    target = await site.pause(agent)
    for attack in [each for each in ATTACKS if each.face == face]:
        answer = await site.send(attack.caller, attack.make(target))
        said = answer.text[:300] if answer is not None else ""
        expected = attack.refusal(agent)
        assert answer is None or answer.status_code == expected, (str(attack), said)
        assert await site.is_pending(target), (str(attack), said)
        assert site.ran(target) == 0, (str(attack), said)
    # The owner's proper answer runs the tool once.
    await site.send(Caller.OWNER, DECISIONS.get(face, DECISIONS["/v1"])(target))
    assert await site.end(target) == "completed"
    assert site.ran(target) == 1


@pytest.mark.parametrize("agent", AGENTS)
@pytest.mark.parametrize("face", in_short(list(DECISIONS), AGAIN))
async def test_an_answer_that_is_sent_again_decides_nothing_more(
    site: Site, face: str, agent: str
) -> None:
    first = await site.pause(agent)
    request = DECISIONS[face](first)
    await site.send(Caller.OWNER, request)
    assert await site.end(first) == "completed"
    second = await site.pause(agent, first.session)
    for caller in Caller:
        await site.send(caller, request)
        assert await site.is_pending(second), caller
    assert site.ran(first) == 1
