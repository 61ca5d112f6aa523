"""Workflows for tests: an AG-UI server that counts its calls, definitions, and their starts.

```python
async with counting() as server, workflows(nats_server.url, server) as penstock:
    await penstock.define(sequence("a", "b"))
    run_id = await penstock.start_workflow("sequence", {"id": "1"})
    events = await penstock.ended(run_id)
```
"""

from __future__ import annotations

import asyncio
import json
from collections import Counter, defaultdict
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any

import orjson
import yaml

from penstock.bus import Bus, Message, messages, subjects
from penstock.bus.records.runs import CancelCommand, RunRecord, StartCommand
from penstock.bus.records.workflows import LatestWorkflow, WorkflowRecord
from penstock.runs.workflows import BUCKET, latest_key, version_key
from penstock.settings import Config
from penstock_workflows.service import WorkflowsService
from support.drive.pipeline import PIPELINE, Pipeline, Services, new_run_id, pipeline
from support.fakes.misbehaving import Answer, Misbehaving, Request, misbehaving

SERVICES: Services = (*PIPELINE, WorkflowsService)


class CountingServer:
    """An AG-UI server that answers each message with `done <message>`, and counts the messages.

    Words of the message say what it does: `fails` fails always, `fails-once` at the first call of
    the same message, `slow-<seconds>` waits first, `gate-<name>` waits until the test has set
    `gates[name]`, `never` waits until the client goes away, `begins` does so after its first word,
    `breaks` drops the connection after it, `deltas-<number>` cuts the answer into so many pieces.
    """

    def __init__(self, upstream: Misbehaving) -> None:
        self.upstream = upstream
        self.calls: Counter[str] = Counter()
        self.gates: defaultdict[str, asyncio.Event] = defaultdict(asyncio.Event)
        upstream.scripted = lambda request: (request.method, request.path) == ("POST", "/agui")
        upstream.script(self._answer)

    @property
    def config(self) -> Config:
        """The configuration of one agent, `worker`, on this server."""
        agent = {"id": "worker", "protocol": "agui", "url": f"{self.upstream.url}/agui"}
        return Config.model_validate({"agents": [agent]})

    async def was_called(self) -> bool:
        """Return whether there was a call."""
        return bool(self.calls)

    async def _answer(self, answer: Answer) -> None:
        text = _text_of(answer.request)
        self.calls[text] += 1
        words = text.split()
        for word in words:
            if word.startswith("slow-"):
                await asyncio.sleep(float(word.removeprefix("slow-")))
            if word.startswith("gate-"):
                await self.gates[word.removeprefix("gate-")].wait()
        if "never" in words:
            await answer.head()
            await answer.left()
            return
        ids = {"threadId": "t", "runId": "r"}
        events: list[dict[str, Any]] = [{"type": "RUN_STARTED", **ids}]
        if "begins" in words or "breaks" in words:
            said = {"messageId": "m"}
            events.append({"type": "TEXT_MESSAGE_START", **said, "role": "assistant"})
            events.append({"type": "TEXT_MESSAGE_CONTENT", **said, "delta": "done"})
            await answer.head()
            await answer.send(_sse(events))
            if "breaks" in words:
                answer.cut()
            else:
                await answer.left()
            return
        if "fails" in words or ("fails-once" in words and self.calls[text] == 1):
            events.append({"type": "RUN_ERROR", "message": "it fails", "code": "broken"})
        else:
            said = {"messageId": "m"}
            pieces = [int(each[7:]) for each in words if each.startswith("deltas-")]
            deltas = ["piece "] * (sum(pieces) - 1) + [f"done {text}"]
            events += [
                {"type": "TEXT_MESSAGE_START", **said, "role": "assistant"},
                *({"type": "TEXT_MESSAGE_CONTENT", **said, "delta": each} for each in deltas),
                {"type": "TEXT_MESSAGE_END", **said},
                {"type": "RUN_FINISHED", **ids},
            ]
        await answer.whole(_sse(events))


def _sse(events: Sequence[dict[str, Any]]) -> bytes:
    return b"".join(b"data: " + orjson.dumps(each) + b"\n\n" for each in events)


def _text_of(request: Request) -> str:
    last = json.loads(request.body)["messages"][-1]
    return str(last["content"])


@asynccontextmanager
async def counting(port: int = 0) -> AsyncIterator[CountingServer]:
    """Run a counting server for one test, on a free port unless one is named."""
    async with misbehaving(port) as upstream:
        yield CountingServer(upstream)


def definition(text: str) -> dict[str, Any]:
    """Return a definition from YAML; `dsl`, `name` and `version` may be left out."""
    return {"dsl": "penstock/1", "name": "flow", "version": "1", **yaml.safe_load(text)}


def sequence(*steps: str, name: str = "sequence") -> dict[str, Any]:
    """Return a workflow that runs `worker` for each of these steps, one after another."""
    made: dict[str, Any] = {}
    before: str | None = None
    for step in steps:
        message = f"input.id + ' {step}'"
        made[step] = {"run": {"agent": "worker", "message": message}, "output": "result.text"}
        if before is not None:
            made[step]["needs"] = [before]
        before = step
    return {"dsl": "penstock/1", "name": name, "version": "1", "steps": made}


async def define(bus: Bus, wanted: Mapping[str, Any]) -> None:
    """Store a version of a workflow, and make it the latest one."""
    record = WorkflowRecord(
        name=wanted["name"],
        version=wanted["version"],
        digest="",
        definition=dict(wanted),
        input_schema=wanted.get("input") or {},
        created_at=messages.now(),
        created_by="test",
    )
    bucket = bus.bucket(BUCKET)
    await bucket.put(version_key(record.name, record.version), record.dump())
    latest = LatestWorkflow(version=record.version)
    await bucket.put(latest_key(record.name), latest.dump())


async def start_workflow(
    bus: Bus,
    name: str,
    input: Mapping[str, Any] | None = None,
    *,
    before_command: Callable[[str], Awaitable[None]] | None = None,
    **fields: Any,
) -> str:
    """Start a workflow's run as the edge does; return its id.

    `before_command` is called when the run has its record, and its command is not published yet.
    """
    now = messages.now()
    run_id = fields.pop("run_id", None) or new_run_id()
    common = {
        "run_id": run_id,
        "agent": name,
        "session_id": f"s-{run_id}",
        "user_id": "u1",
        "created_at": now,
        **fields,
    }
    record = RunRecord.model_validate({**common, "updated_at": now, "target": "workflows"})
    await bus.bucket("runs").create(run_id, record.dump())
    if before_command is not None:
        await before_command(run_id)
    command = StartCommand.model_validate({**common, "input": dict(input or {})})
    subject = subjects.command("workflows", "start", run_id)
    await bus.publisher.publish(Message(subject, command.dump(), {"Nats-Msg-Id": run_id}))
    return run_id


async def cancel_workflow(bus: Bus, run_id: str) -> None:
    """Publish the command to cancel a workflow's run."""
    command = CancelCommand(run_id=run_id, by="u1")
    subject = subjects.command("workflows", "cancel", run_id)
    await bus.publisher.publish(Message(subject, command.dump(), {}))


@asynccontextmanager
async def workflows(
    nats_url: str,
    server: CountingServer,
    services: Sequence[Any] = SERVICES,
    **settings: Any,
) -> AsyncIterator[Pipeline]:
    """Run all services that a workflow needs, with the agent `worker` on this server."""
    async with pipeline(nats_url, server.config, services, **settings) as penstock:
        yield penstock
