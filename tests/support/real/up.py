"""`penstock up` as a process."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from support.drive.waiting import wait_for
from support.real import servers
from support.real.forked import Forked, finished
from support.real.ports import free_port

FORKED = ("-m", "penstock_cli")
AS_A_COMMAND = (sys.executable, *FORKED)


def shared(run: servers.SharedRun, name: str, *options: str, **environment: str) -> str:
    """Return the URL of the one `penstock up` of this name of the test run."""

    def start(folder: Path) -> str:
        up = Up(folder / name, *options)
        process = servers.start(
            name,
            [*AS_A_COMMAND, *up.arguments],
            log=folder / f"{name}.log",
            owner_pid=run.owner_pid,
            env=environment,
        )
        servers.await_log(process, f"Penstock is at {up.url}.", 100)
        return up.url

    return run.once(name, start)


class Up:
    """A `penstock up` that keeps its data and its port over restarts.

    Its process is forked from one that has imported everything (see `Forked`), or started as the
    command `program`, such as `AS_A_COMMAND`. See also `of_run`.
    """

    def __init__(
        self,
        folder: Path,
        *options: str,
        program: Sequence[str | Path] | None = None,
    ) -> None:
        self.data = folder / "data"
        self.url = f"http://127.0.0.1:{free_port()}"
        self._log = folder / "up.log"
        port = self.url.rsplit(":", 1)[1]
        self._program = program
        self.arguments = ["up", "--data", str(self.data), "--port", port, "--probe-port", "0"]
        self.arguments += options
        self.process: subprocess.Popen[bytes] | Forked | None = None

    @classmethod
    def of_run(cls, run: servers.SharedRun, name: str, url: str) -> Up:
        """Return the one of this name that `shared` has started, whose process stays as it is."""
        made = cls(run.folder / name)
        made.url, made._log = url, run.folder / f"{name}.log"
        return made

    def begin(self, **environment: str) -> None:
        """Start the process without waiting."""
        with self._log.open("wb") as log:
            variables = os.environ | environment
            if self._program is None:
                program = [*FORKED, *self.arguments]
                self.process = Forked(program, variables, self._log)
            else:
                command = [*self._program, *self.arguments]
                self.process = subprocess.Popen(command, stdout=log, stderr=log, env=variables)

    def start(self, **environment: str) -> None:
        """Start the process; return when it reports that it is ready."""
        self.begin(**environment)
        wait_for(self._greeted, 100, "the greeting of penstock up")

    def _greeted(self) -> bool:
        assert self.process is not None
        assert self.process.poll() is None, self.log()
        return f"Penstock is at {self.url}." in self.log()

    def log(self) -> str:
        """Return the printed output."""
        return self._log.read_text()

    def signal(self, number: int) -> int:
        """Send a signal; return the exit code."""
        assert self.process is not None
        self.process.send_signal(number)
        return self.process.wait(30)

    def penstock(self, *arguments: str) -> tuple[int, list[dict[str, Any]]]:
        """Run a client command with `--json`; return its exit code and its output."""
        done = finished([*FORKED, *arguments, "--url", self.url, "--json"], {})
        assert "connection lost" not in done.stderr, done.stderr
        return done.returncode, [json.loads(line) for line in done.stdout.splitlines()]
