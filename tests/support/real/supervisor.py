"""`supervisor.py PID COMMAND…`: run the command until the process PID has ended, or until SIGTERM.

So a killed test run leaves no server behind, and a server that all workers of a run share exists as
long as the run. This file uses the standard library only, because it runs as a script.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys

_CHECK_EVERY_S = 0.2
_STOP_TIMEOUT_S = 10


def alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True


def main(owner_pid: int, command: list[str]) -> int:
    child = subprocess.Popen(command)
    signal.signal(signal.SIGTERM, lambda *_: child.terminate())
    # Ctrl-C reaches the whole process group. The supervisor ignores it, because the test run
    # decides when the server ends.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    while True:
        try:
            return child.wait(_CHECK_EVERY_S)
        except subprocess.TimeoutExpired:
            if alive(owner_pid):
                continue
        child.terminate()
        try:
            return child.wait(_STOP_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            child.kill()
            return child.wait()


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1]), sys.argv[2:]))
