"""Start the demo agents, which need no API key.

The agents run in a real Agno AgentOS and a real ADK server, both with scripted models.

Each server runs in a Python environment of its own (`make upstreams`), because the dependencies of
Agno and ADK conflict.
"""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx

from penstock.settings import AgentConfig, agent_config
from penstock_cli.local.child import Child, StartFailed

# seconds; a server needs several seconds for its imports, and more on a busy machine
START_TIMEOUT_S = 120.0
_LOOK_AGAIN_S = 0.5
_WHY = b"this demo server is still being set up; try again in a minute"
_NOT_YET = (
    b"HTTP/1.1 503 Service Unavailable\r\nRetry-After: 5\r\nContent-Type: text/plain\r\n"
    b"Content-Length: %d\r\nConnection: close\r\n\r\n%b" % (len(_WHY), _WHY)
)
_HERE = Path(__file__).parent
# The definitions of a code review and of a diagnosis by teams, which the service `workflows` reads.
# Whoever changes one must give it a new version, because the data folder of a user may have the
# earlier version.
WORKFLOWS = _HERE / "workflows"
# The workflows that clients can start by their names or their topology ids. `diagnosis_team` is not
# listed, because `diagnosis` starts it.
_WORKFLOW_AGENTS = (
    {"id": "code_review", "name": "Code Review", "topology_id": 200},
    {"id": "diagnosis", "name": "Diagnosis", "topology_id": 123},
)


def switch_on_workflows() -> list[AgentConfig]:
    """Make the service `workflows` read the demo's definitions. Return the agents that start these
    workflows. If the operator has definitions, nothing is changed and the result is empty."""
    if os.environ.setdefault("PENSTOCK_WORKFLOWS", str(WORKFLOWS)) != str(WORKFLOWS):
        return []
    return [agent_config({"protocol": "workflow", **agent}) for agent in _WORKFLOW_AGENTS]


@dataclass(frozen=True, slots=True)
class Recipe:
    """Says how to start one demo server, and which agents the server has."""

    name: str  # the name of the server and of its agents' protocol
    app: str
    health: str
    agents: Sequence[Mapping[str, Any]]

    @property
    def environment(self) -> Path:
        return (Path(".penstock") / "venvs" / self.name).absolute()

    @property
    def python(self) -> Path:
        """The path of Python in the environment; `variable` overrides it."""
        return Path(self._override or self.environment / "bin" / "python").absolute()

    @property
    def is_complete(self) -> bool:
        return (self.python if self._override else self.environment / "made-from").exists()

    @property
    def is_being_made(self) -> bool:
        """Whether deploy/venv.sh is at work on the environment, as `make run` starts it."""
        if self._override:
            return False
        try:
            os.kill(int(Path(f"{self.environment}.pid").read_text()), 0)
        except (OSError, ValueError):
            return False
        return True

    @property
    def variable(self) -> str:
        """The name of the variable that overrides the path of Python."""
        return f"PENSTOCK_DEMO_{self.name.upper()}_PYTHON"

    @property
    def _override(self) -> str | None:
        return os.environ.get(self.variable)


RECIPES = (
    Recipe(
        "agno",
        "agno_app",
        "/health",
        (
            {"id": "assistant", "name": "Demo Assistant", "accepts": ["dependencies"]},
            {"id": "mindrian-agent", "name": "Mindrian", "accepts": ["dependencies"]},
            {"id": "linter", "name": "Linter"},
            {"id": "writer", "name": "Writer"},
            {"id": "global_supervisor", "name": "Global Supervisor"},
            {"id": "database_monitor", "name": "Database Monitor"},
        ),
    ),
    Recipe(
        "adk",
        "adk_app",
        "/list-apps",
        (
            {"id": "vana", "name": "Vana", "accepts": ["stateDelta"]},
            {"id": "scanner", "name": "Security Scanner"},
            {"id": "team_supervisor", "name": "Team Supervisor"},
        ),
    ),
)


class DemoServer:
    """One agent server. The server's port is open from `start` on. While the server's environment
    is being made, requests are answered with 503. While the server itself starts, they wait."""

    def __init__(self, recipe: Recipe) -> None:
        self.recipe = recipe
        self.url = ""
        self._data = Path()
        self._child: Child | None = None
        self._start: asyncio.Task[None] | None = None

    @property
    def agents(self) -> list[AgentConfig]:
        """The configuration of the server's agents. The URL of the agents is known after
        `start`."""
        return [
            agent_config({"protocol": self.recipe.name, "url": self.url, **agent})
            for agent in self.recipe.agents
        ]

    @property
    def is_being_set_up(self) -> bool:
        return self._start is not None and not self._start.done()

    async def start(self, data: Path) -> None:
        """Bind a free port, and start the server on it as soon as its environment is made.

        Raises:
            StartFailed: there is no environment, and none is being made.
        """
        recipe = self.recipe
        if not recipe.is_complete and not recipe.is_being_made:
            raise StartFailed(
                f"no environment for the demo {recipe.name} server ({recipe.python} is missing): "
                "start in the repository's folder, after `make upstreams` there; or set "
                f"{recipe.variable} to a Python that has the server's packages; or start without "
                "--demo"
            )
        self._data = data
        listener = socket.create_server(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{listener.getsockname()[1]}"
        if recipe.is_being_made:
            self._start = asyncio.create_task(self._start_later(listener))
        else:
            with listener:
                await self._start_child(listener)

    async def _start_later(self, listener: socket.socket) -> None:
        recipe = self.recipe
        with listener:
            refusing = await asyncio.start_server(_refuse, sock=listener.dup())
            async with refusing:
                while recipe.is_being_made:
                    await asyncio.sleep(_LOOK_AGAIN_S)
            if not recipe.is_complete:
                raise StartFailed(
                    f"the environment of the demo {recipe.name} server could not be made: "
                    f"{recipe.environment}.log says why; then run `make upstreams`, and start again"
                )
            await self._start_child(listener)

    async def _start_child(self, listener: socket.socket) -> None:
        folder = (self._data / "demo").absolute()
        folder.mkdir(parents=True, exist_ok=True)
        fd = listener.fileno()
        name = self.recipe.name
        self._child = await Child.start(
            f"the demo {name} server",
            [self.recipe.python, _HERE / "serve.py", self.recipe.app, "--fd", str(fd)],
            log=self._data / "logs" / f"{name}.log",
            pass_fds=[fd],
            env=os.environ
            | {
                "DEMO_DATA": str(folder),
                "PYTHONPATH": "",  # the server must not import Penstock's packages
                "PYTHONDONTWRITEBYTECODE": "1",
            },
        )

    async def healthy(self) -> None:
        """Wait until the server answers. Raises StartFailed if the server has ended, takes too long
        or has no environment."""
        if self._start is not None:
            await self._start
        assert self._child is not None, "not started"
        asked = asyncio.create_task(self._ask())
        ended = asyncio.create_task(self._child.ended())
        try:
            await asyncio.wait({asked, ended}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            ended.cancel()
            asked.cancel()
            [failure] = await asyncio.gather(asked, return_exceptions=True)
        if failure is not None:
            raise self._child.failure("did not start")

    async def _ask(self) -> None:
        # The socket already listens, so this request waits until the server is up.
        async with httpx.AsyncClient(timeout=START_TIMEOUT_S, trust_env=False) as client:
            (await client.get(self.url + self.recipe.health)).raise_for_status()

    async def stop(self) -> None:
        if self._start is not None:
            self._start.cancel()
            await asyncio.gather(self._start, return_exceptions=True)
            self._start = None
        if self._child is not None:
            await self._child.stop()
            self._child = None


async def _refuse(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Answer a request with 503. `Retry-After` tells the edge that the server is starting."""
    with suppress(OSError, asyncio.IncompleteReadError, asyncio.LimitOverrunError):
        await reader.readuntil(b"\r\n\r\n")
        writer.write(_NOT_YET)
        await writer.drain()
    writer.close()
