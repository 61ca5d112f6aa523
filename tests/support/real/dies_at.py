"""A connector that gets a signal at a given write.

`python -m support.real.dies_at <Step> <before|after> <n> <signal> <seconds>`

The process gets the signal at its n-th write of that kind. SIGKILL ends the process; SIGSTOP pauses
it until it gets SIGCONT. The times that the process writes are `seconds` ahead.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime, timedelta
from typing import Any

from penstock.bus import messages
from support.drive.steps import Step


def clock_ahead(seconds: float) -> None:
    """Shift the clock of the times that this process writes.

    The modules that have imported the clock get the shifted one, too.
    """
    real = messages.now

    def now() -> str:
        return (datetime.now(UTC) + timedelta(seconds=seconds)).isoformat(timespec="milliseconds")

    for module in list(sys.modules.values()):
        if getattr(module, "now", None) is real:
            module.__dict__["now"] = now


def hurt_at(step: Step, when: str, times: int, number: int) -> None:
    """Send the signal to this process before or after its n-th write of that kind."""
    left = times

    def reached() -> None:
        if left == 0:
            os.kill(os.getpid(), number)

    async def around(write: Callable[[], Awaitable[Any]]) -> Any:
        nonlocal left
        left -= 1
        if when == "before":
            reached()
            return await write()
        result = await write()
        reached()
        return result

    step.patch(around)


if __name__ == "__main__":
    clock_ahead(float(sys.argv[5]))
    from penstock.service import main
    from penstock_connector.service import ConnectorService

    hurt_at(Step[sys.argv[1]], sys.argv[2], int(sys.argv[3]), signal.Signals[sys.argv[4]])
    del sys.argv[1:]  # a service takes no arguments
    main(ConnectorService)
