"""What a search of everything finds of 200 planted texts after an erasure (`make faults`).

The rows print what they find, and check what docs/privacy.md promises.
"""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import AsyncIterator, Iterable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
from typer.testing import CliRunner

from penstock.bus import Bus, streams
from penstock.bus.read import direct
from penstock_cli.main import app
from support.drive.bus import connected, make_streams
from support.drive.erasing import erased
from support.drive.searching import by_kind, in_files, in_memory, planted_in
from support.drive.waiting import eventually
from support.drive.workflows import define, definition
from support.fakes.misbehaving import Answer, misbehaving
from support.fakes.raw import agno
from support.fakes.receiver import SECRET, Receiver, receiver
from support.real.deployment import CONTENT_KEY, Deployment, deployment
from support.real.nats import NatsServer
from support.real.nats_cluster import in_thread, nats_of, url_of
from support.real.processes import pid_of

pytestmark = [pytest.mark.chaos, pytest.mark.timeout(900)]

RUNS = 20
KINDS = (
    *("message", "tag", "delta", "thought", "args"),
    *("result", "custom", "asked", "note", "end"),
)
SERVICES = {
    **{"normalizer": 1, "connector": 1, "edge": 1, "approvals": 1},
    **{"automations": 1, "workflows": 1},
}
FLOW = """
name: flow
steps:
  first: {run: {agent: agent, message: 'input.message'}}
  kept: {needs: [first], set: '{"value": input.message + " again"}'}
"""
# What an erasure deletes message by message, and what it may leave in a bucket's file: see the
# table in docs/privacy.md.
DELETED = {streams.EVENTS, streams.RAW, streams.JOURNAL, streams.DEADLETTERS, "OBJ_payloads"}
NOT_SEALED = {"KV_threads", "KV_deliveries"}
LOGS = "logs of replicas"


class Planted:
    """The planted texts, by run and kind."""

    def __init__(self) -> None:
        self.runs = [
            {kind: f"plant-{kind}-{uuid4().hex[:12]}" for kind in KINDS} for _ in range(RUNS)
        ]

    @property
    def all(self) -> set[str]:
        return {text for texts in self.runs for text in texts.values()}

    async def answer(self, answer: Answer) -> None:
        """Say all texts of the run whose message the request has."""
        body = answer.request.body.decode()
        match = re.search(r"nr(?:-|%2D)(\d+)", body)
        assert match is not None, body
        number = int(match[1])
        texts = self.runs[number]
        call = {"tool_call_id": f"nr-{number}", "tool_name": "pay", "tool_args": {}}
        called = {**call, "tool_args": {"to": texts["args"]}}
        await answer.head()
        if not answer.request.path.endswith("/continue"):
            await answer.send(agno("RunStarted"))
            await answer.send(agno("RunContent", reasoning_content=texts["thought"]))
            for piece in cut(texts["delta"], number):
                await answer.send(agno("RunContent", content=piece))
            await answer.send(agno("ToolCallStarted", tool=called))
            done = {**called, "result": texts["result"], "tool_call_error": False}
            await answer.send(agno("ToolCallCompleted", tool=done))
            await answer.send(agno("CustomEvent", name="told", value=texts["custom"]))
            asked = {**call, "tool_args": {"to": texts["asked"]}, "requires_confirmation": True}
            await answer.send(agno("RunPaused", tools=[asked], requirements=[]))
            await answer.end()
            return
        await answer.send(agno("RunContinued"))
        if number % 4 == 3:
            await answer.send(agno("RunError", content=f"failed: {texts['end']}"))
        else:
            large = texts["end"] * (30_000 if number % 4 == 2 else 1)
            await answer.send(agno("RunContent", content=large))
            await answer.send(agno("RunContentCompleted") + agno("RunCompleted", content=large))
        await answer.end()


def cut(text: str, number: int) -> list[str]:
    """Return a text in pieces, cut at another place for each number."""
    at = 1 + number % (len(text) - 1)
    return [text[:at], text[at:], " "]


@asynccontextmanager
async def planted(
    nats_url: str, folder: Path, **settings: Any
) -> AsyncIterator[tuple[Deployment, Planted, Receiver]]:
    """Run a deployment in which runs have said the planted texts, and webhooks have told them."""
    texts = Planted()
    async with AsyncExitStack() as stack:
        upstream = await stack.enter_async_context(misbehaving())
        hooks = await stack.enter_async_context(receiver())
        upstream.script(texts.answer)
        agents: list[dict[str, Any]] = [
            {"id": "agent", "protocol": "agno", "url": upstream.url, "timeout_s": 60},
            {"id": "flow", "protocol": "workflow"},
        ]
        async with connected(nats_url) as bus:
            await define(bus, definition(FLOW))
        settings |= {"webhook_allow_hosts": "127.0.0.1", "log_format": "json"}
        penstock = await stack.enter_async_context(
            deployment(nats_url, folder, agents, SERVICES, **settings)
        )
        rule = {
            **{"id": "told", "subjects": ["lifecycle.completed", "llm.tool_result"]},
            "action": {"webhook": {"url": hooks.url("/told"), "secrets": [SECRET]}},
        }
        (automations,) = penstock.of("automations")
        made = await penstock.http.post(f"{automations.url}/v1/automations", json=rule)
        assert made.is_success, made.text
        yield penstock, texts, hooks


async def said(penstock: Deployment, texts: Planted) -> list[str]:
    """Let each run say its texts, and end; return the ids of what is to be erased."""

    async def one(number: int) -> str:
        own = texts.runs[number]
        agent = "flow" if number % 5 == 4 else "agent"
        message, tags = f"nr-{number} {own['message']}", {"case": own["tag"]}
        run_id = await penstock.run(agent, message, tags=tags, session_id=f"s-{number}")
        approval_id = await asked(penstock, run_id)
        decided = await penstock.decide(approval_id, "approve", note=own["note"])
        assert decided.is_success, decided.text

        async def ended() -> bool:
            return await penstock.status(run_id) in ("completed", "failed")

        await eventually(ended, 60, f"the end of {run_id}")
        return run_id

    return [await one(number) for number in range(RUNS)]


async def asked(penstock: Deployment, run_id: str) -> str:
    """Wait for the approval of a run, or of the run of its step; return its id."""

    async def found() -> str | None:
        waiting = await penstock.http.get(f"{penstock.approvals}/v1/approvals?status=pending")
        for each in waiting.json()["approvals"]:
            run = await penstock.http.get(f"{penstock.edge()}/v1/runs/{each['run_id']}")
            if run_id in (each["run_id"], run.json().get("parent_run_id")):
                return str(each["approval_id"])
        return None

    return await eventually(found, 60, f"the approval of {run_id}")


def stored_in(servers: Sequence[NatsServer]) -> dict[str, set[str]]:
    """Return the planted texts in the stores of these servers, by stream. A cluster also has logs
    of what its replicas have agreed on."""
    of: dict[str, set[str]] = {}
    for server in servers:
        for path, texts in in_files(server.store).items():
            parts = Path(path).parts
            stream = parts[parts.index("streams") + 1] if "streams" in parts else LOGS
            of.setdefault(stream, set()).update(texts)
    return of


def told(where: str, texts: Iterable[str]) -> None:
    print(f"{where}: {sum(by_kind(texts).values())} of {RUNS * len(KINDS)} {by_kind(texts)}")


async def penstock_streams(*words: str) -> str:
    result = await asyncio.to_thread(CliRunner().invoke, app, ["streams", *words])
    assert result.exit_code == 0, result.output
    return result.stdout


async def erase(penstock: Deployment, bus: Bus, runs: Sequence[str]) -> None:
    """Erase the runs, and search all that NATS answers."""
    for run_id in runs:
        answer = await penstock.http.delete(f"{penstock.edge()}/v1/runs/{run_id}/content")
        assert answer.status_code == 202, answer.text
    for run_id in runs:
        await erased(bus, run_id)
    for name in (await bus.api("STREAM.NAMES"))["streams"]:
        values = [each.payload async for each in direct.replay(bus, name, ">")]
        assert planted_in(b"".join(values)) == set(), name


async def search_files(penstock: Deployment, servers: Sequence[NatsServer]) -> set[str]:
    """Search the files; return the streams that have planted texts."""

    async def overwritten() -> bool:  # a replica may follow later
        return not set(stored_in(servers)) & DELETED

    await eventually(overwritten, 60, "no planted text in what is deleted one by one")
    after = stored_in(servers)
    for stream, left in sorted(after.items()):
        told(f"{stream} after", left)
    assert in_files(penstock.folder, "*.log") == {}
    return set(after)


async def search_services(
    penstock: Deployment, servers: Sequence[NatsServer], runs: Sequence[str]
) -> None:
    """Search metrics and memory, then those of services that were started again."""
    for each in tuple(penstock.instances):
        metrics = await penstock.http.get(f"{each.probes}/metrics")
        assert planted_in(metrics.content) == set()
        told(f"memory of {each.service}", in_memory(pid_of(each.process)))
        await penstock.kill(each)
    for server in servers:
        told("memory of NATS", in_memory(server.pid))
    for service in SERVICES:
        again = await penstock.start(service)
        assert in_memory(pid_of(again.process)) == set(), service
    for run_id in runs:
        shown = await penstock.http.get(f"{penstock.edge()}/v1/runs/{run_id}/events")
        assert planted_in(shown.content) == set()


async def restore(
    url: str, empty: Sequence[NatsServer], folder: Path, runs: Sequence[str]
) -> set[str]:
    """Restore a backup into empty servers; return the streams that have planted texts there."""
    nats, erasures = ("--nats", url), folder / "erasures.jsonl"
    await penstock_streams("backup", str(folder / "kept"), *nats)
    erasures.write_text(await penstock_streams("erasures", "--json", *nats))
    listed = {json.loads(line)["run_id"] for line in erasures.read_text().splitlines()}
    assert listed >= {*runs}
    command = ("restore", str(folder / "kept"), "--erasures", str(erasures))
    await penstock_streams(*command, "--nats", url_of(empty))
    left = stored_in(empty)
    for stream, texts in sorted(left.items()):
        told(f"{stream} of a restored backup", texts)
    return set(left)


@pytest.mark.parametrize("replicas", [1, 3], ids=["one-server", "three-replicas"])
@pytest.mark.parametrize("keys", ["", CONTENT_KEY], ids=["clear", "sealed"])
async def test_two_hundred_planted_texts_are_where_the_table_says_after_an_erasure(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, keys: str, replicas: int
) -> None:
    monkeypatch.setenv("PENSTOCK_CONTENT_KEYS", keys)
    monkeypatch.setenv("PENSTOCK_REPLICAS", str(replicas))
    settings = {"content_keys": keys} if keys else {}
    async with AsyncExitStack() as stack:
        servers, empty = [
            await stack.enter_async_context(in_thread(nats_of(replicas, tmp_path / name)))
            for name in ("nats", "empty")
        ]
        url = url_of(servers)
        await make_streams(url, replicas)
        deployed = planted(url, tmp_path / "p", replicas=replicas, **settings)
        penstock, texts, hooks = await stack.enter_async_context(deployed)
        runs = await said(penstock, texts)
        await hooks.until(lambda: len(hooks.requests) >= RUNS)
        seen = set().union(*stored_in(servers).values())
        seen |= set().union(*(planted_in(each.body) for each in hooks.requests))
        told("in NATS and webhooks before", seen & texts.all)
        if not keys:
            assert texts.all <= seen  # the search finds what is there
        async with connected(url, content_keys=(keys,) if keys else ()) as bus:
            assert (await bus.api("STREAM.INFO.EVENTS"))["config"]["num_replicas"] == replicas
            await erase(penstock, bus, runs)
        stored = await search_files(penstock, servers)
        await search_services(penstock, servers, runs)
        restored = await restore(url, empty, tmp_path, runs)
        if keys:
            assert stored | restored <= NOT_SEALED
