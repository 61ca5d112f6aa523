"""`guard.py COMMAND…`: run the command until standard input closes.

The process that starts this script holds the other end of a pipe. It closes the pipe to stop the
command. When that process is killed, the system closes the pipe, so no server outlives it. The
script imports the standard library only.
"""

from __future__ import annotations

import os
import subprocess
import sys
import threading

STOP_TIMEOUT_S = 10.0


def main(command: list[str]) -> int:
    """The command's exit code; a command that does not stop in time is killed."""
    # The command inherits the sockets and locks that this script was given.
    child = subprocess.Popen(command, stdin=subprocess.DEVNULL, close_fds=False)

    def stop() -> None:
        while os.read(0, 1):
            pass
        child.terminate()
        try:
            child.wait(STOP_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            child.kill()

    threading.Thread(target=stop, daemon=True).start()
    return child.wait()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
