"""Carries out the jobs of DELIVERIES, many at once.

A job asks for one attempt of a delivery (`jobs/job.py`).
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from functools import partial

from penstock import log_fields
from penstock.bus import BusError, NeverFinished, Stored
from penstock.bus.state.attempts import Attempts
from penstock.bus.subjects import run_id_of
from penstock_automations.broker import Taken
from penstock_automations.delivery.one_delivery import Delivery, Parts
from penstock_automations.jobs.job import Job

log = logging.getLogger(__name__)

AGAIN_S = 5.0  # seconds until a job is handled again after an unexpected error
MAX_FAILURES = 5  # after so many deliveries by NATS, a job with unexpected errors is given up

GiveUp = Callable[[Stored, Exception], Awaitable[None]]


class Deliverer:
    """Carries out the jobs of DELIVERIES.

    `at_once` is the greatest number of jobs in memory. If no process reports for `ack_wait_s`
    seconds that it works on a job, the server gives the job to another process. `attempts` finds
    the jobs that kill the processes that carry them out.
    """

    def __init__(
        self, parts: Parts, attempts: Attempts, at_once: int, ack_wait_s: float, give_up: GiveUp
    ) -> None:
        self._parts = parts
        self._attempts = attempts
        self._at_once = at_once
        self._ack_wait_s = ack_wait_s
        self._give_up = give_up
        self._working: dict[int, asyncio.Task[None]] = {}  # by the sequence of the job's message
        self.on_room: Callable[[], None] = lambda: None  # called when `room` has grown

    def room(self) -> int:
        """Return how many more jobs may be taken."""
        return self._at_once - len(self._working)

    async def take(self, batch: Sequence[Taken]) -> None:
        """Begin to carry out jobs.

        Each job has a task of its own, so that a slow receiver does not delay other jobs of the
        batch.
        """
        for taken in batch:
            sequence = taken.stored.sequence
            if sequence in self._working:
                # The server got no report in time. A second attempt beside the first would send
                # the webhook twice.
                log.warning("%s: delivered again while it is carried out", taken.stored.subject)
                continue
            self._working[sequence] = task = asyncio.create_task(self._work(taken))
            task.add_done_callback(partial(self._done, sequence))

    async def finish(self, grace_s: float) -> None:
        """Wait up to `grace_s` seconds for the jobs in work; then give the unfinished jobs back."""
        if not self._working:
            return
        _, left = await asyncio.wait(set(self._working.values()), timeout=grace_s)
        for task in left:
            task.cancel()
        if left:
            await asyncio.wait(left)

    def _done(self, sequence: int, _: asyncio.Task[None]) -> None:
        del self._working[sequence]
        self.on_room()

    async def _work(self, taken: Taken) -> None:
        log_fields.bind(run_id_of(taken.subject))
        heartbeat = asyncio.create_task(self._heartbeat(taken))
        try:
            await self._carry_out(taken)
        except asyncio.CancelledError:
            await taken.give_back(0)
            raise
        except Exception as error:
            stored = taken.stored
            # After a BusError the job is not given up, because NATS has failed and not the job.
            if stored.delivered < MAX_FAILURES or isinstance(error, BusError):
                log.exception("%s: not carried out, it is tried again", stored.subject)
                await taken.give_back(AGAIN_S)
                return
            await self._end(stored, error)
            await taken.ack()
        finally:
            heartbeat.cancel()

    async def _heartbeat(self, taken: Taken) -> None:
        while True:
            await asyncio.sleep(self._ack_wait_s / 3)
            await taken.working()

    async def _carry_out(self, taken: Taken) -> None:
        stored = taken.stored
        try:
            job = Job.parse(stored.payload)
        except ValueError as error:
            await self._give_up(stored, error)
        else:
            try:
                async with self._attempts.at("deliver", stored):
                    await Delivery(self._parts, job, stored).carry_out()
            except NeverFinished as error:
                await self._end(stored, error)
        await taken.ack()

    async def _end(self, stored: Stored, error: Exception) -> None:
        """Give up a job whose handling fails.

        The failure is recorded as the delivery's outcome, because other jobs may wait for the
        outcome.
        """
        log.error("%s: given up", stored.subject, exc_info=error)
        try:
            await Delivery(self._parts, Job.parse(stored.payload), stored).give_up(error)
        except Exception as failure:
            await self._give_up(stored, failure)
