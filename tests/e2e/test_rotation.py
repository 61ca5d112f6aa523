"""Secrets are rotated while runs are started and followed, and no request is refused meanwhile."""

from __future__ import annotations

import asyncio
import json
import uuid
from collections.abc import AsyncIterator, Callable
from contextlib import aclosing, asynccontextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from http import HTTPStatus
from pathlib import Path
from typing import Any

import httpx
import pytest
import pytest_asyncio
from standardwebhooks import Webhook

from support.drive.short import in_short
from support.drive.waiting import eventually
from support.fakes.issuer import JwksServer, Key
from support.fakes.receiver import SECRET, Receiver, receiver
from support.real.deployment import Deployment, deployment, frames
from support.real.nats import NatsServer, write_passwords
from support.real.upstreams import Upstream

pytestmark = [pytest.mark.real, pytest.mark.asyncio(loop_scope="module")]

ONE_OF_EACH = dict.fromkeys(("normalizer", "approvals", "connector", "edge", "automations"), 1)
SCOPES = "start read decide automate administer"
NEW_SECRET = "whsec_" + "bmV3LXNlY3JldC1vZi10aGUtdGVzdHMtMzItYnl0ZXM="
SIDE_BY_SIDE = 3
PAUSE_S = 0.2  # between two runs of a client; some steps wait for ten seconds
RECONNECTS = "penstock_nats_reconnects_total"
MORE = 4  # runs that must end between two steps of a rotation

Headers = dict[str, str]


@dataclass
class Scene:
    penstock: Deployment
    nats: NatsServer
    folder: Path
    issuer: JwksServer
    receiver: Receiver
    key: Key

    def admin(self) -> Headers:
        return bearer(self.key.token(scope=SCOPES))

    @property
    def automations(self) -> str:
        return f"{self.penstock.of('automations')[0].url}/v1/automations"

    async def ask(self, method: str, url: str, **request: Any) -> dict[str, Any]:
        answer = await self.penstock.http.request(method, url, headers=self.admin(), **request)
        assert answer.is_success, answer.text
        found: dict[str, Any] = answer.json() if answer.content else {}
        return found


async def ended(task: asyncio.Task[None]) -> None:
    """Cancel the task, and wait until its connection is closed."""
    task.cancel()
    await asyncio.wait([task])


def bearer(token: str) -> Headers:
    return {"authorization": f"Bearer {token}"}


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def scene(
    nats_server: NatsServer, tmp_path_factory: pytest.TempPathFactory, agno_server: Upstream
) -> AsyncIterator[Scene]:
    agent = {"id": "assistant", "protocol": "agno", "url": agno_server.url, "agent": "demo-agent"}
    folder: Path = tmp_path_factory.mktemp("rotation")
    issuer = JwksServer()
    await issuer.start()
    issuer.keys = [Key("first")]
    try:
        async with (
            receiver() as received,
            deployment(
                nats_server.url,
                folder,
                [agent],
                ONE_OF_EACH,
                auth_jwks_url=issuer.url,
                auth_csrf_secret="a-csrf-secret-that-all-services-share",
                nats_passwords=write_passwords(folder / "passwords"),
                webhook_allow_hosts="127.0.0.1",
            ) as penstock,
        ):
            yield Scene(penstock, nats_server, folder, issuer, received, issuer.keys[0])
    finally:
        await issuer.stop()


@dataclass
class Traffic:
    """Clients that start runs and follow them to their end, with the present credential."""

    scene: Scene
    credential: Callable[[], Headers]
    retries: bool = False
    done: list[str] = field(default_factory=list)
    wrong: list[str] = field(default_factory=list)
    is_over: bool = False

    async def client(self) -> None:
        while not self.is_over:
            try:
                await self._run()
                await asyncio.sleep(PAUSE_S)
            except (httpx.HTTPError, AssertionError, TimeoutError) as error:
                self.wrong.append(repr(error))
                return

    async def _run(self) -> None:
        runs = f"{self.scene.penstock.edge()}/v1/runs"
        run_id = await self._start(runs)
        while (followed := await self._follow(f"{runs}/{run_id}/events")) is None:
            await asyncio.sleep(0.1)
        numbers, last = followed
        assert last == "lifecycle.completed", last
        assert numbers == list(range(1, len(numbers) + 1))
        self.done.append(run_id)

    async def _start(self, runs: str) -> str:
        body = {"agent": "assistant", "message": "text please"}
        headers = {**self.credential(), "idempotency-key": str(uuid.uuid4())}
        while True:
            started = await self.scene.penstock.http.post(runs, json=body, headers=headers)
            if not self._is_repeated(started):
                break
            await asyncio.sleep(0.1)
        # 200: an attempt that got a 503 had started the run.
        assert started.status_code == 202 or (self.retries and started.status_code == 200), started
        return str(started.json()["run_id"])

    async def _follow(self, url: str) -> tuple[list[int], str | None] | None:
        """Return the numbers of the events and the last type; None if the request is repeated."""
        numbers, last = [], None
        stream = self.scene.penstock.http.stream("GET", url, headers=self.credential())
        async with stream as answer:
            if self._is_repeated(answer):
                return None
            assert answer.status_code == 200, await answer.aread()
            async for frame in frames(answer):  # to its end
                numbers.append(json.loads(frame.data)["sequence"])
                last = frame.event
        return numbers, last

    def _is_repeated(self, answer: httpx.Response) -> bool:
        return self.retries and answer.status_code == HTTPStatus.SERVICE_UNAVAILABLE

    async def more(self) -> None:
        """Wait until further runs, which began after this call, have ended."""
        wanted = len(self.done) + SIDE_BY_SIDE + MORE

        async def are_done() -> bool:
            assert not self.wrong, self.wrong
            return len(self.done) >= wanted

        await eventually(are_done, 60, "more runs have ended")


@asynccontextmanager
async def traffic(
    scene: Scene, credential: Callable[[], Headers], *, retries: bool = False
) -> AsyncIterator[Traffic]:
    """Run the clients; afterwards, no request may have been refused.

    With `retries`, the clients repeat requests that got a 503.
    """
    made = Traffic(scene, credential, retries)
    tasks = [asyncio.create_task(made.client()) for _ in range(SIDE_BY_SIDE)]
    try:
        await made.more()
        yield made
        await made.more()
    finally:
        made.is_over = True  # a client that is cancelled could leave its connection half closed
        async with asyncio.timeout(100):
            await asyncio.gather(*tasks)
    assert not made.wrong


@pytest.mark.chaos
@pytest.mark.timeout(180)
async def test_the_keys_of_the_issuer(scene: Scene) -> None:
    old, new = scene.key, Key("second")
    used = old.token(scope=SCOPES)
    async with traffic(scene, lambda: bearer(used)) as made:
        scene.issuer.keys = [old, new]
        fresh = new.token(scope=SCOPES)
        urls = [
            f"{scene.penstock.edge()}/v1/runs",
            f"{scene.penstock.approvals}/v1/approvals",
            scene.automations,
        ]

        # A service reads the keys again for an unknown key id, at most every 10 s. So the issuer
        # waits that long before it signs with the new key.
        async def is_known() -> bool:
            asked = [scene.penstock.http.get(url, headers=bearer(fresh)) for url in urls]
            return all(answer.is_success for answer in await asyncio.gather(*asked))

        await eventually(is_known, 40, "every service has read the new key")
        used = fresh
        await made.more()
        scene.issuer.keys = [new]
        scene.key = new


@pytest.mark.chaos
@pytest.mark.timeout(180)
async def test_service_tokens(scene: Scene) -> None:
    url = f"{scene.penstock.approvals}/v1/service-tokens"
    rights = {"name": "machine", "scopes": ["start", "read"]}
    first, second = [await scene.ask("POST", url, json=rights) for _ in range(2)]
    used = first
    async with traffic(scene, lambda: bearer(used["token"])) as made:
        used = second
        await made.more()
        await scene.ask("DELETE", f"{url}/{first['id']}")

        async def is_refused() -> bool:
            runs = f"{scene.penstock.edge()}/v1/runs"
            answer = await scene.penstock.http.get(runs, headers=bearer(first["token"]))
            return answer.status_code == 401

        await eventually(is_refused, 40, "the first token is refused")


@pytest.mark.chaos
@pytest.mark.timeout(180)
async def test_stream_tokens(scene: Scene) -> None:
    url = f"{scene.penstock.edge()}/v1/tokens"
    first, second = [
        await scene.ask("POST", url, json={"subjects": ["lifecycle.*"]}) for _ in range(2)
    ]
    seen: list[str] = []
    last_id: str | None = None
    events = f"{scene.penstock.edge()}/v1/events"
    http = scene.penstock.http

    async def follow(token: str, opened: asyncio.Event) -> None:
        nonlocal last_id
        headers = {"last-event-id": last_id} if last_id else {}
        query = {"token": token, "subjects": "lifecycle.*"}
        async with http.stream("GET", events, params=query, headers=headers) as answer:
            assert answer.status_code == 200, await answer.aread()
            opened.set()
            async with aclosing(frames(answer)) as read:
                async for frame in read:
                    if frame.event == "lifecycle.completed":
                        seen.append(json.loads(frame.data)["run_id"])
                    last_id = frame.id or last_id

    async def following(token: dict[str, Any]) -> asyncio.Task[None]:
        opened = asyncio.Event()
        task = asyncio.create_task(follow(token["token"], opened))
        async with asyncio.timeout(20):
            await opened.wait()
        return task

    task = await following(first)
    async with traffic(scene, scene.admin) as made:
        await ended(task)
        await made.more()  # the client is away for a while
        task = await following(second)
        await scene.ask("DELETE", f"{url}/{first['id']}")

        async def is_refused() -> bool:
            query = {"token": first["token"]}
            async with http.stream("GET", events, params=query) as answer:
                return answer.status_code == 401

        await eventually(is_refused, 40, "the first token is refused")
        await made.more()
    done = set(made.done)

    async def has_all() -> bool:
        return done <= set(seen)

    await eventually(has_all, 30, "the client has seen each run's end")
    await ended(task)
    assert len(seen) == len(set(seen))


@pytest.mark.chaos
@pytest.mark.timeout(180)
async def test_webhook_secrets(scene: Scene) -> None:
    got = scene.receiver
    webhook = {"url": got.url("/ended"), "secrets": [SECRET]}
    rule = {"id": "ended", "subjects": ["lifecycle.completed"], "action": {"webhook": webhook}}
    await scene.ask("POST", scene.automations, json=rule)
    secrets = f"{scene.automations}/ended/secrets"
    async with traffic(scene, scene.admin) as made:
        await got.count(1, "/ended")
        await scene.ask("POST", secrets, json={"secret": NEW_SECRET})
        await made.more()
        got.secret = NEW_SECRET  # the receiver knows one secret only, until here the former one
        await made.more()
        await scene.ask("DELETE", f"{secrets}/previous")
        await made.more()
    done = set(made.done)

    def has_all() -> bool:
        return done <= {each.json["data"]["run_id"] for each in got.got("/ended")}

    await got.until(has_all, 40)
    await scene.ask("DELETE", f"{scene.automations}/ended")
    assert not got.bad_signatures


@pytest.mark.chaos
@pytest.mark.timeout(180)
async def test_hook_secrets(scene: Scene) -> None:
    webhook = {"url": scene.receiver.url("/called"), "secrets": [scene.receiver.secret]}
    rule = {"id": "called", "hook": {"rate_per_s": 100}, "action": {"webhook": webhook}}
    made = await scene.ask("POST", scene.automations, json=rule)
    used = made["new_secrets"]["hook"]
    url = scene.automations.replace("/automations", "/hooks/called")
    statuses: list[int] = []

    is_over = False

    async def calls() -> None:
        while not is_over:
            body, id, at = '{"order": 7}', f"msg_{len(statuses)}", datetime.now(UTC)
            headers = {
                "webhook-id": id,
                "webhook-timestamp": str(int(at.timestamp())),
                "webhook-signature": Webhook(used).sign(id, at, body),
                "content-type": "application/json",
            }
            answer = await scene.penstock.http.post(url, content=body, headers=headers)
            statuses.append(answer.status_code)
            await asyncio.sleep(0.02)

    async def more() -> None:
        wanted = len(statuses) + 10

        async def are_sent() -> bool:
            return len(statuses) >= wanted

        await eventually(are_sent, 40, "more calls")

    calling = asyncio.create_task(calls())
    try:
        await more()
        rotated = await scene.ask(
            "POST", f"{scene.automations}/called/secrets", json={"of": "hook"}
        )
        await more()
        used = rotated["new_secrets"]["hook"]
        await more()
        await scene.ask("DELETE", f"{scene.automations}/called/secrets/previous?of=hook")
        await more()
    finally:
        is_over = True
        await calling
    assert set(statuses) == {202}
    await scene.receiver.count(len(statuses) - 1, "/called", 40)


@pytest.mark.timeout(180)
@pytest.mark.parametrize("first", in_short(["file", "server"], ["file"]))
async def test_passwords_of_nats_users(scene: Scene, first: str) -> None:
    """The server ends the connections with the former passwords; services connect with the new."""
    http, passwords = scene.penstock.http, scene.folder / "passwords"

    async def reconnects() -> list[float]:
        asked = [http.get(f"{each.probes}/metrics") for each in scene.penstock.instances]
        texts = [answer.text for answer in await asyncio.gather(*asked)]
        return [
            float(text.split("\npenstock_nats_reconnects_total ")[1].split()[0]) for text in texts
        ]

    async def all_are_away() -> bool:
        asked = [http.get(f"{each.probes}/readyz") for each in scene.penstock.instances]
        return not any(answer.is_success for answer in await asyncio.gather(*asked))

    before = await reconnects()

    async def have_reconnected() -> bool:
        pairs = zip(before, await reconnects(), strict=True)
        return all(now > then for then, now in pairs)

    async with traffic(scene, scene.admin, retries=True) as made:
        if first == "file":
            write_passwords(passwords, f"-{first}")
        scene.nats.change_passwords(f"-{first}")
        if first == "server":
            await eventually(all_are_away, 60, "every service is refused")
            write_passwords(passwords, f"-{first}")
        await eventually(have_reconnected, 60, "every service has connected anew")
        await made.more()
