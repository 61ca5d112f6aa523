"""`supervisor.py PID COMMAND…`: run the command until the process PID has ended, or until SIGTERM.

So a killed test run leaves no server behind, and a server that all workers of a run share exists as
long as the run. This file uses the standard library only, because it runs as a script.
"""

from __future__ import annotations

import os
import select
import signal
import subprocess
import sys

_CHECK_EVERY_S = 1.0
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
    signals, wakes = os.pipe()
    os.set_blocking(wakes, False)
    # `Popen.wait` with a timeout looks at the child up to 20 times per second. A signal that is
    # written into a pipe lets this process sleep until the child or the test run has ended.
    signal.set_wakeup_fd(wakes)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    child = subprocess.Popen(command)
    signal.signal(signal.SIGTERM, lambda *_: child.terminate())
    # Ctrl-C reaches the whole process group. The supervisor ignores it, because the test run
    # decides when the server ends.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    while child.poll() is None and alive(owner_pid):
        if select.select([signals], [], [], _CHECK_EVERY_S)[0]:
            os.read(signals, 4096)
    if child.poll() is None:
        child.terminate()
        try:
            child.wait(_STOP_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            child.kill()
    return child.wait()


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1]), sys.argv[2:]))
