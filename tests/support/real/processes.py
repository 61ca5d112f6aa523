"""The resources of a process, as the kernel counts them: memory, open files, threads."""

from __future__ import annotations

from pathlib import Path

from support.real.forked import Forked
from support.real.servers import Process


def pid_of(process: Process) -> int:
    """Return the process id of the server itself, below its supervisor if it has one."""
    if isinstance(process.popen, Forked) or process.kept:
        return process.popen.pid
    children = Path(f"/proc/{process.popen.pid}/task").glob("*/children")
    [pid] = " ".join(path.read_text() for path in children).split()
    return int(pid)


def rss_bytes(pid: int) -> int:
    """Return the resident memory."""
    return _status_kib(pid, "VmRSS") * 1024


def peak_rss_bytes(pid: int) -> int:
    """Return the highest resident memory since the start or the last `forget_peak`."""
    return _status_kib(pid, "VmHWM") * 1024


def forget_peak(pid: int) -> None:
    """Reset the peak."""
    Path(f"/proc/{pid}/clear_refs").write_text("5")


def threads(pid: int) -> int:
    """Return the number of threads."""
    return _status_kib(pid, "Threads")


def open_files(pid: int) -> int:
    """Return the number of file descriptors in use: files, sockets, pipes."""
    return sum(1 for _ in Path(f"/proc/{pid}/fd").iterdir())


def _status_kib(pid: int, name: str) -> int:
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith(f"{name}:"):
            return int(line.split()[1])
    raise LookupError(f"no {name} of process {pid}")
