"""Python programs of tests as separate processes that need no time for their imports.

The imports of a service or of `penstock` take 0.7 to 1.6 s of CPU, and a test run starts hundreds
of them. So a test run has one server process that has imported them all, and new processes are
forked from it.
A forked process has its own pid, memory and connections, and gets signals as any other process.
"""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import gc
import multiprocessing
import os
import runpy
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Mapping, Sequence
from multiprocessing import connection, forkserver, reduction
from pathlib import Path
from typing import Any

_FORKS = multiprocessing.get_context("forkserver")
_FORKS.set_forkserver_preload(
    [
        "penstock_connector.service",
        "penstock_normalizer.service",
        "penstock_edge.service",
        "penstock_console.service",
        "penstock_approvals.service",
        "penstock_automations.service",
        "penstock_workflows.service",
        "penstock_cli.local.up",
        "penstock_cli.commands.runs",
        # what they import only where a setting, a rule or a request needs it
        "cel_expr_python",
        "genai_prices.data",
        "httpcore",
        "penstock.tracing.otlp",
        "penstock.web.auth.keys",
        "re2",
        "uvicorn.protocols.websockets.auto",
    ]
)
# The kernel gives an exit code once, and `multiprocessing` looks for the codes of all programs
# whenever it starts one. So only one thread may start or look at a time.
_ALONE = threading.Lock()
_PR_SET_PDEATHSIG = 1


def prepare() -> None:
    """Start the server process, which those that are forked from this process will share.

    `multiprocessing` asks whether the server process still runs as only its parent can.
    """
    forkserver.ensure_running()
    os.register_at_fork(
        after_in_child=lambda: setattr(
            forkserver._forkserver,
            "ensure_running",
            lambda: None,
        )
    )


class Forked:
    """A running program, with the methods of `subprocess.Popen`."""

    def __init__(
        self,
        program: Sequence[str],
        environment: Mapping[str, str],
        log: Path | None = None,
        errors: Path | None = None,
    ) -> None:
        """Start the program. `program` begins with `-m <module>` or `-c <code>`.

        `log` gets what the program writes; None for the output of the test process. `errors` gets
        what it writes to stderr, if that is not to go to `log`, too.
        """
        self._process = _FORKS.Process(
            target=_run,
            args=(
                *(list(program), dict(environment), os.getcwd()),
                *(log or _Output(1), errors or log or _Output(2)),
            ),
            daemon=True,
        )
        with _ALONE:
            self._process.start()
        assert self._process.pid is not None
        self.pid = self._process.pid

    @property
    def returncode(self) -> int | None:
        """The exit code, or the negative number of the signal that ended it; None while it runs."""
        with _ALONE:
            return self._process.exitcode

    def poll(self) -> int | None:
        """Return `returncode`."""
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        """Wait for the end; return the exit code.

        Raises:
            subprocess.TimeoutExpired: the program has not ended within `timeout` seconds.
        """
        if self.returncode is None:
            connection.wait([self._process.sentinel], timeout)
        code = self.returncode
        if code is None:
            raise subprocess.TimeoutExpired(f"process {self.pid}", timeout or 0)
        return code

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


class _Output:
    """The test process's stdout or stderr, which the forked process gets as a descriptor."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor

    def __reduce__(self) -> tuple[Callable[[Any], int], tuple[object]]:
        return _detached, (reduction.DupFd(self._descriptor),)


def _detached(passed: Any) -> int:
    descriptor: int = passed.detach()
    return descriptor


def finished(
    program: Sequence[str], environment: Mapping[str, str], timeout_s: float = 60
) -> subprocess.CompletedProcess[str]:
    """Run a program to its end; return its exit code and its output, as `subprocess.run` does.

    `environment` is added to that of the test.

    Raises:
        subprocess.TimeoutExpired: the program has not ended in time, and was killed.
    """
    with tempfile.TemporaryDirectory() as folder:
        out, err = Path(folder, "out"), Path(folder, "err")
        process = Forked(program, {**os.environ, **environment}, out, err)
        try:
            code = process.wait(timeout_s)
        finally:
            process.kill()
        return subprocess.CompletedProcess(program, code, out.read_text(), err.read_text())


def _run(
    program: list[str],
    environment: dict[str, str],
    folder: str,
    log: Path | int,
    errors: Path | int,
) -> None:
    """Run the program in the forked process.

    The garbage collector skips the imported modules. Otherwise its first full collection would
    write to all their objects, and the kernel would copy their memory: 0.1 s of CPU.
    """
    gc.freeze()
    _end_with_parent()
    for descriptor, to in ((1, log), (2, errors)):
        flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT
        output = os.open(to, flags, 0o644) if isinstance(to, Path) else to
        os.dup2(output, descriptor)
        os.close(output)
    os.chdir(folder)
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
