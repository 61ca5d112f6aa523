"""A message while a run of its session is open queues, is refused, or interrupts the run.

Waiting starts are listed, moved and withdrawn. The edges, connectors and NATS are real, the agent
server is a fake.
"""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import pytest
from typer.testing import CliRunner, Result

from penstock.settings import Config
from penstock_approvals.service import ApprovalsService
from penstock_cli.main import app
from penstock_connector.service import ConnectorService
from penstock_edge.service import EdgeService
from penstock_normalizer.service import NormalizerService
from support.drive.agui_requests import run_input, user
from support.drive.pipeline import PIPELINE, Event, Pipeline, Services, pipeline
from support.drive.steps import Step
from support.drive.waiting import eventually
from support.fakes.misbehaving import Answer, Misbehaving, agents, misbehaving
from support.fakes.raw import agno, agno_pause
from support.real.connectors import FAST, Hurt, connector_process
from support.real.nats import NatsServer

ALL: Services = (*PIPELINE, EdgeService)
WITHOUT_CONNECTOR: Services = (NormalizerService, ApprovalsService, EdgeService)


class Held:
    """An agent server that pauses at the message `ask`, and answers others when the test allows."""

    def __init__(self) -> None:
        self.go = asyncio.Event()
        self.messages: list[str] = []

    async def __call__(self, answer: Answer) -> None:
        message = answer.request.form.get("message")
        if message is None:  # a cancel
            await answer.whole(b"{}", content_type="application/json")
            return
        self.messages.append(message)
        await answer.head()
        if message == "ask":
            await answer.send(agno_pause())
        else:
            await answer.send(agno("RunStarted"))
            await self.go.wait()
            await answer.send(agno("RunCompleted", content="x"))
        await answer.end()


@pytest.fixture
async def upstream() -> AsyncIterator[Misbehaving]:
    async with misbehaving() as server:
        yield server


@pytest.fixture
def held(upstream: Misbehaving) -> Held:
    script = Held()
    upstream.script(script)
    return script


@dataclass
class Site:
    """The services, and a session of Ada, or of another user."""

    penstock: Pipeline
    user: str = "ada"
    session: str = field(default_factory=lambda: uuid.uuid4().hex)

    @property
    def http(self) -> httpx.AsyncClient:
        return self.penstock.http

    async def post(self, message: str, when_busy: str = "queue", **body: Any) -> httpx.Response:
        asked = {"agent": "agno", "session_id": self.session, "message": message}
        given = {**asked, "when_busy": when_busy, "user_id": self.user, **body}
        return await self.http.post("/v1/runs", json=given)

    async def start(self, message: str, *how: str, **body: Any) -> str:
        answer = await self.post(message, *how, **body)
        assert answer.status_code == 202, answer.text
        return str(answer.json()["run_id"])

    async def queue(self, user: str | None = None) -> dict[str, list[str]]:
        path = f"/v1/sessions/{self.session}/queue"
        answer = await self.http.get(path, params={"user_id": user or self.user})
        assert answer.status_code == 200, answer.text
        return {name: [run["message"] for run in runs] for name, runs in answer.json().items()}

    async def queued(self, running: str, *waiting: str) -> None:
        """Wait until one run runs, and the others wait for their turn in this order."""

        async def probe() -> bool:
            return await self.queue() == {"running": [running], "queue": [*waiting]}

        await eventually(probe, what=f"{running} to run, {waiting} to wait")

    async def end(self, run_id: str) -> Event:
        """Return the run's terminal event."""
        return (await self.penstock.ended(run_id))[-1]

    async def ask(self) -> str:
        """Start a run that waits for a decision."""
        run_id = await self.start("ask")
        await self.penstock.events_until(run_id, "lifecycle.paused")
        await self.penstock.record(run_id, "paused")
        return run_id


@asynccontextmanager
async def site(
    nats: NatsServer, config: Config, services: Services = ALL, **settings: Any
) -> AsyncIterator[Site]:
    async with pipeline(nats.url, config, services, cancel_grace_s=0.1, **settings) as penstock:
        yield Site(penstock)


async def test_a_start_is_refused_while_a_run_of_its_session_is_open_and_no_other(
    nats_server: NatsServer, upstream: Misbehaving, held: Held
) -> None:
    async with site(nats_server, agents(upstream)) as ada:
        first = await ada.start("first", "refuse")  # the session is idle
        refused = await ada.post("second", "refuse", idempotency_key="k")
        assert refused.status_code == 409
        assert first in refused.json()["detail"]
        for other in ({"session_id": "another"}, {"user_id": "bob"}, {"agent": "adk"}):
            await ada.start("other", "refuse", **other)
        await upstream.called(1)
        held.go.set()
        await ada.end(first)
        # A refused start leaves nothing, so the same request is accepted now.
        again = await ada.start("second", "refuse", idempotency_key="k")
        await ada.end(again)
        # A run that waits for a decision is open, too.
        asks = await ada.ask()
        assert (await ada.post("third", "refuse")).status_code == 409
        listed = (await ada.http.get("/v1/runs", params={"session_id": ada.session})).json()["runs"]
        assert {run["run_id"] for run in listed if run["user_id"] == "ada"} >= {first, again, asks}
        assert "third" not in {run["message"] for run in listed}


async def test_of_many_starts_at_the_same_time_at_two_edges_one_is_accepted(
    fresh_nats: NatsServer, upstream: Misbehaving, held: Held
) -> None:
    config = agents(upstream)
    async with (
        site(fresh_nats, config) as one,
        site(fresh_nats, config, (EdgeService,)) as two,
    ):
        two.session = one.session
        edges = [one, two]
        answers = await asyncio.gather(
            *(edges[n % 2].post(str(n), "refuse") for n in range(20)),
            # Another user's starts are not refused.
            *(edges[n % 2].post(str(n), "refuse", user_id=f"u{n}") for n in range(4)),
        )
        statuses = [answer.status_code for answer in answers]
        assert sorted(statuses[:20]) == [202] + [409] * 19
        assert statuses[20:] == [202] * 4
        held.go.set()


async def test_an_interrupting_start_ends_what_is_open_and_begins_with_all_messages(
    nats_server: NatsServer, upstream: Misbehaving, held: Held
) -> None:
    async with site(nats_server, agents(upstream)) as ada:
        asks = await ada.ask()
        first = await ada.start("first")
        await upstream.called(2)
        second = await ada.start("second")
        other = await ada.start("other", user_id="bob")
        await ada.queued("first", "second")
        key = {"idempotency_key": "once"}
        last = await ada.start("last", "interrupt", **key)
        for run_id in (asks, first, second):
            end = await ada.end(run_id)
            assert end.type == "lifecycle.cancelled"
            assert (end.data["reason"], end.data["by"]) == ("superseded", "ada")
        repeated = await ada.post("last", "interrupt", **key)
        assert repeated.json()["run_id"] == last
        await ada.penstock.events_until(last, "lifecycle.started")
        held.go.set()
        for run_id in (last, other):
            end = await ada.end(run_id)
            assert end.type == "lifecycle.completed"
    assert [each for each in held.messages if each != "other"] == [
        *("ask", "first"),
        "ask\n\nfirst\n\nsecond\n\nlast",
    ]


async def test_an_interrupting_start_goes_on_when_its_connector_dies_after_the_cancels(
    fresh_nats: NatsServer, upstream: Misbehaving, held: Held, tmp_path: Path
) -> None:
    config = agents(upstream)
    async with site(fresh_nats, config, WITHOUT_CONNECTOR) as ada:
        dies = Hurt(Step.CLAIM, times=2)  # the first claim is that of the first run
        async with connector_process(
            ada.penstock.bus, config, tmp_path, dies, cancel_grace_s=0.1, ack_wait_s=2
        ) as victim:
            first = await ada.start("first")
            await upstream.called(1)
            last = await ada.start("last", "interrupt")
            await victim.died()
        end = await ada.end(first)
        assert end.type == "lifecycle.cancelled"
        assert held.messages == ["first"]
        async with pipeline(fresh_nats.url, config, (ConnectorService,), ack_wait_s=2, **FAST):
            held.go.set()
            end = await ada.end(last)
            assert end.type == "lifecycle.completed"
    assert held.messages == ["first", "first\n\nlast"]


async def test_no_agent_server_takes_a_message_in_the_middle_of_a_run(
    nats_server: NatsServer, upstream: Misbehaving, held: Held
) -> None:
    async with site(nats_server, agents(upstream)) as ada:
        await ada.start("first", "steer")  # nothing is open, so it is a start
        refused = await ada.post("second", "steer")
        assert refused.status_code == 409
        assert "Agno takes a message only with a new run" in refused.json()["detail"]
        held.go.set()


TEXT = {"parts": [{"type": "text", "text": "second"}]}
A2A = {"messageId": "m1", "role": "ROLE_USER", "parts": [{"text": "second"}]}
ADK = {"appName": "agno", "userId": "anonymous", "newMessage": {"role": "user", **TEXT}}
ADK["newMessage"] = {"role": "user", "parts": [{"text": "second"}]}
# The body of a start in a session, for each path, and whether the word is in it or in the query.
FACES: dict[str, tuple[Callable[[str], dict[str, Any]], bool]] = {
    "/v1/runs": (lambda at: {"agent": "agno", "message": "second", "session_id": at}, True),
    "/agents/agno/runs": (lambda at: {"message": "second", "session_id": at}, False),
    "/agui/agno": (lambda at: run_input(at, user("second")), False),
    "/run_sse": (lambda at: {**ADK, "sessionId": at}, False),
    "/run": (lambda at: {**ADK, "sessionId": at}, False),
    "/vercel/agno": (lambda at: {"id": at, "messages": [{"role": "user", **TEXT}]}, True),
    "/openai/v1/responses": (
        lambda at: {"model": "agno", "input": "second", "conversation": at},
        False,
    ),
    "/openai/v1/chat/completions": (
        lambda at: {
            **{"model": "agno", "messages": [{"role": "user", "content": "second"}]},
            "metadata": {"session_id": at},
        },
        False,
    ),
    "/a2a/agno/message:send": (lambda at: {"message": {**A2A, "contextId": at}}, False),
    "/a2a/agno/message:stream": (lambda at: {"message": {**A2A, "contextId": at}}, False),
    "/a2a/agno": (
        lambda at: {
            **{"jsonrpc": "2.0", "id": 1, "method": "SendMessage"},
            "params": {"message": {**A2A, "contextId": at}},
        },
        False,
    ),
}


async def test_each_face_takes_the_word_where_its_clients_can_say_it(
    nats_server: NatsServer, upstream: Misbehaving, held: Held
) -> None:
    async with site(nats_server, agents(upstream), enable_adk_canonical_stream=True) as ada:
        ada.user = "anonymous"
        first = await ada.start("first")

        async def ask(path: str, word: str) -> httpx.Response:
            make, is_in_body = FACES[path]
            body = make(ada.session) | ({"when_busy": word} if is_in_body else {})
            url = path if is_in_body else f"{path}?when_busy={word}"
            return await ada.http.post(url, json=body, headers={"a2a-version": "1.0"})

        for path in FACES:
            refused = await ask(path, "refuse")
            # JSON-RPC has its errors in answers with the status 200.
            assert refused.status_code == (200 if path == "/a2a/agno" else 409), refused.text
            assert first in refused.text, path
            wrong = await ask(path, "x")
            assert wrong.status_code in (200, 400, 422), path
            assert "when_busy" in wrong.text, path
        held.go.set()
    assert held.messages == ["first"]


async def test_each_operation_that_takes_the_word_is_in_the_table() -> None:
    takes = {
        operation.path
        for operation in EdgeService.operations
        if any(each.name == "when_busy" for each in operation.parameters)
        or "when_busy" in getattr(operation.body, "model_fields", {})
    }
    alike = ("/teams", "/workflows")  # Agno's other kinds of agents
    named = {
        path.replace("/agents/agno", "/agents/{id}").replace("agno", "{agent}") for path in FACES
    }
    paths = {path.rstrip("/") for path in takes if not path.startswith(alike)}
    assert paths == named


async def test_waiting_starts_are_listed_moved_and_withdrawn_by_their_user_alone(
    nats_server: NatsServer, upstream: Misbehaving, held: Held
) -> None:
    async with site(nats_server, agents(upstream)) as ada:
        first = await ada.start("first")
        await upstream.called(1)
        names = ("a", "b", "c", "d")
        runs = {name: await ada.start(name) for name in names}
        await ada.queued("first", *names)
        assert await ada.queue("bob") == {"queue": [], "running": []}

        def at(
            name: str, user: str = "ada", session: str = ada.session
        ) -> tuple[str, dict[str, str]]:
            path = f"/v1/sessions/{session}/queue/{runs.get(name, name)}"
            return path, {"user_id": user}

        async def move(name: str, before: str | None, *of: str) -> int:
            path, params = at(name, *of)
            body = {"before": runs.get(before, before) if before is not None else None}
            return (await ada.http.post(f"{path}/move", params=params, json=body)).status_code

        async def withdraw(name: str, *of: str) -> int:
            path, params = at(name, *of)
            return (await ada.http.delete(path, params=params)).status_code

        assert await move("d", "b") == 200
        assert await move("a", None) == 200
        await ada.queued("first", "d", "b", "c", "a")
        assert await withdraw("b") == 200
        await ada.queued("first", "d", "c", "a")
        # What has begun, has ended, or is in another session or of another user, stays.
        assert await move(first, None) == 409
        assert await move("d", first) == 409
        assert await withdraw(first) == 409
        assert await withdraw("b") == 409
        assert await move("d", "a", "bob") == 404
        assert await withdraw("d", "bob") == 404
        assert await withdraw("d", "ada", "another") == 404
        await ada.queued("first", "d", "c", "a")
        # A later start goes to the end, wherever the earlier ones were moved.
        runs["e"] = await ada.start("e")
        await ada.queued("first", "d", "c", "a", "e")
        held.go.set()
        for name in ("a", "c", "d", "e"):
            await ada.end(runs[name])
        assert (await ada.end(runs["b"])).type == "lifecycle.cancelled"
    assert held.messages == ["first", "d", "c", "a", "e"]


async def test_a_run_of_the_terminal_is_refused_or_interrupts(
    nats_server: NatsServer, upstream: Misbehaving, held: Held
) -> None:
    async with site(nats_server, agents(upstream)) as penstock:
        penstock.user = "anonymous"
        first = await penstock.start("first")
        await upstream.called(1)

        async def run(message: str, when_busy: str) -> Result:
            asked = ["run", message, "--agent", "agno", "--session", penstock.session]
            url = str(penstock.http.base_url)
            given = [*asked, "--when-busy", when_busy, "--url", url]
            return await asyncio.to_thread(CliRunner().invoke, app, given)

        refused = await run("second", "refuse")
        assert refused.exit_code != 0
        assert first in refused.output
        wrong = await run("second", "never")
        assert wrong.exit_code != 0
        assert "when_busy" in wrong.output
        third = asyncio.create_task(run("third", "interrupt"))
        assert (await penstock.end(first)).type == "lifecycle.cancelled"
        held.go.set()
        ended = await third
        assert (ended.exit_code, "completed" in ended.output) == (0, True), ended.output
    assert held.messages == ["first", "first\n\nthird"]


async def test_the_terminal_lists_moves_and_withdraws_what_waits(
    nats_server: NatsServer, upstream: Misbehaving, held: Held
) -> None:
    async with site(nats_server, agents(upstream)) as penstock:
        penstock.user = "anonymous"
        await penstock.start("first")
        await upstream.called(1)
        runs = {name: await penstock.start(name) for name in ("a", "b", "c")}
        await penstock.queued("first", *runs)

        async def say(command: str, *arguments: str) -> str:
            given = ["queue", command, penstock.session, *arguments]
            url = str(penstock.http.base_url)
            done = await asyncio.to_thread(CliRunner().invoke, app, [*given, "--url", url])
            assert done.exit_code == 0, done.output
            return done.stdout

        await say("move", runs["c"], "--before", runs["a"])
        await say("withdraw", runs["b"])
        listed = (await say("list")).splitlines()
        assert [line.split()[0] for line in listed] == ["place", "runs", "1", "2"]
        assert [name in line for name, line in zip("ca", listed[2:], strict=True)] == [True, True]
        assert runs["c"] in listed[2]
        held.go.set()
        await penstock.end(runs["a"])
    assert held.messages == ["first", "c", "a"]
