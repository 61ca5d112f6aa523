"""OpenAI's own clients, each as one process that serves many calls (tests/clients/openai)."""

from __future__ import annotations

import asyncio
import json
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from support.drive.repository import ROOT
from support.real.node import absent

SCRIPTS: Final = ROOT / "tests" / "clients" / "openai"
PYTHON: Final = ROOT / ".penstock" / "venvs" / "openai" / "bin" / "python"
NODE: Final = ROOT / ".penstock" / "node" / "openai"
LANGUAGES: Final = ("python", "javascript")
# Earlier versions, which other packages bring with them.
OLDER: Final = {
    "python 3.52.0": ROOT / ".penstock" / "venvs" / "agno_agui" / "bin" / "python",
    "javascript 6.49.0": ROOT / ".penstock" / "node" / "copilotkit",
}


class Refused(Exception):
    """The client raised an error of this `type`; `body` is OpenAI's object of the error."""

    def __init__(self, raised: dict[str, Any]) -> None:
        super().__init__(f"{raised['type']} {raised['status']}: {raised['error']}")
        self.type, self.status, self.body = raised["type"], raised["status"], raised["error"]


@dataclass(frozen=True)
class OpenAIClient:
    """A running client, which makes one call at a time."""

    process: subprocess.Popen[str]
    url: str

    async def call(self, do: str, **fields: Any) -> Any:
        """Return what the client returned. Raise Refused for its error."""
        result = await asyncio.to_thread(self._call, {"url": self.url, "do": do, **fields})
        if "error" in result:
            raise Refused(result)
        return result["ok"]

    def _call(self, call: dict[str, Any]) -> dict[str, Any]:
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write(json.dumps(call) + "\n")
        self.process.stdin.flush()
        result: dict[str, Any] = json.loads(self.process.stdout.readline())
        return result


@contextmanager
def running(language: str, url: str) -> Iterator[OpenAIClient]:
    """Run the client. Where it is not installed, skip the test, or fail it in CI."""
    place = installed(language)
    command: list[str | Path] = [place, SCRIPTS / "client.py"]
    if language.startswith("javascript"):
        command = ["node", SCRIPTS / "client.mjs", place]
    process = subprocess.Popen(
        [*map(str, command)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    try:
        yield OpenAIClient(process, url.rstrip("/"))
    finally:
        process.communicate(timeout=10)


def installed(language: str) -> Path:
    """Return where the client is. Skip the test if it is not installed, or fail it in CI."""
    is_python = language.startswith("python")
    place = OLDER.get(language, PYTHON if is_python else NODE)
    needs = place if is_python else place / "node_modules" / "openai"
    if not needs.exists() or not (is_python or shutil.which("node")):
        absent(f"OpenAI's client is not installed: {needs} is missing (`make upstreams node`)")
    return place
