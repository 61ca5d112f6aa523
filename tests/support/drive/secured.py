"""Run Penstock's services with authentication, as `serve` does, with runs that belong to Alice."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

import httpx
import orjson
import pytest
import uuid_utils

from penstock import lookups
from penstock.bus import Bus, BusSettings, messages, subjects
from penstock.bus.records.approvals import ApprovalRecord
from penstock.bus.records.runs import StartCommand
from penstock.service import Service, Stop, serve
from penstock.settings import AdkAgent, AgnoAgent, AuthSettings, Config, Settings
from penstock_approvals.service import ApprovalsService
from penstock_automations.delivery.records import DeliveryRecord
from penstock_automations.jobs.job import EventSource, Job
from penstock_automations.rules.check import read_rule
from penstock_automations.rules.model import Rule
from penstock_automations.rules.records import Owner
from penstock_automations.rules.store import RuleStore
from penstock_automations.service import AutomationsService
from penstock_console.service import ConsoleService
from penstock_edge.service import EdgeService
from penstock_workflows.api.definitions import EXAMPLE as WORKFLOW
from penstock_workflows.definition import load_value
from penstock_workflows.registry import WorkflowStore
from penstock_workflows.service import WorkflowsService
from support.drive.access import Row
from support.drive.clients import Stream
from support.drive.waiting import eventually
from support.fakes.issuer import SECRET, token
from support.fakes.pretend import PretendConnector, PretendRun
from support.real.ports import free_port

NOWHERE = "http://127.0.0.1:9"
CONFIG = Config(
    agents=[
        AgnoAgent(id="assistant", protocol="agno", url=NOWHERE, agent="demo", topology_id=123),
        AgnoAgent(id="squad", protocol="agno", url=NOWHERE, kind="team"),
        AgnoAgent(id="flow", protocol="agno", url=NOWHERE, kind="workflow"),
        AdkAgent(id="helper", protocol="adk", url=NOWHERE, agent="vana"),
    ]
)
KINDS = {"/agents": "assistant", "/teams": "squad", "/workflows": "flow"}
SLOW = "take your time"
SERVED = [ApprovalsService, AutomationsService, WorkflowsService, EdgeService, ConsoleService]
FRAME = b'data: {"author": "vana", "content": {"parts": [{"text": "Hello"}]}}\n\n'


def bearer(user: str = "alice", **claims: Any) -> dict[str, str]:
    """Return the header with a user's token. Without a `scope`, the token is a plain user's."""
    return {"authorization": f"Bearer {token(sub=user, **claims)}"}


async def play(run: PretendRun, command: StartCommand) -> None:
    """Play a started run: it sends hello and completes, or begins and never ends if it is SLOW."""
    run.session_id = command.session_id
    await run.started()
    if command.message == SLOW:
        return
    await run.leg(FRAME)
    await run.text("Hello")
    await run.completed("Hello")


class Secured:
    """The services on one port, and helpers for the tests."""

    def __init__(self, url: str, http: httpx.AsyncClient, bus: Bus) -> None:
        self.url = url
        self.http = http
        self.bus = bus
        self._runs: dict[str, PretendRun] = {}

    async def ask(
        self, row: Row, headers: dict[str, str], user: str = "alice", **given: str
    ) -> httpx.Response:
        """Send the row's request about Alice's resources."""
        names = {**await self.given(row), **given}
        body = row.how.bob if user == "bob" and row.how.bob is not None else row.body
        content = None
        if body is not None:
            text = orjson.dumps(body).decode()
            for name, value in names.items():
                text = text.replace(f"{{{name}}}", value)
            content, headers = text, {**headers, "content-type": "application/json"}
        return await self.http.request(
            row.method,
            row.route.format(**names) + row.how.query,
            headers={**row.how.headers, **headers},
            content=content,
        )

    async def given(self, row: Row, *, tokens: bool = True) -> dict[str, str]:
        """Return the values for the names in the row's path and body, which name Alice's resources.

        `tokens` is false if authentication is off, because stream tokens do not exist then.
        """
        agent = next((id for path, id in KINDS.items() if row.route.startswith(path)), "assistant")
        # A request that changes a session gets a session that no other request uses.
        # A request that continues a run's session leaves a run there that no service ends.
        use = "continued" if "{run_id}" in str(row.how.body) else "read"
        run = await (self.finished() if "{session}" in row.route else self.run(agent, use=use))
        names = {"app": "assistant", "user": "alice", "id": agent, "new": str(uuid_utils.uuid7())}
        names |= {"run_id": run.run_id, "session": run.session_id, "session_id": run.session_id}
        names |= {"response_id": f"resp_{run.run_id}", "model": agent}
        names |= {"artifact": "report.txt", "agent": agent, "thread_id": run.session_id}
        names["chat"] = run.session_id
        names |= {"task": run.run_id, "config": "c1", "number": "1", "erasure_id": "e1"}
        if "{approval_id}" in row.route:
            names["approval_id"] = await self.approval(run)
        if "{link_id}" in row.route and tokens:
            names["link_id"] = (await self.link(names["approval_id"]))["id"]
        if "{secret}" in row.route and tokens:
            url = (await self.link(await self.approval(run)))["url"]
            names["secret"] = url.rsplit("/", 1)[1]
        if "{rule_id}" in row.route:
            names["rule_id"], names["delivery_id"] = await self.rule(run)
        if "{name}" in row.route:
            record, _ = await WorkflowStore(self.bus).put(load_value(WORKFLOW), "root")
            await WorkflowStore(self.bus).name_latest(record.name, record, "root")
            names |= {"name": record.name, "version": record.version}
        if "{service_token_id}" in row.route and tokens:
            _, names["service_token_id"] = await self.service_token()
        if "{token_id}" in row.route and tokens:
            made = await self.token(subjects=["*.*"])
            names["token_id"] = made["id"]
        return names

    async def run(
        self, agent: str = "assistant", user: str = "alice", *, use: str = "read"
    ) -> PretendRun:
        """Return a finished run of the user, the same run each time for the same use."""
        key = f"{user} {agent} {use}"
        if key not in self._runs:
            session_id = f"session-of-{agent}" if use == "read" else f"{use}-session-of-{agent}"
            self._runs[key] = await self.finished(agent, user, session_id)
        return self._runs[key]

    async def finished(
        self, agent: str = "assistant", user: str = "alice", session_id: str = ""
    ) -> PretendRun:
        """Make a finished run of the user; without `session_id`, in a session of its own."""
        run = PretendRun(self.bus, session_id=session_id or f"session-{uuid_utils.uuid7()}")
        await run.join(user_id=user, agent=agent)
        await run.started()
        await run.leg(FRAME)
        await run.text(f"for {user} alone")
        await run.completed("done")
        return run

    async def live(self, user: str = "alice") -> PretendRun:
        """Make a run of the user that has not ended."""
        run = PretendRun(self.bus, session_id=f"session-{uuid_utils.uuid7()}")
        await run.join(user_id=user)
        await run.started()
        return run

    async def approval(self, run: PretendRun, user: str = "alice", **fields: Any) -> str:
        """Make an approval that waits for a decision about the item `c1`.

        `fields` are further fields of its record.
        """
        approval_id = str(uuid_utils.uuid7())
        now = messages.now()
        record = ApprovalRecord(
            approval_id=approval_id,
            run_id=run.run_id,
            agent="assistant",
            session_id=run.session_id,
            user_id=user,
            leg=1,
            requested_at=now,
            updated_at=now,
            **{"digest": "d", "items": [{"item_id": "c1", "kind": "confirmation"}], **fields},
        )
        await self.bus.bucket("approvals").put(approval_id, record.dump())
        alias = {"approval_id": approval_id, "run_id": run.run_id, "leg": 1, "item_id": "c1"}
        key = subjects.key_of("approval", "assistant", run.session_id, "c1")
        await self.bus.bucket("aliases").put(key, orjson.dumps(alias))
        return approval_id

    async def rule(self, run: PretendRun, user: str = "alice") -> tuple[str, str]:
        """Make or replace a rule of the user, and make a delivery; return their ids.

        Nothing answers at the URL of the rule's webhook.
        """
        webhook = {"url": "https://127.0.0.1:9/"}
        made = {"id": f"of-{user}", "subjects": ["llm.tool_call"], "action": {"webhook": webhook}}
        owner = Owner(user_id=user, scopes=["automate"])
        rule = await RuleStore(self.bus).apply(read_rule(made, Rule), owner)
        source = EventSource(run.run_id, 1, 1, 1)
        job = Job(rule.rule.id, rule.version, rule.uid, "llm.tool_call", source)
        record = DeliveryRecord(
            id=job.delivery_id,
            rule=job.rule,
            name=job.rule,
            run_id=run.run_id,
            sequence=1,
            type=job.type,
            status="failed",
            began_at=self.bus.clock.time(),
            job=orjson.loads(job.dump()),
        )
        await self.bus.bucket("deliveries").put(job.key, record.dump())
        return job.rule, job.delivery_id

    async def stands(self, approval_id: str) -> None:
        """Check that the approval is still pending."""
        answer = await self.http.get(f"/v1/approvals/{approval_id}", headers=bearer())
        assert answer.json()["status"] == "pending"

    async def decision(self, approval_id: str) -> dict[str, Any]:
        """Wait until the approval is decided; return the decision of its record."""

        async def decided() -> dict[str, Any] | None:
            answer = await self.http.get(f"/v1/approvals/{approval_id}", headers=bearer())
            found: dict[str, Any] | None = answer.json().get("decision")
            return found

        return await eventually(decided)

    async def token(self, user: str = "alice", **limits: Any) -> dict[str, Any]:
        """Make a stream token of the user; return the answer of POST /v1/tokens."""
        answer = await self.http.post("/v1/tokens", json=limits, headers=bearer(user))
        assert answer.status_code == 201, answer.text
        made: dict[str, Any] = answer.json()
        return made

    async def service_token(self, **rights: Any) -> tuple[dict[str, str], str]:
        """Make a service token; return the header that sends the token, and the token's id."""
        body = {"name": "machine", "scopes": ["decide", "read"], **rights}
        headers = bearer("root", scope="administer")
        answer = await self.http.post("/v1/service-tokens", json=body, headers=headers)
        assert answer.status_code == 201, answer.text
        made = answer.json()
        return {"authorization": f"Bearer {made['token']}"}, made["id"]

    async def link(self, approval_id: str, **body: Any) -> dict[str, Any]:
        """Make a one-time link to the approval, for Alice if the body names nobody."""
        headers = bearer("root", scope="administer")
        path = f"/v1/approvals/{approval_id}/links"
        answer = await self.http.post(path, json=body or {"user": "alice"}, headers=headers)
        assert answer.status_code == 201, answer.text
        made: dict[str, Any] = answer.json()
        return made

    def stream(self, path: str, headers: dict[str, str] | None = None, **query: str) -> Stream:
        """Send a GET request whose response is read frame by frame."""
        return Stream(self.http, "GET", path, params=query, headers=headers or {})


@asynccontextmanager
async def secured(nats_url: str, host: str = "127.0.0.1", **auth: Any) -> AsyncIterator[Secured]:
    """Serve all services with routes in one process, with authentication."""
    settings = Settings(
        nats_url=nats_url,
        host=host,
        port=free_port(),
        probe_port=free_port(),
        auth=AuthSettings(**{"jwt_secret": SECRET, "leeway_s": 0, **auth}),
    )
    url = f"http://127.0.0.1:{settings.port}"
    async with AsyncExitStack() as stack:
        bus = await Bus.connect(BusSettings(url=nats_url, name="test"))
        stack.push_async_callback(bus.close)
        connector = PretendConnector(bus, play)
        await connector.start()
        stack.push_async_callback(connector.stop)
        await stack.enter_async_context(served(settings, CONFIG, SERVED))
        http = await stack.enter_async_context(httpx.AsyncClient(base_url=url, timeout=30))
        yield Secured(url, http, bus)


@asynccontextmanager
async def served(
    settings: Settings, config: Config, services: Sequence[type[Service]]
) -> AsyncIterator[None]:
    """Serve these services in one process. Raises what `serve` raises."""
    stop, ready = Stop(), asyncio.Event()
    with pytest.MonkeyPatch.context() as environment:
        environment.setenv("ENABLE_ADK_CANONICAL_STREAM", "true")
        environment.setenv("PENSTOCK_WEBHOOK_ALLOW_HOSTS", "127.0.0.1")
        # Tests write the records of approvals themselves, so no request comes before its record.
        environment.setattr(lookups, "LOOKUP_S", 0.05)
        serving = asyncio.create_task(
            serve(services, settings, config, until=stop, on_ready=ready.set)
        )
        waiting = asyncio.create_task(ready.wait())
        await asyncio.wait({serving, waiting}, return_when=asyncio.FIRST_COMPLETED)
        waiting.cancel()
        if not ready.is_set():
            await serving
        try:
            yield
        finally:
            stop.asked.set()
            await serving
