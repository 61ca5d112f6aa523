"""The server under test, as a command that is started, killed and started again."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Final, Self

import httpx

_PROBE_EVERY_S: Final = 0.05
_TAIL_LINES: Final = 15
_ERRORS: Final = 500  # statuses from here on mean that the server is not ready


class ServerFailed(Exception):
    """The error for a server that does not start. The text has the end of its log."""


class Server:
    """A command of a shell. `probe` is a URL that answers when the server is ready.

    Whoever uses the server in `async with` leaves no process behind.
    """

    def __init__(self, command: str, probe: str, *, log: Path, env: Mapping[str, str]) -> None:
        self._command = command
        self._probe = probe
        self._log = log
        self._env = {**os.environ, **env}
        self._process: asyncio.subprocess.Process | None = None
        self._http = httpx.AsyncClient(timeout=2.0, trust_env=False)

    async def __aenter__(self) -> Self:
        """Enter. Raises ServerFailed if another process answers in the place of the server."""
        if await self._answers():
            await self._http.aclose()
            text = f"something answers at {self._probe} before the server was started: stop it, "
            raise ServerFailed(text + "or pass --ready with an address of the server itself")
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.kill()
        await self._http.aclose()

    async def start(self, timeout_s: float) -> float:
        """Start the server, and return after how many seconds it answered.

        Raises:
            ServerFailed: the server has ended, or does not answer within `timeout_s`.
        """
        began_s = time.monotonic()
        with self._log.open("ab") as output:
            self._process = await asyncio.create_subprocess_shell(
                self._command,
                stdin=asyncio.subprocess.DEVNULL,
                stdout=output,
                stderr=asyncio.subprocess.STDOUT,
                env=self._env,
                start_new_session=True,  # so that the whole group can be killed
            )
        while (time_s := time.monotonic() - began_s) < timeout_s:
            if self._process.returncode is not None:
                raise self._failed(f"has ended with status {self._process.returncode}")
            if await self._answers():
                return time_s
            await asyncio.sleep(_PROBE_EVERY_S)
        raise self._failed(f"does not answer at {self._probe} within {timeout_s:g} s")

    async def kill(self) -> None:
        """Kill the server with everything that it has started, as a lost machine would."""
        process, self._process = self._process, None
        if process is None or process.returncode is not None:
            return
        for pid in (*_descendants(process.pid), process.pid):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        await process.wait()

    async def _answers(self) -> bool:
        with contextlib.suppress(httpx.TransportError):
            return (await self._http.get(self._probe)).status_code < _ERRORS
        return False

    def _failed(self, what: str) -> ServerFailed:
        lines = self._log.read_text("utf-8", "replace").splitlines()[-_TAIL_LINES:]
        head = f"the server {what}. Its last lines in {self._log}:"
        return ServerFailed("\n".join([head, *lines]))


def _descendants(pid: int) -> list[int]:
    """Return the processes below one, from Linux's /proc; elsewhere only the group is killed.

    A server may start others in sessions of their own, which are not in its group.
    """
    children: dict[int, list[int]] = {}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            fields = stat.read_text().rpartition(")")[2].split()
            children.setdefault(int(fields[1]), []).append(int(stat.parent.name))
    found = [pid]
    for each in found:
        found += children.get(each, [])
    return found[1:]
