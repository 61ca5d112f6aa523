"""The real agent servers, with scripted models: no key, no network, the same stream each time.

What to send is in tests/upstreams/agno/TRIGGERS.md and tests/upstreams/adk/SCENARIOS.md; of the
AG-UI servers in tests/upstreams/agui a path is a scenario. Each server needs an environment of its
own (`make upstreams`): their dependencies do not agree.
"""

from __future__ import annotations

import fcntl
import json
import os
import re
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from support.drive.repository import ROOT
from support.real import servers

UPSTREAMS = ROOT / "tests" / "upstreams"

_READY = "Uvicorn running on"
_URL = re.compile(r"Uvicorn running on (http://[\d.]+:\d+)")
_START_TIMEOUT_S = 120  # importing them takes seconds, on a busy machine many


@dataclass(frozen=True, slots=True)
class Upstream:
    """A running agent server."""

    url: str
    log: Path
    tool_log: Path

    def tool_runs(self) -> list[dict[str, Any]]:
        """The runs of tools that needed approval, oldest first: {tool, args, session (ADK only)}.

        The server is shared by the whole test run: give a call arguments or a session of its own
        and count those.
        """
        with suppress(FileNotFoundError):
            return [json.loads(line) for line in self.tool_log.read_text().splitlines()]
        return []


@dataclass(frozen=True, slots=True)
class Recipe:
    """How to start one server: the command takes the interpreter, the folder is its cwd."""

    name: str
    command: Callable[[Path], list[str | Path]]
    env: Callable[[Path], dict[str, str]]
    home: str = ""  # its folder in tests/upstreams; default: the name

    @property
    def python(self) -> Path:
        """The interpreter of its environment; `PENSTOCK_TEST_<NAME>_PYTHON` overrides it."""
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


def shared(recipe: Recipe, folder: Path, owner_pid: int) -> Upstream:
    """The one server of this test run, started by whoever of its workers asks first.

    `folder` is common to the run's workers; the server lives until the process `owner_pid` ends.
    """
    folder.mkdir(parents=True, exist_ok=True)
    known = folder / f"{recipe.name}.json"
    with (folder / f"{recipe.name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not known.exists():
            known.write_text(json.dumps(_start(recipe, folder, owner_pid)))
    log = folder / f"{recipe.name}.log"
    servers.LOGS[recipe.name] = log
    return Upstream(json.loads(known.read_text()), log, folder / f"{recipe.name}.tools")


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
            "PYTHONPATH": "",  # its own packages, not ours
            "PYTHONDONTWRITEBYTECODE": "1",
        },
    )
    text = servers.await_log(process, _READY, _START_TIMEOUT_S)
    found = _URL.search(text)
    if found is None:
        raise RuntimeError(f"no address in the server's log:\n{text}")
    return found.group(1)
