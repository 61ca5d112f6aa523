"""Drives the process of an official A2A client (tests/clients/a2a/client.py and client.mjs)."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from typing import Any

from penstock.dialects.a2a import EXTENSION
from support.drive.repository import ROOT
from support.real.node import packages
from support.real.upstreams import A2A_CLIENT

WAIT_S = 120
Json = dict[str, Any]
# Binding and version of the interfaces that the card names.
INTERFACES = [("JSONRPC", "1.0"), ("HTTP+JSON", "1.0"), ("JSONRPC", "0.3")]


@dataclass(slots=True)
class Official:
    """The process. Calls may overlap."""

    url: str
    process: asyncio.subprocess.Process
    numbers: count[int] = field(default_factory=count)
    waiting: dict[int, asyncio.Future[Json]] = field(default_factory=dict)

    async def call(
        self,
        method: str,
        request: Json,
        *,
        agent: str = "assistant",
        interface: tuple[str, str] = INTERFACES[0],
        extended: bool = True,
        stream: bool = True,
        **more: Any,
    ) -> Json:
        """Return the task as the client has it, or `raised` and `text`."""
        number = next(self.numbers)
        self.waiting[number] = asyncio.get_running_loop().create_future()
        asked = {
            **{"number": number, "url": f"{self.url}/a2a/{agent}", "method": method},
            **{"request": request, "binding": interface[0], "version": interface[1]},
            **{"headers": {"A2A-Extensions": EXTENSION} if extended else {}, "stream": stream},
            **more,
        }
        assert self.process.stdin is not None
        self.process.stdin.write(json.dumps(asked).encode() + b"\n")
        return await asyncio.wait_for(self.waiting[number], WAIT_S)

    async def read(self) -> None:
        assert self.process.stdout is not None
        async for line in self.process.stdout:
            told = json.loads(line)
            self.waiting.pop(told["number"]).set_result(told["told"])


@asynccontextmanager
async def official(url: str, language: str = "python") -> AsyncIterator[Official]:
    scripts = ROOT / "tests/clients/a2a"
    command: list[str | Path] = [A2A_CLIENT.python, scripts / "client.py"]
    if language == "javascript":
        command = ["node", scripts / "client.mjs", packages("a2a").parent]
    process = await asyncio.create_subprocess_exec(
        *command,
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        limit=64 * 1024 * 1024,
    )
    client = Official(url, process)
    reading = asyncio.create_task(client.read())
    try:
        yield client
    finally:
        process.kill()
        await process.wait()
        reading.cancel()


def normal(task: Json) -> Json:
    """Return the task with the texts of each artifact joined where they follow each other."""
    artifacts = []
    for artifact in task.get("artifacts", ()):
        parts: list[Json] = []
        for part in artifact["parts"]:
            if parts and part.keys() == parts[-1].keys() == {"text"}:
                parts[-1] = {"text": parts[-1]["text"] + part["text"]}
            elif part:
                parts.append(part)
        artifacts.append({**artifact, "parts": parts})
    return {**task, "artifacts": artifacts}


def events_of(task: Json) -> list[Json]:
    """Return the extension's data parts of the task, in order."""
    messages = [*task.get("history", ()), task["status"].get("message", {})]
    parts = [part for message in messages for part in message.get("parts", ())]
    return [part["data"] for part in parts if "type" in (part.get("data") or {})]


def text_of(task: Json) -> str:
    return "".join(
        part.get("text", "") for each in task.get("artifacts", ()) for part in each["parts"]
    )
