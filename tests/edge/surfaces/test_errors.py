"""On every surface, an error that clients read has no credential and no internal address."""

from __future__ import annotations

import json
import logging
from collections.abc import AsyncIterator
from typing import Any

import httpx
import orjson
import pytest

from penstock import sse
from penstock.settings import Config
from penstock_connector.service import ConnectorService
from penstock_edge.service import EdgeService
from penstock_edge.views.dialects import DIALECTS, RAW_DIALECT
from penstock_normalizer.service import NormalizerService
from support.drive.pipeline import Pipeline, pipeline
from support.drive.secured import bearer, secured
from support.fakes.misbehaving import Answer, Misbehaving, misbehaving, plays
from support.fakes.raw import agno
from support.real.nats import NatsServer

SERVICES = [ConnectorService, NormalizerService, EdgeService]
OURS = "our-own-Credential-9f3"  # the credential that the connector sends to the agent server
PASSWORD, TOKEN, HOST = "hunter2-kept", "s3cret-bearer-0451", "db.prod.internal"
WORDS = (
    f"cannot store: postgres://app:{PASSWORD}@{HOST}:5432/runs refused; "
    f"sent Authorization: Bearer {TOKEN}"
)
PRIVATE = (PASSWORD, TOKEN, HOST, OURS, "127.0.0.1")
READ = [dialect for dialect in DIALECTS if dialect != RAW_DIALECT]
ADK_RUN = {
    "appName": "app",
    "userId": "anonymous",
    "sessionId": "s-1",
    "newMessage": {"role": "user", "parts": [{"text": "hello"}]},
}
AGUI_RUN = {
    "threadId": "t-1",
    "runId": "r-1",
    "messages": [{"id": "m1", "role": "user", "content": "hello"}],
    "tools": [],
    "context": [],
    "state": {},
    "forwardedProps": {},
}


@pytest.fixture
async def upstream() -> AsyncIterator[Misbehaving]:
    async with misbehaving() as server:
        yield server


def config(url: str) -> Config:
    headers = {"authorization": f"Bearer {OURS}"}
    return Config.model_validate(
        {
            "agents": [
                {"id": "agno", "protocol": "agno", "url": url, "headers": headers},
                {
                    "id": "flow",
                    "protocol": "agno",
                    "kind": "workflow",
                    "url": url,
                    "headers": headers,
                },
                {"id": "adk", "protocol": "adk", "agent": "app", "url": url, "headers": headers},
                {"id": "agui", "protocol": "agui", "url": f"{url}/runs", "headers": headers},
            ]
        }
    )


async def refuses(answer: Answer) -> None:
    """Answer with 500 and a text that contains WORDS and the connector's credential."""
    told = {"detail": f"{WORDS}; the token {OURS} is not known to http://127.0.0.1:1/x"}
    await answer.whole(json.dumps(told).encode(), 500)


SAID = {
    "agno": agno("RunStarted") + agno("RunError", content=WORDS, error_type="Broken"),
    "flow": b"".join(
        [
            agno("WorkflowStarted", agent_id=None, workflow_id="flow"),
            agno("StepStarted", agent_id=None, workflow_id="flow", step_id="s", step_name="s"),
            agno(
                "StepError",
                agent_id=None,
                workflow_id="flow",
                step_id="s",
                step_name="s",
                error=WORDS,
            ),
            agno("WorkflowError", agent_id=None, workflow_id="flow", error=WORDS),
        ]
    ),
    "adk": sse.encode(json.dumps({"error": WORDS}).encode()),
    "agui": b"".join(
        sse.encode(json.dumps(event).encode())
        for event in (
            {"type": "RUN_STARTED", "threadId": "t", "runId": "r"},
            {"type": "RUN_ERROR", "message": WORDS, "code": "broken"},
        )
    ),
}


def check_clean(text: str) -> None:
    """Check that the text has nothing private and that something was redacted."""
    found = [secret for secret in PRIVATE if secret in text]
    assert not found, text
    assert "[redacted]" in text or "[address]" in text, text


async def failed(penstock: Pipeline, agent: str) -> str:
    """Start a run of the agent, which must fail; return its id."""
    run_id = await penstock.start_run(agent, "hello")
    *_, last = await penstock.ended(run_id)
    assert last.type == "lifecycle.failed"
    check_clean(json.dumps(last.body))
    return run_id


async def check_every_dialect(http: httpx.AsyncClient, run_id: str) -> None:
    """Check that a client of the run reads nothing private in any dialect."""
    for dialect in READ:
        answer = await http.get(f"/v1/runs/{run_id}/events", params={"dialect": dialect})
        assert answer.status_code == 200, answer.text
        check_clean(answer.text)
    listed = await http.get("/v1/runs")
    shown = await http.get(f"/v1/runs/{run_id}")
    for each in (listed, shown):
        check_clean(each.text)
        assert "unredacted" not in each.text


def assert_shown_at_debug_only(caplog: pytest.LogCaptureFixture) -> None:
    levels = {each.levelno for each in caplog.records if PASSWORD in each.getMessage()}
    assert levels == {logging.DEBUG}


@pytest.mark.parametrize("agent", SAID)
async def test_what_an_upstream_says_of_its_failure(
    nats_server: NatsServer, upstream: Misbehaving, agent: str, caplog: pytest.LogCaptureFixture
) -> None:
    upstream.script(plays(SAID[agent]))
    caplog.set_level(logging.DEBUG, logger="penstock_normalizer")
    async with pipeline(nats_server.url, config(upstream.url), SERVICES) as penstock:
        run_id = await failed(penstock, agent)
        await check_every_dialect(penstock.http, run_id)
        record = await penstock.record(run_id, "failed")
    assert record.unredacted is not None
    assert PASSWORD in record.unredacted["error"]
    assert_shown_at_debug_only(caplog)


@pytest.mark.parametrize("agent", SAID)
async def test_what_an_upstream_answers_to_a_request(
    nats_server: NatsServer, upstream: Misbehaving, agent: str, caplog: pytest.LogCaptureFixture
) -> None:
    upstream.script(refuses)
    caplog.set_level(logging.DEBUG, logger="penstock_normalizer")
    async with pipeline(nats_server.url, config(upstream.url), SERVICES) as penstock:
        run_id = await failed(penstock, agent)
        await check_every_dialect(penstock.http, run_id)
        record = await penstock.record(run_id, "failed")
        frames = await penstock.raw(run_id)
    assert record.unredacted is not None
    assert PASSWORD in record.unredacted["error"]
    assert_shown_at_debug_only(caplog)
    # The connector's own credential appears nowhere.
    assert not any(OURS.encode() in frame.payload for frame in frames)
    assert OURS not in str(record.unredacted)


@pytest.mark.parametrize("agent", SAID)
async def test_the_error_text_for_an_unreachable_server(
    nats_server: NatsServer, agent: str
) -> None:
    async with pipeline(nats_server.url, config("http://127.0.0.1:1"), SERVICES) as penstock:
        run_id = await failed(penstock, agent)
        await check_every_dialect(penstock.http, run_id)
        record = await penstock.record(run_id, "failed")
    assert record.unredacted is not None
    assert "127.0.0.1:1" in record.unredacted["error"]


async def test_a_server_with_a_public_name_is_not_named_either(nats_server: NatsServer) -> None:
    away = config("http://agents.example.invalid:8443")
    async with pipeline(nats_server.url, away, SERVICES) as penstock:
        run_id = await penstock.start_run("agno", "hello")
        *_, last = await penstock.ended(run_id)
    assert "example" not in json.dumps(last.body)


ASKS: dict[str, tuple[str, dict[str, Any]]] = {
    "POST /run_sse": ("/run_sse", {"json": ADK_RUN | {"streaming": True}}),
    "POST /run": ("/run", {"json": ADK_RUN}),
    "POST /run of another protocol": ("/run", {"json": ADK_RUN | {"appName": "agno"}}),
    "GET a session of ADK's": ("/apps/app/users/anonymous/sessions/s", {}),
    "POST /agents": ("/agents/agno/runs", {"data": {"message": "hello", "stream": "false"}}),
    "POST /agents, streamed": ("/agents/agno/runs", {"data": {"message": "hello"}}),
    "POST /agui": ("/agui/agno", {"json": AGUI_RUN}),
    "POST /v1/runs": (
        "/v1/runs",
        {
            "json": {"agent": "agno", "message": "hello"},
            "headers": {"accept": "text/event-stream"},
        },
    ),
}


@pytest.mark.parametrize("away", [False, True], ids=["refused", "away"])
@pytest.mark.parametrize(("path", "asked"), ASKS.values(), ids=ASKS.keys())
async def test_what_a_request_is_answered_when_it_fails(
    nats_server: NatsServer,
    upstream: Misbehaving,
    monkeypatch: pytest.MonkeyPatch,
    path: str,
    asked: dict[str, Any],
    away: bool,
) -> None:
    monkeypatch.setenv("ENABLE_ADK_CANONICAL_STREAM", "true")
    upstream.script(refuses)
    if path.startswith("/apps"):
        upstream.other = lambda request: (500, {"detail": WORDS})
    url = "http://127.0.0.1:1" if away else upstream.url
    async with pipeline(nats_server.url, config(url), SERVICES) as penstock:
        method = "POST" if asked else "GET"
        answer = await penstock.http.request(method, path, timeout=30, **asked)
    found = [secret for secret in PRIVATE if secret in answer.text]
    assert not found, answer.text
    assert answer.text


async def test_the_whole_text_is_for_who_administers(nats_server: NatsServer) -> None:
    async with secured(nats_server.url) as penstock:
        run = await penstock.finished()
        bucket = penstock.bus.bucket("runs")
        entry = await bucket.get(run.run_id)
        assert entry is not None
        assert entry.value is not None
        record = orjson.loads(entry.value) | {"unredacted": {"error": WORDS}}
        await bucket.put(run.run_id, orjson.dumps(record))
        for path in (f"/v1/runs/{run.run_id}", "/v1/runs?limit=1000"):
            for scope in ("start read raw decide", "read act-as"):
                answer = await penstock.http.get(path, headers=bearer(scope=scope))
                assert answer.status_code == 200
                assert PASSWORD not in answer.text
                assert "unredacted" not in answer.text
            everything = bearer("admin", scope="read administer")
            answer = await penstock.http.get(path, headers=everything)
            assert PASSWORD in answer.text
