"""`keeper.py`: end the servers of one test process when that process has ended.

Standard input names the servers: `+PID` is a line for a server that has begun, `-PID` for one that
has ended. The test process holds the other end of the pipe. The kernel closes it when that process
ends, also when it is killed. This file uses the standard library only, because it runs as a script.
"""

from __future__ import annotations

import contextlib
import os
import signal
import sys
from collections.abc import Iterable


def main(lines: Iterable[str]) -> None:
    # Ctrl-C reaches the whole process group, and this process must outlive the test process.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    running: set[int] = set()
    for line in lines:
        pid = int(line[1:])
        if line.startswith("+"):
            running.add(pid)
        else:
            running.discard(pid)
    for pid in running:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


if __name__ == "__main__":
    main(sys.stdin)
