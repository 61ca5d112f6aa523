"""Moves jobs that are due from SCHEDULES to DELIVERIES."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable

from penstock.bus import Bus, BusError, Stored, streams
from penstock_automations.broker import Taken
from penstock_automations.jobs.job import Job
from penstock_automations.jobs.publish import publish

log = logging.getLogger(__name__)

RETRY_S = 1.0

GiveUp = Callable[[Stored, Exception], Awaitable[None]]


class DueJobs:
    """Publishes jobs when they are due.

    If a process is killed, another process publishes the job again. DELIVERIES then discards the
    second copy.
    """

    def __init__(self, bus: Bus, give_up: GiveUp) -> None:
        self._bus = bus
        self._give_up = give_up

    async def take(self, taken: Taken) -> None:
        """Publish a job that is due, and delete its message from SCHEDULES."""
        stored = taken.stored
        try:
            job: Job | None = Job.parse(stored.payload)
        except ValueError as error:
            await self._give_up(stored, error)
            job = None
        while job is not None:
            try:
                await publish(self._bus, job)
                break
            except BusError as error:
                log.warning("%s is published in %g s: %s", stored.subject, RETRY_S, error)
                await asyncio.sleep(RETRY_S)
                await taken.working()
        # The message is acknowledged before it is deleted. In the other order, the server would
        # report the message as terminated.
        try:
            await taken.ack_and_wait()
        except BusError as error:
            log.debug("%s may be delivered again: %s", stored.subject, error)
        await self._delete(stored)

    async def _delete(self, stored: Stored) -> None:
        """Delete an acknowledged message, because SCHEDULES has no age limit.

        If the process ends before this call, the server deletes the message after its TTL.
        """
        while True:
            try:
                await self._bus.delete(streams.SCHEDULES, stored.sequence)
                return
            except BusError as error:
                log.warning("%s is deleted in %g s: %s", stored.subject, RETRY_S, error)
                await asyncio.sleep(RETRY_S)
