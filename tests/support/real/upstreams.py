"""The real agent servers with scripted models: no key, no network, the same stream each time.

tests/upstreams/agno/TRIGGERS.md and tests/upstreams/adk/SCENARIOS.md list the messages to send. For
the AG-UI servers in tests/upstreams/agui, a path selects the scenario. Each server has its own
environment (`make upstreams`), because their dependencies conflict.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from support.drive.repository import ROOT
from support.real import servers

UPSTREAMS = ROOT / "tests" / "upstreams"

_READY = "Uvicorn running on"
_URL = re.compile(r"Uvicorn running on (http://[\d.]+:\d+)")
_START_TIMEOUT_S = 120  # importing the server takes seconds, and much longer on a busy machine


@dataclass(frozen=True, slots=True)
class Upstream:
    """A running agent server."""

    url: str
    log: Path
    tool_log: Path

    def tool_runs(self) -> list[dict[str, Any]]:
        """Return the runs of tools that needed approval or have an effect, oldest first.

        Each item is {tool, args, session (ADK only)}. All tests share the server, so a test must
        give its call unique arguments or a session of its own and count only these calls.
        """
        with suppress(FileNotFoundError):
            return [json.loads(line) for line in self.tool_log.read_text().splitlines()]
        return []


@dataclass(frozen=True, slots=True)
class Recipe:
    """The way to start one server. The command takes the interpreter; the folder is its cwd."""

    name: str
    command: Callable[[Path], list[str | Path]]
    env: Callable[[Path], dict[str, str]]
    home: str = ""  # the server's folder in tests/upstreams; default: `name`

    @property
    def python(self) -> Path:
        """The interpreter of the environment; `PENSTOCK_TEST_<NAME>_PYTHON` overrides it."""
        return Path(
            os.environ.get(f"PENSTOCK_TEST_{self.name.upper()}_PYTHON")
            or ROOT / ".penstock" / "venvs" / self.name / "bin" / "python"
        )


def _uvicorn(python: Path, app: str) -> list[str | Path]:
    return [python, "-m", "uvicorn", app, "--host", "127.0.0.1", "--port", "0"]


AGNO = Recipe(
    "agno",
    lambda python: _uvicorn(python, "app:app"),
    lambda folder: {"AGNO_DB": str(folder / "agno.sqlite")},
)
ADK = Recipe(
    "adk",
    lambda python: [
        python.with_name("adk"),
        *["api_server", "--host", "127.0.0.1", "--port", "0"],
        *["--session_service_uri", "memory://", "--artifact_service_uri", "memory://"],
        "agents",
    ],
    lambda folder: {},
)
PYDANTIC_AI = Recipe(
    "pydantic_ai",
    lambda python: _uvicorn(python, "pydantic_ai_server:app"),
    lambda folder: {},
    "agui",
)
AGNO_AGUI = Recipe(
    "agno_agui", lambda python: [python, "agno_server.py"], lambda folder: {}, "agui"
)
LANGGRAPH = Recipe(
    "langgraph", lambda python: [python, "langgraph_server.py"], lambda folder: {}, "agui"
)

# An OpenID Connect provider: the environment of ADK has Authlib.
OIDC = Recipe(
    "oidc",
    lambda python: _uvicorn(ADK.python, "app:app"),
    lambda folder: {"AUTHLIB_INSECURE_TRANSPORT": "1"},
)

# No server: the environment of the official A2A client.
A2A_CLIENT = Recipe("a2a", lambda python: [python], lambda folder: {})

A2A_OLDER_CLIENT = replace(A2A_CLIENT, name="a2a_older")

# The same apps on older servers (`make upstreams-older`).
AGNO_OLDER = replace(
    AGNO,
    name="agno_older",
    home="agno",
    env=lambda folder: {"AGNO_DB": str(folder / "agno-older.sqlite")},
)
ADK_OLDER = replace(
    ADK,
    name="adk_older",
    home="adk",
    command=lambda python: [  # sessions and artifacts are in memory without an option
        python.with_name("adk"),
        *["api_server", "--host", "127.0.0.1", "--port", "0", "agents"],
    ],
)


def shared(recipe: Recipe, run: servers.SharedRun) -> Upstream:
    """Return the one server of this test run."""
    url = run.once(recipe.name, lambda folder: _start(recipe, folder, run.owner_pid))
    log, tool_log = (run.folder / f"{recipe.name}.{each}" for each in ("log", "tools"))
    return Upstream(url, log, tool_log)


def _start(recipe: Recipe, folder: Path, owner_pid: int) -> str:
    process = servers.start(
        recipe.name,
        recipe.command(recipe.python),
        log=folder / f"{recipe.name}.log",
        owner_pid=owner_pid,
        cwd=UPSTREAMS / (recipe.home or recipe.name),
        env={
            **recipe.env(folder),
            "TOOL_LOG": str(folder / f"{recipe.name}.tools"),
            "PYTHONPATH": "",  # the server must not import our packages
        },
    )
    text = servers.await_log(process, _READY, _START_TIMEOUT_S)
    found = _URL.search(text)
    if found is None:
        raise RuntimeError(f"no address in the server's log:\n{text}")
    return found.group(1)
