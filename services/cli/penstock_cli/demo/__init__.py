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
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx

from penstock.settings import AgentConfig, agent_config
from penstock_cli.local.child import Child, StartFailed

# seconds; a server needs several seconds for its imports, and more on a busy machine
START_TIMEOUT_S = 120.0
_HERE = Path(__file__).parent


@dataclass(frozen=True, slots=True)
class Recipe:
    """Says how to start one demo server, and which agents the server has."""

    name: str  # the name of the server and of its agents' protocol
    app: str
    health: str
    agents: Sequence[Mapping[str, Any]]

    @property
    def python(self) -> Path:
        """The path of Python in the server's environment; `PENSTOCK_DEMO_<NAME>_PYTHON` overrides
        the path."""
        given = os.environ.get(f"PENSTOCK_DEMO_{self.name.upper()}_PYTHON")
        return Path(given or Path(".penstock") / "venvs" / self.name / "bin" / "python").absolute()


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
    """One agent server.

    The server's port is open as soon as the process starts, and requests wait until the server can
    answer.
    """

    def __init__(self, recipe: Recipe) -> None:
        self.recipe = recipe
        self.url = ""
        self._child: Child | None = None

    @property
    def agents(self) -> list[AgentConfig]:
        """The configuration of the server's agents.

        The URL of the agents is known after `start`.
        """
        return [
            agent_config({"protocol": self.recipe.name, "url": self.url, **agent})
            for agent in self.recipe.agents
        ]

    async def start(self, data: Path) -> None:
        """Bind a free port and start the server on it. Raises StartFailed."""
        python = self.recipe.python
        if not python.exists():
            raise StartFailed(
                f"no environment for the demo {self.recipe.name} server ({python} is missing): "
                "run `make upstreams`, or start without --demo"
            )
        folder = (data / "demo").absolute()
        folder.mkdir(parents=True, exist_ok=True)
        with closing(socket.create_server(("127.0.0.1", 0))) as listener:
            self.url = f"http://127.0.0.1:{listener.getsockname()[1]}"
            fd = listener.fileno()
            self._child = await Child.start(
                f"the demo {self.recipe.name} server",
                [python, _HERE / "serve.py", self.recipe.app, "--fd", str(fd)],
                log=data / "logs" / f"{self.recipe.name}.log",
                pass_fds=[fd],
                env=os.environ
                | {
                    "DEMO_DATA": str(folder),
                    "PYTHONPATH": "",  # the server must not import Penstock's packages
                    "PYTHONDONTWRITEBYTECODE": "1",
                },
            )

    async def healthy(self) -> None:
        """Wait until the server answers.

        Raises StartFailed if the server has ended or takes too long.
        """
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
        """Stop the server."""
        if self._child is not None:
            await self._child.stop()
            self._child = None
