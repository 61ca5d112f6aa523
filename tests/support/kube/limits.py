"""The memory limit of a container: a cgroup whose process is killed when it takes more."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final

# cgroups of version 1 have a tree for memory alone; those of version 2 have one tree.
_V2: Final = Path("/sys/fs/cgroup")
_V1: Final = _V2 / "memory"
_JOIN: Final = (
    "import os, sys\n"
    "with open(sys.argv[1], 'w') as file: file.write(str(os.getpid()))\n"
    "os.execv(sys.argv[2], sys.argv[2:])"
)


class MemoryLimits:
    """Makes cgroups below one folder, which is of this test run alone."""

    def __init__(self, folder: Path, file: str) -> None:
        self._folder = folder
        self._file = file

    def prefix(self, name: str, limit_bytes: int) -> list[str]:
        """Return what stands before a command so that its process has this limit."""
        group = self._folder / name.replace(" ", "-")
        group.mkdir(exist_ok=True)
        (group / self._file).write_text(str(limit_bytes))
        return [sys.executable, "-c", _JOIN, str(group / "cgroup.procs")]

    def close(self) -> None:
        """Remove the cgroups, whose processes have ended."""
        for group in (*self._folder.iterdir(), self._folder):
            if group.is_dir():
                with suppress(OSError):
                    group.rmdir()


@contextmanager
def memory_limits() -> Iterator[MemoryLimits | None]:
    """Yield cgroups for the pods of a test; None if this user may not make them."""
    v1 = (_V1 / "memory.limit_in_bytes").exists()
    folder = (_V1 if v1 else _V2) / f"penstock-{os.getpid()}"
    try:
        folder.mkdir()
    except OSError:
        yield None
        return
    made = MemoryLimits(folder, "memory.limit_in_bytes" if v1 else "memory.max")
    try:
        if not v1:
            (folder / "cgroup.subtree_control").write_text("+memory")
        yield made
    except OSError as error:
        raise RuntimeError(f"no cgroups with a limit of memory: {error}") from error
    finally:
        made.close()


def peak_bytes(pid: int) -> int:
    """Return the most memory that a process had resident."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    (found,) = (line for line in lines if line.startswith("VmHWM:"))
    return int(found.split()[1]) * 1024
