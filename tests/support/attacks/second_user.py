"""A second user, who does beside an attack what users do, and whose waiting is measured."""

from __future__ import annotations

import asyncio
import json
import math
import time
import uuid
from collections import defaultdict
from collections.abc import Awaitable, Callable
from contextlib import aclosing
from dataclasses import dataclass, field
from typing import Any

import httpx

from support.fakes.issuer import token
from support.fakes.receiver import SECRET, Receiver
from support.real.deployment import frames

ASK = {"approve": {"title": '"Do it?"'}}
HOOK_TOKEN = "bobs-hook-token-that-has-more-than-32-characters"
PAUSE_S = 0.03


def bearer(who: str, scope: str) -> dict[str, str]:
    return {"authorization": f"Bearer {token(sub=who, scope=scope)}"}


BOB = bearer("bob", "start read decide automate workflow")
ROOT = bearer("root", "administer read")


@dataclass
class SecondUser:
    """The user bob, and the seconds that he waited, by what he did.

    `urls` are the addresses of the services. Each answer must be a success, and each run must end
    as it does without an attack.
    """

    urls: dict[str, str]
    receiver: Receiver
    http: httpx.AsyncClient
    waits_s: dict[str, list[float]] = field(default_factory=lambda: defaultdict(list))

    async def prepare(self) -> None:
        """Make the rules and the workflow that he uses."""
        webhook = {"url": self.receiver.url("/bob"), "secrets": [SECRET]}
        action = {"webhook": webhook}
        # On a quick machine, he calls more often than the usual 10 times in a second.
        hook = {"tokens": [HOOK_TOKEN], "rate_per_s": 100}
        for rule in (
            {"id": "bob", "subjects": ["lifecycle.completed"], "action": action},
            {"id": "bobs-hook", "hook": hook, "action": action},
        ):
            await self._ask("automations", "POST", "/v1/automations", json=rule)
        body = {"dsl": "penstock/1", "name": "ask", "version": "1", "steps": {"a": ASK}}
        await self._ask("workflows", "PUT", "/v1/workflows/ask/versions/1", json=body)

    async def act(self, seconds: float) -> dict[str, list[float]]:
        """Do everything again and again, each thing at least three times; return the waits."""
        self.waits_s.clear()
        until = time.monotonic() + seconds
        doings = (self._run, self._workflow, self._read, self._call_hook)
        async with asyncio.TaskGroup() as group:
            for each in doings:
                group.create_task(self._repeat(each, until))
        return dict(self.waits_s)

    async def _repeat(self, act: Callable[[], Awaitable[None]], until: float) -> None:
        times = 0
        while times < 3 or time.monotonic() < until:
            await act()
            times += 1
            await asyncio.sleep(PAUSE_S)

    async def _run(self) -> None:
        """Start a run, read its stream to its end, and get the webhook about the end."""
        begun = time.monotonic()
        body = {"agent": "worker", "message": "hello"}
        run_id = (await self._ask("edge", "POST", "/v1/runs", "start", json=body)).json()["run_id"]
        last = await self._event(run_id, "lifecycle.completed")
        self._note("run", begun)
        begun = time.monotonic()
        key = last["run_id"].encode()
        await self.receiver.until(
            lambda: any(key in each.body for each in self.receiver.got("/bob")), 60
        )
        self.receiver.requests.clear()
        self._note("webhook", begun)

    async def _workflow(self) -> None:
        """Start a workflow, open a link to its question, decide, and read to the end."""
        begun = time.monotonic()
        path = "/v1/workflows/ask/runs"
        answer = await self._ask("workflows", "POST", path, "start of a workflow", json={})
        run_id = answer.json()["run_id"]
        asked = (await self._event(run_id, "approval.requested"))["data"]
        self._note("question", begun)
        approval = f"/v1/approvals/{asked['approval_id']}"
        await self._ask("approvals", "GET", approval, "approval")
        made = await self._ask(
            "approvals", "POST", f"{approval}/links", json={"user": "bob"}, headers=ROOT
        )
        secret = made.json()["url"].rsplit("/", 1)[1]
        await self._ask("approvals", "GET", f"/d/{secret}", "link", headers={})
        items = [{"item_id": each["item_id"], "decision": "approve"} for each in asked["items"]]
        body = {"items": items, "digest": asked["digest"]}
        begun = time.monotonic()
        await self._ask("approvals", "POST", f"{approval}/decision", "decision", json=body)
        await self._event(run_id, "lifecycle.completed")
        self._note("end after the decision", begun)

    async def _read(self) -> None:
        """Read lists, also with a new service token."""
        for service, path in (
            ("edge", "/v1/runs"),
            ("approvals", "/v1/approvals"),
            ("automations", "/v1/automations"),
            ("automations", "/v1/automations/deliveries"),
            ("workflows", "/v1/workflows"),
        ):
            await self._ask(service, "GET", path, path)
        body = {"name": f"t-{uuid.uuid4().hex[:8]}", "scopes": ["read"]}
        made = await self._ask("approvals", "POST", "/v1/service-tokens", json=body, headers=ROOT)
        machine = {"authorization": f"Bearer {made.json()['token']}"}
        await self._ask("approvals", "GET", "/v1/approvals", "service token", headers=machine)
        path = f"/v1/service-tokens/{made.json()['id']}"
        await self._ask("approvals", "DELETE", path, headers=ROOT)  # there may be 1,000 at most

    async def _call_hook(self) -> None:
        headers = {"authorization": f"Bearer {HOOK_TOKEN}"}
        path = "/v1/hooks/bobs-hook"
        await self._ask("automations", "POST", path, "hook", json={"n": 1}, headers=headers)

    async def _ask(
        self, service: str, method: str, path: str, what: str | None = None, **request: Any
    ) -> httpx.Response:
        """Send a request as bob, unless `request` has headers; note how long `what` took."""
        headers = request.pop("headers", BOB)
        begun = time.monotonic()
        answer = await self.http.request(
            method, f"{self.urls[service]}{path}", headers=headers, **request
        )
        if what is not None:
            self._note(what, begun)
        assert answer.is_success, (method, path, answer.status_code, answer.text)
        return answer

    async def _event(self, run_id: str, type_: str) -> dict[str, Any]:
        """Return the first event of this type of the run's stream."""
        url = f"{self.urls['edge']}/v1/runs/{run_id}/events"
        async with self.http.stream("GET", url, headers=BOB) as answer:
            assert answer.status_code == 200, await answer.aread()
            async with aclosing(frames(answer)) as stream:
                async for frame in stream:
                    if frame.event == type_:
                        found: dict[str, Any] = json.loads(frame.data)
                        return found
        raise AssertionError(f"the stream of {run_id} ended without {type_}")

    def _note(self, what: str, begun: float) -> None:
        self.waits_s[what].append(time.monotonic() - begun)


def p99(waits_s: list[float]) -> float:
    """Return the 99th percentile; of fewer than 100 numbers, the largest."""
    return sorted(waits_s)[math.ceil(len(waits_s) * 0.99) - 1]
