"""The program of docs/subscribe.md reads the events of a real system, as it stands there."""

from __future__ import annotations

import asyncio
import os
import re
import signal
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from mypy import api as mypy

from penstock.bus.admin import subscribers
from penstock.bus.admin.permissions import SUBSCRIBER
from support.drive.bus import connected
from support.drive.repository import ROOT
from support.drive.waiting import eventually
from support.real.deployment import Deployment, deployment
from support.real.nats import NatsServer, write_passwords
from support.real.upstreams import Upstream


def program() -> str:
    """Return the program of the page."""
    page = (ROOT / "docs" / "subscribe.md").read_text()
    match = re.search(r"```python\n(.*?)```", page, re.S)
    assert match is not None
    return match[1]


@pytest.fixture
async def penstock(
    fresh_nats: NatsServer, agno_server: Upstream, tmp_path: Path
) -> AsyncIterator[Deployment]:
    """Run every service as a process, with a real Agno server, and the subscribers' durable."""
    agents = [
        {"id": "assistant", "protocol": "agno", "url": agno_server.url, "agent": "demo-agent"}
    ]
    async with deployment(fresh_nats.url, tmp_path / "penstock", agents) as penstock:
        async with connected(fresh_nats.url) as bus:
            await subscribers.ensure(bus)
        yield penstock


class Reader:
    """The program, and the lines that it has printed."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self.process = process
        self.lines: list[str] = []
        self._reading = asyncio.create_task(self._read())

    async def _read(self) -> None:
        assert self.process.stdout is not None
        async for line in self.process.stdout:
            self.lines.append(line.decode().rstrip())

    async def saw(self, text: str) -> None:
        async def there() -> bool:
            assert self.process.returncode is None, self.lines
            return any(text in line for line in self.lines)

        # What a killed program was handling comes again after the durable's ack_wait.
        await eventually(there, subscribers.ACK_WAIT_S + 30, text)

    async def ended(self) -> int:
        code = await self.process.wait()
        await self._reading
        return code


@asynccontextmanager
async def reading(nats: NatsServer, folder: Path) -> AsyncIterator[Reader]:
    file = folder / "reader.py"
    file.write_text(program())
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, file),
        env={
            **os.environ,
            "NATS_URL": nats.url,
            "NATS_PASSWORD_FILE": str(write_passwords(folder / "passwords") / SUBSCRIBER),
        },
        stdout=asyncio.subprocess.PIPE,
    )
    reader = Reader(process)
    try:
        yield reader
    finally:
        if process.returncode is None:
            process.kill()
        await reader.ended()


@pytest.mark.real
@pytest.mark.timeout(240)
async def test_the_program_of_the_page_prints_each_event_once_over_a_restart_and_a_kill(
    penstock: Deployment, fresh_nats: NatsServer, tmp_path: Path
) -> None:
    run_id = await penstock.run("assistant", "confirm A note")
    events = await penstock.until(run_id, "lifecycle.paused")
    async with reading(fresh_nats, tmp_path) as first:
        await first.saw(f"run {run_id} lifecycle.paused")
        first.process.send_signal(signal.SIGTERM)
        assert await first.ended() == 0
    asked = next(event for event in events if event.type == "approval.requested")
    [item] = asked.data["items"]
    assert f"approval {run_id}.{asked.sequence} {[item['tool']]}" in first.lines
    assert f"tool {item['tool']} {item['args']}" in first.lines

    async with reading(fresh_nats, tmp_path) as second:
        answer = await penstock.decide(asked.data["approval_id"], "approve")
        assert answer.is_success, answer.text
        await second.saw(f"run {run_id} lifecycle.resumed")
        second.process.kill()
        await second.ended()
    async with reading(fresh_nats, tmp_path) as third:
        await penstock.all(run_id)
        if not any("lifecycle.completed" in line for line in second.lines):
            await third.saw(f"run {run_id} lifecycle.completed")
    lines = [*first.lines, *second.lines, *third.lines]
    for type in ("started", "paused", "resumed", "completed"):
        # What was being handled at the kill may come twice.
        assert 1 <= lines.count(f"run {run_id} lifecycle.{type}") <= 2
    assert lines.count(f"run {run_id} lifecycle.paused") == 1


def check(code: str, folder: Path) -> str:
    """Return what mypy says about a user's program, strictly.

    It uses the settings, and so the cache, of `make types`: without a cache, mypy takes 12 s.
    """
    file = folder / "reader.py"
    file.write_text(code)
    said, errors, _ = mypy.run(["--strict", f"--config-file={ROOT / 'pyproject.toml'}", str(file)])
    assert errors == ""
    return said


@pytest.mark.chaos
@pytest.mark.timeout(360)  # mypy runs three times, the first time without a cache
def test_the_types_of_the_program_are_right_and_a_wrong_annotation_is_found(
    tmp_path: Path,
) -> None:
    assert "Success" in check(program(), tmp_path)
    wrong = program().replace("tool_called(call: ToolCall)", "tool_called(call: int)")
    said = check(wrong.replace("call.tool, call.args", "call"), tmp_path)
    assert 'Value of type variable "Form"' in said
    assert "tool_called" in wrong
    misspelt = program().replace("call.args", "call.arguments")
    assert 'has no attribute "arguments"' in check(misspelt, tmp_path)
