"""The approvals service as a separate process that a test can kill, also at an exact write."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import AsyncIterator, Coroutine
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx

from support.drive.waiting import eventually
from support.real.forked import Forked
from support.real.ports import free_port

# The script counts the writes to the bus from the call's begin on, and sends SIGKILL to itself
# before the n-th write.
_DIES = """
import os, signal, sys
from penstock.bus.write.publisher import Publisher
from penstock.service import main
from penstock_approvals.lifecycle.decisions import Approvals
from penstock_approvals.service import ApprovalsService

method, write = sys.argv[1], int(sys.argv[2])
left = None
call, publish = getattr(Approvals, method), Publisher.publish

async def arming(self, *arguments):
    global left
    left = write
    return await call(self, *arguments)

async def dying(self, *arguments):
    global left
    if left is not None:
        left -= 1
        if left == 0:
            os.kill(os.getpid(), signal.SIGKILL)
    return await publish(self, *arguments)

setattr(Approvals, method, arming)
Publisher.publish = dying
del sys.argv[1:]  # a service takes no arguments
main(ApprovalsService)
"""


@dataclass(slots=True)
class ApprovalsProcess:
    """A running approvals service, and its URL."""

    process: Forked
    url: str

    def send(self, number: signal.Signals) -> None:
        """Send SIGKILL, SIGSTOP or SIGCONT."""
        self.process.send_signal(number)

    async def dies_of(self, request: Coroutine[Any, Any, object]) -> None:
        """Send a request in which the process kills itself, so that nobody answers."""
        sent = asyncio.create_task(request)
        assert await self.process.ended() == -signal.SIGKILL
        sent.cancel()
        await asyncio.gather(sent, return_exceptions=True)

    async def kill(self) -> None:
        """Send SIGKILL, and wait for the end."""
        self.process.kill()
        await self.process.ended()


@asynccontextmanager
async def approvals_process(
    nats_url: str,
    *,
    dies_in: tuple[str, int] | None = None,
    outbox_s: float = 0.2,
    ack_wait_s: float = 30,
    port: int | None = None,
    policy: Path | None = None,
) -> AsyncIterator[ApprovalsProcess]:
    """Run the service; yield when it is ready.

    With `dies_in`, the process kills itself in that method, before its n-th write.
    """
    port, probe_port = port or free_port(), free_port()
    command = (
        ["-m", "penstock_approvals"]
        if dies_in is None
        else ["-c", _DIES, dies_in[0], str(dies_in[1])]
    )
    given = {
        "CONFIG": os.devnull,
        "NATS_URL": nats_url,
        "PORT": port,
        "PROBE_PORT": probe_port,
        "OUTBOX_S": outbox_s,
        "ACK_WAIT_S": ack_wait_s,
        "LOG_LEVEL": "warning",
        **({} if policy is None else {"POLICY": policy}),
    }
    process = Forked(
        command, os.environ | {f"PENSTOCK_{name}": str(value) for name, value in given.items()}
    )
    made = ApprovalsProcess(process, f"http://127.0.0.1:{port}")
    try:
        async with httpx.AsyncClient() as http:

            async def ready() -> bool:
                assert process.returncode is None, "the approvals process has ended"
                try:
                    answer = await http.get(f"http://127.0.0.1:{probe_port}/readyz")
                except httpx.HTTPError:
                    return False
                return answer.is_success

            await eventually(ready, 30, "the approvals process")
        yield made
    finally:
        await made.kill()
