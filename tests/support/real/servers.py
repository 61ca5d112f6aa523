"""Server processes of tests. Each has a log file and ends with the test run.

A failed test shows the logs.
"""

from __future__ import annotations

import atexit
import fcntl
import json
import os
import subprocess
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import IO

from support.drive.waiting import wait_for
from support.real.forked import Forked

_SUPERVISOR = Path(__file__).with_name("supervisor.py")
_KEEPER = Path(__file__).with_name("keeper.py")
_STOP_TIMEOUT_S = 15
_TAIL_LINES = 40

_KEEPER_LOCK = threading.Lock()  # tests start and stop servers in several threads

# The logs of the servers that this process uses. A failed test shows what they wrote during it.
LOGS: dict[str, Path] = {}

# All started processes and their owners. A server may outlive the fixture that started it, and
# Python would warn about a Popen that is no longer referenced.
_STARTED: list[tuple[subprocess.Popen[bytes], int]] = []


@atexit.register
def _leave_none_behind() -> None:
    for popen, owner_pid in _STARTED:
        if popen.poll() is not None:
            continue
        if owner_pid == os.getpid():
            Process(popen, Path(os.devnull)).stop()
        else:
            # The supervisor ends the server when its owner ends. With a return code, the Popen does
            # not warn that the process still runs.
            popen.returncode = 0


@dataclass(frozen=True, slots=True)
class SharedRun:
    """A run of the tests, whose workers share servers. `owner_pid` is a process that outlives them.

    All workers have the same `folder`.
    """

    folder: Path
    owner_pid: int

    def once(self, name: str, start: Callable[[Path], str]) -> str:
        """Return what `start(folder)` has returned for the first worker that asked for `name`."""
        self.folder.mkdir(parents=True, exist_ok=True)
        known = self.folder / f"{name}.json"
        with (self.folder / f"{name}.lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            if not known.exists():
                known.write_text(json.dumps(start(self.folder)))
        LOGS[name] = self.folder / f"{name}.log"
        found: str = json.loads(known.read_text())
        return found


@dataclass(slots=True)
class Process:
    """A running server. It ends with `stop`, or when the process `owner_pid` has ended."""

    popen: subprocess.Popen[bytes] | Forked
    log: Path
    kept: bool = False  # whether the keeper ends the process if this process is killed

    def stop(self) -> None:
        """Ask the process to end, and wait for its end."""
        self.popen.terminate()
        try:
            self.wait(_STOP_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            self.popen.kill()
            self.wait()

    def wait(self, timeout_s: float | None = None) -> None:
        """Wait until the process has ended.

        Raises:
            subprocess.TimeoutExpired: the process has not ended in time.
        """
        self.popen.wait(timeout_s)
        if self.kept:
            self.kept = False
            _tell_keeper(f"-{self.popen.pid}")


def start(
    name: str,
    command: Sequence[str | Path],
    *,
    log: Path,
    owner_pid: int,
    cwd: Path | None = None,
    env: Mapping[str, str] | None = None,
) -> Process:
    """Start `command` under a supervisor that ends it when the process `owner_pid` has ended."""
    LOGS[name] = log
    with log.open("ab") as output:
        popen = subprocess.Popen(
            [sys.executable, "-I", "-S", _SUPERVISOR, str(owner_pid), *command],
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            cwd=cwd,
            env={**os.environ, **(env or {})},
        )
    _STARTED.append((popen, owner_pid))
    return Process(popen, log)


def start_kept(name: str, command: Sequence[str | Path], *, log: Path) -> Process:
    """Start `command`, which ends with this process.

    All these programs share one process that ends them if this process is killed. Starting a
    supervisor for each would take more CPU than starting a nats-server.
    """
    LOGS[name] = log
    with log.open("ab") as output:
        popen = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.STDOUT
        )
    _tell_keeper(f"+{popen.pid}")
    _STARTED.append((popen, os.getpid()))
    return Process(popen, log, kept=True)


def _tell_keeper(line: str) -> None:
    with _KEEPER_LOCK:
        pipe = _keeper(os.getpid())
        pipe.write(f"{line}\n".encode())
        pipe.flush()


@cache
def _keeper(owner_pid: int) -> IO[bytes]:
    """Start the keeper of this process, whose id is `owner_pid`; return the keeper's input."""
    popen = subprocess.Popen(
        [sys.executable, "-I", "-S", _KEEPER], stdin=subprocess.PIPE, stdout=subprocess.DEVNULL
    )
    assert popen.stdin is not None
    popen.returncode = 0  # the keeper ends after this process, so the Popen must not warn
    atexit.register(popen.stdin.close)
    return popen.stdin


def start_python(
    name: str, program: Sequence[str], *, log: Path, env: Mapping[str, str]
) -> Process:
    """Start a program of this interpreter, which ends with this process. See `Forked`."""
    LOGS[name] = log
    return Process(Forked(program, {**os.environ, **env}, log), log)


def await_log(process: Process, probe: str, timeout_s: float) -> str:
    """Return the log when it contains `probe`; an error includes the log."""

    def ready() -> str | None:
        text = process.log.read_text(errors="replace")
        if probe in text:
            return text
        if process.popen.poll() is not None:
            raise RuntimeError(f"the server ended before it was ready:\n{tail(process.log)}")
        return None

    try:
        return wait_for(ready, timeout_s, f"{probe!r} in the server's log")
    except TimeoutError as error:
        process.stop()
        raise RuntimeError(f"{error}\n{tail(process.log)}") from error


def tail(log: Path, offset: int = 0) -> str:
    """Return the last lines of the log after `offset` bytes."""
    try:
        with log.open("rb") as file:
            file.seek(offset)
            lines = file.read().decode(errors="replace").splitlines()
    except FileNotFoundError:
        return ""
    return "\n".join(lines[-_TAIL_LINES:])
