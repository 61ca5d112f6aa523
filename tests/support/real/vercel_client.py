"""The chat class of the unchanged package `ai` in several versions, each in one node process.

`make node` installs the packages. If node is missing, the tests that need it are skipped with a
reason; in CI they fail.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

from support.drive.repository import ROOT
from support.real.node import packages

SCRIPTS = ROOT / "tests/clients/vercel"
# The packages by the major version, which is also the value of `?sdk=`.
VERSIONS = {"5": "ai5", "6": "ai6", "7": "ai7"}
ANSWER_S = 60
MAX_LINE_BYTES = 1 << 26

State = dict[str, Any]


@dataclass(slots=True)
class Chat:
    """A process that drives one chat after another; see client.mjs for the commands."""

    version: str
    process: asyncio.subprocess.Process

    async def __call__(self, command: str, **given: Any) -> State:
        """Give a command; return the chat's state after it."""
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write(json.dumps({"command": command, **given}).encode() + b"\n")
        line = await asyncio.wait_for(self.process.stdout.readline(), ANSWER_S)
        state: State = json.loads(line)
        assert "failed" not in state, state["failed"]
        return state


@asynccontextmanager
async def chat(version: str) -> AsyncIterator[Chat]:
    """Run the client of this major version."""
    folder = packages("vercel").parent
    process = await asyncio.create_subprocess_exec(
        "node",
        str(SCRIPTS / "client.mjs"),
        str(folder),
        VERSIONS[version],
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        limit=MAX_LINE_BYTES,
    )
    try:
        yield Chat(version, process)
    finally:
        process.kill()
        await process.wait()


def answer_of(state: State) -> dict[str, Any]:
    """Return the chat's last message, which must be the agent's."""
    message: dict[str, Any] = state["messages"][-1]
    assert message["role"] == "assistant", state
    return message


def parts(state: State, type: str) -> list[dict[str, Any]]:
    """Return the parts of this type of the last message."""
    return [part for part in answer_of(state)["parts"] if part["type"] == type]


def text(state: State) -> str:
    """Return the text of the last message."""
    return "".join(part["text"] for part in parts(state, "text"))
