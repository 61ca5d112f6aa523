"""The approvals service as a process of its own, to be killed; also at an exact step."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass

import httpx

from support.deployment import free_port
from support.waiting import eventually

# The writes to the bus from a decision's arrival on are counted; before one of them, SIGKILL.
_DIES = """
import os, signal, sys
from penstock.bus.publisher import Publisher
from penstock.service import main
from penstock_approvals.decisions import Approvals
from penstock_approvals.service import ApprovalsService

left = None
decide, publish = Approvals.decide, Publisher.publish

async def arming(self, *arguments):
    global left
    left = int(sys.argv[1])
    return await decide(self, *arguments)

async def dying(self, *arguments):
    global left
    if left is not None:
        left -= 1
        if left == 0:
            os.kill(os.getpid(), signal.SIGKILL)
    return await publish(self, *arguments)

Approvals.decide, Publisher.publish = arming, dying
main(ApprovalsService)
"""


@dataclass(slots=True)
class ApprovalsProcess:
    """A running one, and where it answers."""

    process: asyncio.subprocess.Process
    url: str

    def send(self, number: signal.Signals) -> None:
        """SIGKILL, SIGSTOP, SIGCONT."""
        self.process.send_signal(number)

    async def kill(self) -> None:
        """kill -9, and wait for the end."""
        if self.process.returncode is None:
            self.process.kill()
        await self.process.wait()


@asynccontextmanager
async def approvals_process(
    nats_url: str, *, dies_before_write: int | None = None, outbox_s: float = 0.2
) -> AsyncIterator[ApprovalsProcess]:
    """One that is ready; with `dies_before_write` it kills itself before its n-th write."""
    port, probe_port = free_port(), free_port()
    command = (
        ["-m", "penstock_approvals"]
        if dies_before_write is None
        else ["-c", _DIES, str(dies_before_write)]
    )
    given = {
        "CONFIG": os.devnull,
        "NATS_URL": nats_url,
        "PORT": port,
        "PROBE_PORT": probe_port,
        "OUTBOX_S": outbox_s,
        "LOG_LEVEL": "warning",
    }
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        *command,
        env=os.environ | {f"PENSTOCK_{name}": str(value) for name, value in given.items()},
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
