"""The automations service as a separate process that a test can stop or kill, also at a write."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

import httpx
import orjson

from support.drive.waiting import eventually
from support.real.ports import free_port

# The script counts the writes that belong to deliveries, and sends SIGKILL to itself before the
# n-th write.
_DIES = """
import os, signal, sys
from penstock.bus.write.publisher import Publisher
from penstock.service import main
from penstock_automations.service import AutomationsService

left = int(sys.argv[1])
publish = Publisher.publish
COUNTED = ("delivery.", "raw.", "$KV.deliveries.", "schedule.", "deadletter.")

async def dying(self, message, *arguments):
    global left
    if message.subject.startswith(COUNTED):
        left -= 1
        if left == 0:
            os.kill(os.getpid(), signal.SIGKILL)
    return await publish(self, message, *arguments)

Publisher.publish = dying
main(AutomationsService)
"""


@dataclass(slots=True)
class AutomationsProcess:
    """A running automations service."""

    process: asyncio.subprocess.Process

    async def kill(self) -> None:
        """Send SIGKILL."""
        if self.process.returncode is None:
            self.process.send_signal(signal.SIGKILL)
        await self.process.wait()

    async def stop(self) -> int:
        """Send SIGTERM; return the exit code."""
        self.process.send_signal(signal.SIGTERM)
        return await self.process.wait()


@asynccontextmanager
async def automations_process(
    nats_url: str, *, dies_before: int | None = None, **settings: Any
) -> AsyncIterator[AutomationsProcess]:
    """Run the service; yield when it is ready.

    `dies_before`: the number of the write before which the process kills itself.
    """
    probe_port = free_port()
    given = {
        "config": os.devnull,
        "nats_url": nats_url,
        "probe_port": probe_port,
        "port": 0,
        "webhook_allow_hosts": "127.0.0.1",
        "deliver_ack_wait_s": 1,
        "log_level": "warning",
        **settings,
    }
    variables = {f"PENSTOCK_{name.upper()}": _text(value) for name, value in given.items()}
    program = ["-m", "penstock_automations"] if dies_before is None else ["-c", _DIES]
    arguments = [] if dies_before is None else [str(dies_before)]
    process = await asyncio.create_subprocess_exec(
        sys.executable, *program, *arguments, env={**os.environ, **variables}
    )
    made = AutomationsProcess(process)
    try:
        async with httpx.AsyncClient() as http:

            async def ready() -> bool:
                if process.returncode is not None:
                    raise RuntimeError(f"it ended with {process.returncode}")
                try:
                    answer = await http.get(f"http://127.0.0.1:{probe_port}/readyz")
                except httpx.TransportError:
                    return False
                return answer.status_code == 200

            await eventually(ready, 30, "the automations service")
        yield made
    finally:
        await made.kill()


def _text(value: Any) -> str:
    return value if isinstance(value, str) else orjson.dumps(value).decode()
