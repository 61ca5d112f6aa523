"""Serve the automations service with authentication, as `serve` does, for tests of its routes."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import orjson
import pytest
import uuid_utils

from penstock.bus import Bus, BusSettings, messages, streams, subjects
from penstock.bus.records.runs import RunRecord
from penstock.settings import AgnoAgent, AuthSettings, Config, Settings
from penstock_automations.service import AutomationsService
from penstock_normalizer.service import NormalizerService
from support.drive.automations import DrivenRun
from support.drive.secured import bearer, served
from support.drive.waiting import eventually
from support.fakes.issuer import SECRET as ISSUER
from support.fakes.receiver import SECRET, Receiver, receiver
from support.real.ports import free_port

USER = "start read raw decide automate"
CONFIG = Config(
    agents=[AgnoAgent(id="assistant", protocol="agno", url="http://127.0.0.1:9", agent="demo")]
)


def caller(user: str = "alice", *more: str) -> dict[str, str]:
    """Return the header with the token of a user who may automate, and has further scopes."""
    return bearer(user, scope=" ".join((USER, *more)))


ADMIN = caller("root", "administer")


@dataclass
class AutomationsApi:
    """The running services, a receiver, and helpers for the tests."""

    http: httpx.AsyncClient
    bus: Bus
    receiver: Receiver

    def rule(self, id: str, *subjects: str, **fields: Any) -> dict[str, Any]:
        """Return a rule as JSON; `webhook` has further webhook fields."""
        webhook = {"url": self.receiver.url(f"/{id}"), "secrets": [SECRET]}
        webhook |= fields.pop("webhook", {})
        trigger = {"subjects": list(subjects) or ["lifecycle.completed"]}
        return {"id": id, **trigger, "action": {"webhook": webhook}, **fields}

    async def make(
        self, id: str, *subjects: str, user: str = "alice", **fields: Any
    ) -> dict[str, Any]:
        """Make a rule; return the answer."""
        made = await self.ask("POST", "", caller(user), self.rule(id, *subjects, **fields))
        assert made.status_code == 201, made.text
        answer: dict[str, Any] = made.json()
        return answer

    async def ask(
        self,
        method: str,
        path: str,
        headers: dict[str, str] | None = None,
        body: Any = None,
        **query: Any,
    ) -> httpx.Response:
        """Send a request to a path below /v1/automations, by default as Alice."""
        content = orjson.dumps(body) if body is not None else None
        given = {**(caller() if headers is None else headers)}
        if content is not None:
            given["content-type"] = "application/json"
        where = f"/v1/automations{path}"
        return await self.http.request(method, where, headers=given, content=content, params=query)

    async def run(self, user_id: str = "alice") -> DrivenRun:
        """Return a run with a record and without frames."""
        run_id, now = str(uuid_utils.uuid7()), messages.now()
        record = RunRecord(
            run_id=run_id,
            agent="assistant",
            session_id=f"s-{run_id}",
            user_id=user_id,
            created_at=now,
            updated_at=now,
        )
        await self.bus.bucket("runs").put(run_id, record.dump())
        return DrivenRun(self.bus, run_id, user_id)

    async def completed(self, user_id: str = "alice") -> DrivenRun:
        """Return a run whose `lifecycle.completed` is stored."""
        run = await self.run(user_id)
        await run.open()
        await run.complete()
        subject = subjects.event("lifecycle.completed", run.run_id)

        async def written() -> bool:
            return await self.bus.tail(streams.events_for(run.run_id), subject) is not None

        await eventually(written, what="the event")
        return run


@asynccontextmanager
async def automations_api(
    nats_url: str, nats_passwords: Path | None = None, **own: Any
) -> AsyncIterator[AutomationsApi]:
    """Serve normalizer and automations in one process. `own`: settings of the service.

    With a folder of passwords, each service uses its own NATS user.
    """
    settings = Settings(
        nats_url=nats_url,
        port=free_port(),
        probe_port=free_port(),
        drain_s=5,
        nats_passwords=nats_passwords,
        # A tenant has as many rules as one user. Without the claim, there is no tenant.
        auth=AuthSettings(jwt_secret=ISSUER, leeway_s=0, tenant_claim="org", tenant_limits=1),
    )
    given = {"webhook_allow_hosts": "127.0.0.1", "retry_delays_s": [1, 1], **own}
    async with AsyncExitStack() as stack:
        environment = stack.enter_context(pytest.MonkeyPatch.context())
        for name, value in given.items():
            text = value if isinstance(value, str) else orjson.dumps(value).decode()
            environment.setenv(f"PENSTOCK_{name.upper()}", text)
        made = await stack.enter_async_context(receiver())
        bus = await Bus.connect(BusSettings(url=nats_url, name="test"))
        stack.push_async_callback(bus.close)
        for entry in await bus.bucket("rules").entries():
            await bus.bucket("rules").delete(entry.key)
        services = [NormalizerService, AutomationsService]
        await stack.enter_async_context(served(settings, CONFIG, services))
        url = f"http://127.0.0.1:{settings.port}"
        http = await stack.enter_async_context(httpx.AsyncClient(base_url=url, timeout=30))
        yield AutomationsApi(http, bus, made)
        assert made.bad_signatures == []
