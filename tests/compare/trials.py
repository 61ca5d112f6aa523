"""Puts one server to the tests, as a stranger would: with the commands of penstock-conformance."""

from __future__ import annotations

import asyncio
import importlib.metadata
import json
import shutil
import subprocess
import sys
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from compare.rivals import VENVS, Rival
from penstock.contract import VERSION
from penstock_conformance.agent import AGENTS
from penstock_conformance.chaos.server import Server
from support.real.ports import free_port

_BIN: Final = Path(sys.executable).parent
_START_S: Final = 120.0
_CONFIG: Final = """\
agents:
  - id: scripted
    protocol: agno
    url: http://127.0.0.1:{port}
    agent: scripted
"""


@dataclass(frozen=True, slots=True)
class Extent:
    """How much is tried; the same for every server."""

    seed: int
    rounds: int
    patience_s: float


def lacking(rival: Rival) -> str | None:
    """Return why a server cannot be tried here, or None."""
    if not (VENVS / rival.environment / "bin" / "python").exists():
        return f"its environment is not there: `make compare` could not make {rival.environment}"
    absent = [each for each in rival.programs if shutil.which(each) is None]
    return f"it needs {', '.join(absent)} on the PATH" if absent else None


def versions(rival: Rival) -> str:
    """Return the packages of a server with their versions."""
    [site] = (VENVS / rival.environment).glob("lib/python*/site-packages")
    found = {each.name: each.version for each in importlib.metadata.distributions(path=[str(site)])}
    ours = [f"Penstock {VERSION}"] if rival.protocol == "penstock" else []
    return ", ".join([*ours, *(f"{name} {found[name]}" for name in rival.packages)])


async def kill(rival: Rival, extent: Extent, folder: Path) -> dict[str, Any]:
    """Kill a server again and again; return the report of `chaos`.

    Raises RuntimeError if there is no report.
    """
    async with _beside(rival, folder) as names:
        report = folder / "chaos.json"
        port, beside_port = names["port"], names["beside_port"]
        url = f"http://127.0.0.1:{beside_port if rival.url_of_beside else port}"
        command = [
            *(_BIN / "penstock-conformance", "chaos"),
            *("--command", rival.command.format_map(names)),
            *("--url", url, "--ready", f"http://127.0.0.1:{port}{rival.ready}"),
            *("--protocol", rival.protocol, "--agent", rival.agent),
            *("--seed", extent.seed, "--rounds", extent.rounds),
            *("--patience", extent.patience_s, "--counter-port", names["counter_port"]),
            *("--json", report, "--frames", folder / "frames"),
            *(["--go-on"] if rival.goes_on else []),
        ]
        report.unlink(missing_ok=True)
        await asyncio.to_thread(_run, command)
    if not report.exists():
        raise RuntimeError("`chaos` had no result: see above")
    found: dict[str, Any] = json.loads(report.read_text("utf-8"))
    return found


async def check(rival: Rival, folder: Path) -> dict[str, Any] | None:
    """Return the report of the statements that a server keeps, or None without statements."""
    if not rival.conformance:
        return None
    async with _beside(rival, folder) as names:
        url = f"http://127.0.0.1:{names['port']}"
        command, log = rival.command.format_map(names), folder / "server.log"
        report = folder / "conformance.json"
        async with Server(command, url + rival.ready, log=log, env={}) as server:
            await server.start(_START_S)
            tool = _BIN / "penstock-conformance"
            await asyncio.to_thread(
                _run, [tool, url, "--scripted", *rival.conformance, "--json", report]
            )
    found: dict[str, Any] = json.loads(report.read_text("utf-8"))
    return found


def _run(command: Sequence[object]) -> None:
    subprocess.run([str(each) for each in command], check=False)


@asynccontextmanager
async def _beside(rival: Rival, folder: Path) -> AsyncIterator[dict[str, str]]:
    """Start what is not killed; yield what the placeholders of commands stand for."""
    shutil.rmtree(folder, ignore_errors=True)
    data = folder / "data"
    (data / "beside").mkdir(parents=True)
    config = folder / "penstock.yaml"
    ports = ("port", "beside_port", "counter_port", "database_port", "redis_port")
    free = {name: str(free_port()) for name in ports}
    agents_port = free["port" if rival.url_of_beside else "beside_port"]
    config.write_text(_CONFIG.format(port=agents_port), "utf-8")
    names = {
        "agents": str(AGENTS),
        "bin": str(VENVS / rival.environment / "bin"),
        "config": str(config),
        "data": str(data),
        "here": str(Path(__file__).parent),
        "penstock": str(_BIN / "penstock"),
        **free,
    }
    if rival.beside is None:
        yield names
        return
    command, log = rival.beside.command.format_map(names), folder / "beside.log"
    ready = f"http://127.0.0.1:{free['beside_port']}{rival.beside.ready}"
    async with Server(command, ready, log=log, env={}) as beside:
        await beside.start(_START_S)
        yield names
