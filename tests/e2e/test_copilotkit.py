"""CopilotKit's real runtime and client, with our runner, against real agents."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from support.drive.repository import ROOT
from support.drive.short import in_short
from support.drive.waiting import eventually
from support.real import node
from support.real.deployment import Deployment, deployment
from support.real.nats import NatsServer
from support.real.ports import free_port
from support.real.upstreams import Upstream

pytestmark = pytest.mark.real

HERE = ROOT / "tests" / "copilotkit"
PACKAGE = ROOT / "clients" / "copilotkit"


@dataclass
class Program:
    """A program of Node that runs: its lines, and the answers by id."""

    process: asyncio.subprocess.Process
    lines: list[str] = field(default_factory=list)
    answers: dict[int, dict[str, Any]] = field(default_factory=dict)
    asked: int = 0

    async def read(self) -> None:
        assert self.process.stdout is not None
        async for line in self.process.stdout:
            text = line.decode().rstrip()
            self.lines.append(text)
            if text.startswith('{"id":'):
                answer = json.loads(text)
                self.answers[answer["id"]] = answer

    def begin(self, do: str, thread: str, agent: str = "assistant", **more: Any) -> int:
        """Have the client do something; return the number of the answer."""
        assert self.process.stdin is not None
        self.asked += 1
        asked = {"id": self.asked, "do": do, "thread": thread, "agent": agent, **more}
        self.process.stdin.write(json.dumps(asked).encode() + b"\n")
        return self.asked

    async def answer(self, number: int) -> dict[str, Any]:
        async def there() -> dict[str, Any] | None:
            assert self.process.returncode is None, self.lines
            return self.answers.get(number)

        return await eventually(there, 60, f"the answer {number}: {self.lines[-5:]}")

    async def do(self, do: str, thread: str, agent: str = "assistant", **more: Any) -> Any:
        return await self.answer(self.begin(do, thread, agent, **more))


class World:
    """Penstock with one edge, and the folder in which Node finds the packages.

    A program of Node takes about a second of CPU to start, so all tests share one client, and one
    runtime until a test restarts it. Each test has a thread of its own.
    """

    client: Program
    runtime: Program

    def __init__(self, penstock: Deployment, folder: Path) -> None:
        self.penstock = penstock
        self._folder = folder
        self._port = free_port()  # of the runtime, also after a restart
        self._running = AsyncExitStack()  # the runtime

    @asynccontextmanager
    async def program(self, name: str, *arguments: str) -> AsyncIterator[Program]:
        process = await asyncio.create_subprocess_exec(
            *("node", str(self._folder / "app" / name), *arguments),
            env=os.environ | {"COPILOTKIT_TELEMETRY_DISABLED": "true"},
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,
        )
        program = Program(process)
        reading = asyncio.create_task(program.read())
        try:
            yield program
        finally:
            if process.returncode is None:
                process.kill()
            await process.wait()
            await reading

    async def start_runtime(self) -> None:
        program = self.program("runtime.mjs", self.penstock.edge(), str(self._port))
        runtime = await self._running.enter_async_context(program)

        async def listens() -> bool:
            assert runtime.process.returncode is None, runtime.lines
            return any(line.startswith("http://") for line in runtime.lines)

        await eventually(listens, 90, "the runtime listens")
        self.runtime = runtime

    async def restart_runtime(self) -> None:
        """Kill the runtime, and start another one at its address."""
        await self._running.aclose()
        await self.start_runtime()

    def new_client(self) -> AbstractAsyncContextManager[Program]:
        """Start a client. A test that restarts the runtime in a run needs one for itself.

        A client whose connection is cut ends, because it is no browser.
        """
        return self.program("client.mjs", f"http://127.0.0.1:{self._port}/api/copilotkit")

    @asynccontextmanager
    async def started(self) -> AsyncIterator[World]:
        """Run the runtime and the client."""
        async with self._running, self.new_client() as self.client:
            await self.start_runtime()
            yield self

    async def has_status(self, thread: str, status: str) -> None:
        async def reached() -> bool:
            url = f"{self.penstock.edge()}/v1/runs"
            listed = await self.penstock.http.get(url, params={"session_id": thread})
            return any(run["status"] == status for run in listed.json()["runs"])

        await eventually(reached, 30, f"the run is {status}")

    async def kill_edge(self) -> None:
        """Kill the edge with SIGKILL, and start another one at its address."""
        [edge] = self.penstock.of("edge")
        await self.penstock.kill(edge)
        await self.penstock.start("edge", port=edge.port)


@pytest.fixture(scope="module")
async def world(
    nats_server: NatsServer,
    agno_server: Upstream,
    adk_server: Upstream,
    tmp_path_factory: pytest.TempPathFactory,
) -> AsyncIterator[World]:
    packages = node.packages("copilotkit")
    folder = tmp_path_factory.mktemp("copilotkit")
    (folder / "node_modules").symlink_to(packages)
    shutil.copytree(PACKAGE, folder / "app" / "node_modules" / "@penstock" / "copilotkit")
    for file in HERE.glob("*.mjs"):
        shutil.copy(file, folder / "app")
    agents: list[dict[str, Any]] = [
        {"id": "assistant", "protocol": "agno", "url": agno_server.url, "agent": "demo-agent"},
        {"id": "vana", "protocol": "adk", "url": adk_server.url, "agent": "demo"},
    ]
    async with (
        deployment(nats_server.url, folder / "penstock", agents) as penstock,
        World(penstock, folder).started() as world,
    ):
        yield world


@pytest.fixture
def client(world: World) -> Program:
    assert world.runtime.process.returncode is None, "the test before has ended the runtime"
    return world.client


def said(answer: dict[str, Any]) -> str:
    """Return the texts of the assistant."""
    return " ".join(each["content"] for each in answer["messages"] if each["role"] == "assistant")


@pytest.mark.parametrize("agent", in_short(["assistant", "vana"], ["assistant"]))
async def test_a_chat_of_two_turns(client: Program, agent: str) -> None:
    first = await client.do("run", f"chat-{agent}", agent, text="text")
    second = await client.do("run", f"chat-{agent}", agent, text="text")
    assert (first["error"], second["error"]) == (None, None)
    assert first["events"][0] == second["events"][0] == "RUN_STARTED"
    assert first["events"][-1] == second["events"][-1] == "RUN_FINISHED"
    assert [each["role"] for each in second["messages"]] == ["user", "assistant"] * 2
    assert said(first)
    again = await client.do("connect", f"chat-{agent}", agent, fresh=True)
    assert [each["role"] for each in again["messages"]] == ["user", "assistant"] * 2
    assert said(again) == said(second)


async def test_a_thread_without_a_run_is_empty(client: Program) -> None:
    answer = await client.do("connect", "never-used")
    assert (answer["messages"], answer["error"]) == ([], None)


@pytest.mark.chaos
async def test_an_interrupt_is_shown_after_a_restart_of_the_runtime_and_can_be_approved(
    world: World, client: Program
) -> None:
    thread = "interrupt"
    asked = await client.do("run", thread, text="confirm A note")
    assert len(asked["interrupts"]) == 1
    await world.restart_runtime()
    shown = await client.do("connect", thread, fresh=True)
    assert shown["interrupts"] == asked["interrupts"]
    assert shown["messages"][0]["role"] == "user"
    done = await client.do("approve", thread)
    assert (done["error"], done["interrupts"]) == (None, [])
    assert done["events"][-1] == "RUN_FINISHED"
    await world.has_status(thread, "completed")


async def test_a_run_that_is_stopped_is_cancelled(world: World, client: Program) -> None:
    number = client.begin("run", "stopped", text="slow")
    await world.has_status("stopped", "running")
    await client.do("stop", "stopped")
    await client.answer(number)
    await world.has_status("stopped", "cancelled")
    # The thread is free for the next turn.
    following = await client.do("run", "stopped", text="text")
    assert following["events"][-1] == "RUN_FINISHED"


@pytest.mark.chaos
async def test_a_stop_after_a_restart_of_the_runtime_cancels_the_run(
    world: World, client: Program
) -> None:
    thread = "stopped-later"
    async with world.new_client() as earlier:
        earlier.begin("run", thread, text="slow")
        await world.has_status(thread, "running")
    await world.restart_runtime()
    number = client.begin("connect", thread, fresh=True)
    await asyncio.sleep(1)
    await client.do("stop", thread)
    await client.answer(number)
    await world.has_status(thread, "cancelled")


@pytest.mark.chaos
async def test_a_restart_of_the_runtime_in_the_middle_of_a_run_loses_nothing(
    world: World, client: Program
) -> None:
    thread = "restarted"
    async with world.new_client() as earlier:
        earlier.begin("run", thread, text="slowtool")
        await world.has_status(thread, "running")
    await world.restart_runtime()
    shown = await client.do("connect", thread, fresh=True)
    assert shown["events"][-1] == "RUN_FINISHED"
    later = await client.do("connect", thread, fresh=True)
    assert said(shown)
    assert shown["messages"] == later["messages"]


@pytest.mark.chaos
async def test_an_edge_that_is_killed_in_the_middle_of_a_run_loses_and_repeats_nothing(
    world: World, client: Program
) -> None:
    thread = "edge-killed"
    number = client.begin("run", thread, text="slowtool")
    await world.has_status(thread, "running")
    await asyncio.sleep(0.5)
    await world.kill_edge()
    answer = await client.answer(number)
    assert (answer["error"], answer["events"][-1]) == (None, "RUN_FINISHED")
    assert answer["events"].count("RUN_STARTED") == 1
    again = await client.do("connect", thread, fresh=True)
    assert said(answer) == said(again)
    assert world.runtime.process.returncode is None, "the runtime's process has ended"


@pytest.mark.chaos
async def test_an_error_of_penstock_ends_the_run_and_not_the_runtime(
    world: World, client: Program
) -> None:
    refused = await client.do("run", "t" * 600, text="text")  # the thread's id is too long
    assert refused["events"] == ["RUN_ERROR"]
    assert (await client.do("run", "after-an-error", text="text"))["error"] is None
    assert world.runtime.process.returncode is None


@pytest.mark.chaos
def test_the_types_of_the_runner_fit_the_runtime(tmp_path: Path) -> None:
    packages, compiler = node.packages("copilotkit"), node.packages("contract")
    (tmp_path / "node_modules").symlink_to(packages)
    shutil.copytree(PACKAGE, tmp_path / "app" / "node_modules" / "@penstock" / "copilotkit")
    lines = [
        'import { CopilotRuntime } from "@copilotkit/runtime/v2";',
        'import { PenstockAgentRunner } from "@penstock/copilotkit";',
        'const runner = new PenstockAgentRunner({ url: "https://penstock.example" });',
        "export const runtime = new CopilotRuntime({ agents: {}, runner });",
    ]
    # The declarations of CopilotKit take seconds to read, so one compiler checks both programs.
    app = tmp_path / "app"
    (app / "right.mts").write_text("\n".join(lines))
    (app / "wrong.mts").write_text("\n".join(lines).replace("{ url:", "{ address:"))
    options = ["--strict", "--noEmit", "--skipLibCheck", "--module", "nodenext"]
    tsc = compiler / "typescript/bin/tsc"
    built = node.run(tsc, *options, "--pretty", "false", "right.mts", "wrong.mts", cwd=app)
    [error] = built.stdout.splitlines()
    assert error.startswith("wrong.mts(3,"), error
    assert "'address' does not exist" in error


def test_the_program_of_the_page_is_the_one_that_is_tested() -> None:
    page = (ROOT / "docs" / "copilotkit.md").read_text()
    tested = (HERE / "runtime.mjs").read_text()
    for line in page.partition("```js\n")[2].partition("```")[0].splitlines():
        if line.startswith("import"):
            module = line.rpartition("from ")[2]
            assert module in tested
    assert "new PenstockAgentRunner({ url })" in page
    assert "new PenstockAgentRunner({ url })" in tested
