"""`python -m support.dies_at <Step> <before|after> <n> <signal>`: a connector that is hurt there.

At the n-th write of that kind the process gets the signal: SIGKILL ends it, SIGSTOP lets it sleep
until somebody wakes it up.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Awaitable, Callable
from typing import Any

from penstock.service import main
from penstock_connector.service import ConnectorService
from support.steps import Step


def hurt_at(step: Step, when: str, times: int, number: int) -> None:
    """Hurt this process before or after its n-th write of that kind."""
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
    hurt_at(Step[sys.argv[1]], sys.argv[2], int(sys.argv[3]), signal.Signals[sys.argv[4]])
    main(ConnectorService)
