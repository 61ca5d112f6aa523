"""Instances of the workflows service in this process, each of which dies at one of its writes.

To the outside, such a death is the same as that of a killed process: the write is not sent, the
connection closes, and no message is acknowledged any more. It costs no start of a process.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any

from penstock.bus import Bus
from penstock.service import connect
from penstock.settings import Config, Settings
from penstock_workflows.service import WorkflowsService


def dies_before(bus: Bus, write: int, on_death: Callable[[], None]) -> None:
    """Let the connection die before its n-th write from now on; acknowledgements are writes."""
    left = write
    publish, send = bus.publisher.publish, bus.client.publish

    async def counted() -> None:
        nonlocal left
        left -= 1
        if left == 0:
            on_death()
        if left <= 0:
            await asyncio.Event().wait()

    async def dying_publish(message: Any, *arguments: Any, **named: Any) -> Any:
        await counted()
        return await publish(message, *arguments, **named)

    async def dying_send(subject: str, *arguments: Any, **named: Any) -> Any:
        if left <= 0:
            await asyncio.Event().wait()
        if subject.startswith("$JS.ACK"):
            await counted()
        return await send(subject, *arguments, **named)

    bus.publisher.publish = dying_publish  # type: ignore[method-assign]
    bus.client.publish = dying_send  # type: ignore[method-assign]


class Instances:
    """Several instances of the service; `deaths` says how many have died so far."""

    def __init__(self, nats_url: str, config: Config, **settings: Any) -> None:
        given = {
            "nats_url": nats_url,
            "port": 0,
            "drain_s": 0.5,
            "input_ack_wait_s": 0.4,
            **settings,
        }
        self._common = Settings(**given)
        self._given = given
        self._config = config
        self._deaths: asyncio.Queue[WorkflowsService] = asyncio.Queue()
        self._running: set[WorkflowsService] = set()
        self._dead: set[WorkflowsService] = set()  # those of `_running` whose connection is dead
        self.deaths = 0

    async def start(self, dies_at: int | None = None) -> WorkflowsService:
        """Start an instance, which dies before this write."""
        context = await connect(WorkflowsService, self._common, self._config)
        own = WorkflowsService.settings_type(**self._given)
        service = WorkflowsService(replace(context, settings=own))
        self._running.add(service)
        await service.start()
        if dies_at is not None:
            self.let_die(service, dies_at)
        return service

    def let_die(self, service: WorkflowsService, dies_at: int = 1) -> None:
        """Let an instance die before its n-th write from now on."""
        dies_before(service.bus, dies_at, lambda: self._die(service))

    def _die(self, service: WorkflowsService) -> None:
        self._dead.add(service)
        self._deaths.put_nowait(service)

    async def died(self) -> None:
        """Wait for the next death, and remove what is left of the instance."""
        service = await self._deaths.get()
        self.deaths += 1
        await self._remove(service)

    async def replace_dead(self, numbers: random.Random, writes: int, deaths: int) -> None:
        """Start an instance for each that dies; each dies at a random one of this many writes.

        After so many deaths, the instances live, so that a slow machine comes to an end, too.
        """
        while True:
            await self.died()
            dies_at = numbers.randint(1, writes)
            await self.start(dies_at if self.deaths < deaths else None)

    async def end(self, service: WorkflowsService) -> None:
        """Stop this instance."""
        await self._remove(service)

    async def stop(self) -> None:
        """Stop all instances."""
        for service in list(self._running):
            await self._remove(service)

    async def _remove(self, service: WorkflowsService) -> None:
        if service in self._dead:
            await service.bus.close()
            # Repeated, because a handler that is cancelled may wait for the dead connection again.
            while tasks := _tasks_of(service):
                for task in tasks:
                    task.cancel()
                await asyncio.sleep(0)
        else:
            await service.drain(1)
        await service.stop()
        await service.bus.close()
        # Only now: if this call is cancelled before, `stop` removes the instance. A task of a dead
        # instance that nobody stops would wait for ever, also when the event loop ends.
        self._running.discard(service)
        self._dead.discard(service)


def _tasks_of(service: WorkflowsService) -> list[asyncio.Task[Any]]:
    handlers = [task for task in asyncio.all_tasks() if _is_handler_of(task, service.bus)]
    return [task for task in [*service._loops.values(), *handlers] if not task.done()]


def _is_handler_of(task: asyncio.Task[Any], bus: Bus) -> bool:
    frame = getattr(task.get_coro(), "cr_frame", None)
    queue = frame.f_locals.get("self") if frame is not None else None
    return getattr(queue, "_bus", None) is bus


@asynccontextmanager
async def instances(nats_url: str, config: Config, **settings: Any) -> AsyncIterator[Instances]:
    """Give a test instances, and stop them at its end."""
    made = Instances(nats_url, config, **settings)
    try:
        yield made
    finally:
        await made.stop()
