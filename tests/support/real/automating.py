"""The automations service as a separate process that a test can stop or kill, also at a write."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from typing import Any, Self

import httpx
import orjson

from support.drive.waiting import eventually
from support.real.forked import Forked
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
COUNTED = (
    "delivery.", "raw.", "$KV.deliveries.", "schedule.", "deadletter.", "$KV.runs.", "command."
)

async def dying(self, message, *arguments):
    global left
    if message.subject.startswith(COUNTED):
        left -= 1
        if left == 0:
            os.kill(os.getpid(), signal.SIGKILL)
    return await publish(self, message, *arguments)

Publisher.publish = dying
del sys.argv[1:]  # a service takes no arguments
main(AutomationsService)
"""


@dataclass(slots=True)
class AutomationsProcess:
    """A running automations service."""

    process: Forked

    async def kill(self) -> None:
        """Send SIGKILL."""
        self.process.kill()
        await self.process.ended()

    async def stop(self) -> int:
        """Send SIGTERM; return the exit code."""
        self.process.terminate()
        return await self.process.ended()


@asynccontextmanager
async def automations_process(
    nats_url: str, *, dies_before: int | None = None, service: str = "automations", **settings: Any
) -> AsyncIterator[AutomationsProcess]:
    """Run the service, or another service; yield when it is ready.

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
    program = ["-m", f"penstock_{service}"] if dies_before is None else ["-c", _DIES]
    arguments = [] if dies_before is None else [str(dies_before)]
    process = Forked([*program, *arguments], {**os.environ, **variables})
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

            await eventually(ready, 30, f"the service {service}")
        yield made
    finally:
        await made.kill()


class KeptProcess:
    """The service as a process that is started again after each kill."""

    def __init__(self, nats_url: str, **settings: Any) -> None:
        self._nats_url = nats_url
        self._settings = settings
        self._now: AsyncExitStack | None = None
        self._starting: asyncio.Task[None] | None = None

    async def __aenter__(self) -> Self:
        await self._start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._started()
        await self._end()

    async def kill(self) -> None:
        """Send SIGKILL as soon as the process is ready, and begin to start the next one."""
        await self._started()
        await self._end()
        self._starting = asyncio.create_task(self._start())

    async def _start(self) -> None:
        self._now = AsyncExitStack()
        await self._now.enter_async_context(automations_process(self._nats_url, **self._settings))

    async def _started(self) -> None:
        if self._starting is not None:
            await self._starting
            self._starting = None

    async def _end(self) -> None:
        assert self._now is not None
        await self._now.aclose()


def _text(value: Any) -> str:
    return value if isinstance(value, str) else orjson.dumps(value).decode()
