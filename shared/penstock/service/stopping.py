"""Drains and stops services, and handles the signals that request this."""

from __future__ import annotations

import asyncio
import logging
import signal
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from penstock.service.service import Service
from penstock.web.server import Server

log = logging.getLogger(__name__)

LATE_S = 1.0  # Seconds after the grace time in which a drain may still end without being cancelled.
STOP_S = 15.0  # The seconds that one service may take to stop.


async def drain(
    services: Sequence[Service],
    grace_s: float,
    at_once: asyncio.Event | None = None,
    servers: Sequence[Server] = (),
) -> None:
    """Drain all services and servers, until `at_once` is set or `grace_s` plus `LATE_S` is over."""
    for service in services:
        service.draining = True
    draining = asyncio.gather(
        *(_drained(service, grace_s) for service in services),
        *(server.drain(grace_s) for server in servers),
    )
    shortened = asyncio.ensure_future((at_once or asyncio.Event()).wait())
    both: set[asyncio.Future[Any]] = {draining, shortened}
    await asyncio.wait(both, timeout=grace_s + LATE_S, return_when=asyncio.FIRST_COMPLETED)
    for task in both:
        task.cancel()
    await asyncio.wait(both)


async def _drained(service: Service, grace_s: float) -> None:
    try:
        await service.drain(grace_s)
    except Exception:  # the other services must still be drained
        log.exception("%s failed to drain", service.name)


async def stop(services: Sequence[Service]) -> None:
    """Stop all services in the reverse order of their start, even if a service fails to stop."""
    for service in reversed(services):
        try:
            async with asyncio.timeout(STOP_S):
                await service.stop()
        except Exception:  # the other services must still be stopped
            log.exception("%s failed to stop", service.name)


@dataclass(frozen=True, slots=True)
class Stop:
    """The events that end a process: `asked` begins the drain, and `at_once` ends the drain."""

    asked: asyncio.Event = field(default_factory=asyncio.Event)
    at_once: asyncio.Event = field(default_factory=asyncio.Event)


def stop_on_signals() -> Stop:
    """Return a `Stop` whose events are set by SIGTERM and SIGINT. The first signal sets `asked`,
    and the second signal sets `at_once`. A third signal ends the process."""
    stop = Stop()
    loop = asyncio.get_running_loop()
    numbers = (signal.SIGTERM, signal.SIGINT)

    def on_signal() -> None:
        if not stop.asked.is_set():
            stop.asked.set()
            return
        stop.at_once.set()
        for number in numbers:
            loop.remove_signal_handler(number)

    for number in numbers:
        loop.add_signal_handler(number, on_signal)
    return stop
