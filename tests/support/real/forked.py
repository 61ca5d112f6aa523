"""Python programs of tests as separate processes that need no time for their imports.

A service's imports take 0.7 s of CPU, and a test run starts hundreds of services. So each test
process has one server process that has imported the services, and new processes are forked from it.
A forked process has its own pid, memory and connections, and gets signals as any other process.
"""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import multiprocessing
import os
import runpy
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

_FORKS = multiprocessing.get_context("forkserver")
_FORKS.set_forkserver_preload(
    [
        "penstock_connector.service",
        "penstock_normalizer.service",
        "penstock_edge.service",
        "penstock_approvals.service",
        "penstock_automations.service",
    ]
)
_PR_SET_PDEATHSIG = 1


class Forked:
    """A running program, with the methods of `subprocess.Popen`."""

    def __init__(
        self, program: Sequence[str], environment: Mapping[str, str], log: Path | None = None
    ) -> None:
        """Start the program. `program` begins with `-m <module>` or `-c <code>`.

        `log` gets what the program writes; None for the output of the test process.
        """
        self._process = _FORKS.Process(
            target=_run, args=(list(program), dict(environment), log), daemon=True
        )
        self._process.start()
        assert self._process.pid is not None
        self.pid = self._process.pid

    @property
    def returncode(self) -> int | None:
        """The exit code, or the negative number of the signal that ended it; None while it runs."""
        return self._process.exitcode

    def poll(self) -> int | None:
        """Return `returncode`."""
        return self._process.exitcode

    def wait(self, timeout: float | None = None) -> int:
        """Wait for the end; return the exit code.

        Raises:
            subprocess.TimeoutExpired: the program has not ended within `timeout` seconds.
        """
        self._process.join(timeout)
        if self._process.exitcode is None:
            raise subprocess.TimeoutExpired(f"process {self.pid}", timeout or 0)
        return self._process.exitcode

    async def ended(self) -> int:
        """Wait for the end without blocking the event loop; return the exit code."""
        end = asyncio.Event()
        loop = asyncio.get_running_loop()
        if self.returncode is None:
            loop.add_reader(self._process.sentinel, end.set)
            try:
                await end.wait()
            finally:
                loop.remove_reader(self._process.sentinel)
        return self.wait()

    def send_signal(self, number: int) -> None:
        """Send a signal, unless the program has ended."""
        if self.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, number)

    def terminate(self) -> None:
        """Send SIGTERM."""
        self.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        """Send SIGKILL."""
        self.send_signal(signal.SIGKILL)


def _run(program: list[str], environment: dict[str, str], log: Path | None) -> None:
    """Run the program in the forked process."""
    _end_with_parent()
    if log is not None:
        output = os.open(log, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
        os.dup2(output, 1)
        os.dup2(output, 2)
    os.environ.clear()
    os.environ.update(environment)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    kind, what, *arguments = program
    sys.argv = [what if kind == "-m" else kind, *arguments]
    paths = environment.get("PYTHONPATH", "").split(os.pathsep)
    sys.path[:0] = [path for path in paths if path and path not in sys.path]
    if kind == "-m":
        runpy.run_module(what, run_name="__main__", alter_sys=True)
    else:
        exec(compile(what, "<program>", "exec"), {"__name__": "__main__"})


def _end_with_parent() -> None:
    """Have the kernel kill this process when the process that forked it ends.

    That process ends with the test process, so a killed test run leaves no service behind.
    """
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
