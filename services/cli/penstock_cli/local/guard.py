"""Run a command until standard input is closed: `guard.py COMMAND…`.

Standard input is a pipe, and the parent process has the other end of the pipe. The parent process
closes the pipe to stop the command. If the parent process is killed, the system closes the pipe, so
the command ends, too. This script imports only the standard library.
"""

from __future__ import annotations

import os
import subprocess
import sys
import threading

STOP_TIMEOUT_S = 10.0


def main(command: list[str]) -> int:
    """Run the command and return its exit code; kill the command if it does not stop in time."""
    # The command must inherit the sockets and locks that this script has inherited, so no file is
    # closed.
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
