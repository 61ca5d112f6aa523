"""`guard.py COMMAND…`: run the command until standard input closes.

Whoever starts it holds the other end of a pipe there. It closes the pipe to stop the command; if
it is killed, the system does, so that no server outlives the process that wanted it. Standard
library only: it runs as a script.
"""

from __future__ import annotations

import os
import subprocess
import sys
import threading

STOP_TIMEOUT_S = 10.0


def main(command: list[str]) -> int:
    """The command's exit code; a command that does not stop in time is killed."""
    # sockets and locks that we were handed are for the command
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
