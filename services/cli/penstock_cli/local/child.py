"""Start a server as a child process. The server logs to a file, and ends when this process ends."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Self

from penstock_cli.local import guard

_TAIL_LINES = 8
_TAIL_BYTES = 64 * 1024


class StartFailed(Exception):
    """The error for a server that `penstock up` needs and that cannot be started. The text says
    what to do."""


class Child:
    """A running server. The server's parent process is `guard.py`, which stops the server if this
    process is killed."""

    def __init__(
        self, name: str, process: asyncio.subprocess.Process, log: Path, log_start: int
    ) -> None:
        self.name = name
        self.log = log
        self._process = process
        self._log_start = log_start  # the size of the log before this process was started

    @classmethod
    async def start(
        cls,
        name: str,
        command: Sequence[str | Path],
        *,
        log: Path,
        pass_fds: Sequence[int] = (),
        env: Mapping[str, str] | None = None,
    ) -> Self:
        """Start a server and append the server's output to `log`. Raises OSError."""
        log.parent.mkdir(parents=True, exist_ok=True)
        with log.open("ab") as output:
            # The size is read before the process starts. If the size was read later, a process that
            # fails at once could write its error before, and `tail` would skip this error.
            log_start = log.stat().st_size
            process = await asyncio.create_subprocess_exec(
                *(sys.executable, "-I", "-S", guard.__file__, *command),
                stdin=subprocess.PIPE,
                stdout=output,
                stderr=subprocess.STDOUT,
                pass_fds=pass_fds,
                env=env,
                # Ctrl-C signals all processes of the terminal's session. The child has its own
                # session, so that it runs until Penstock's services have drained.
                start_new_session=True,
            )
        return cls(name, process, log, log_start)

    async def ended(self) -> int:
        """Wait until the server has ended, and return its exit code."""
        return await self._process.wait()

    def tail(self) -> str:
        with self.log.open("rb") as file:
            file.seek(max(self._log_start, self.log.stat().st_size - _TAIL_BYTES))
            lines = file.read().decode(errors="replace").splitlines()
        return "\n".join(f"  {line}" for line in lines[-_TAIL_LINES:])

    def failure(self, what: str) -> StartFailed:
        return StartFailed(f"{self.name} {what}. Its last lines in {self.log}:\n{self.tail()}")

    def kill(self) -> None:
        """Kill the server and its guard at once, as a crash ends them."""
        if self._process.returncode is not None:
            return  # its number may be that of another process by now
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)

    async def stop(self) -> None:
        if self._process.stdin is not None:
            self._process.stdin.close()
        try:
            await asyncio.wait_for(self._process.wait(), guard.STOP_TIMEOUT_S + 2)
        except TimeoutError:
            self._process.kill()
            await self._process.wait()
