"""Starts the timers of runs, and schedules the removal of journals. Every call may be repeated.

Each timer is a scheduled message of NATS, which survives this process. NATS delivers such a message
up to a second late. So this process also waits for a short timer itself, and usually handles the
timer before NATS delivers the message.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import Final

from penstock.bus import Bus, Stored, subjects
from penstock.bus.streams import SCHEDULES
from penstock.bus.subjects import WORKFLOWS
from penstock.bus.write.schedules import schedule

log = logging.getLogger(__name__)

DUE: Final = subjects.due(WORKFLOWS, ">")
PURGE: Final = "purge"  # the name of the timer that removes an ended run's journal
SHORT_S: Final = 5.0  # this process waits for a timer that is due within this many seconds
MAX_SHORT: Final = 10_000  # the most timers for which this process waits
# The payload of a due message for whose timer a process has waited, too.
SHORT: Final = b"short"

_Timer = tuple[str, str]  # the id of a run, and the name of a timer of the run


class Timers:
    """Starts the timers of runs: messages with the subject `schedule.workflows.<run>.<timer>`.

    `handle` is called with the run and the timer when a short timer is due, at most `at_once` times
    at once. It returns False if there was nothing to decide.
    """

    def __init__(
        self,
        bus: Bus,
        journal_kept_s: float,
        handle: Callable[[str, str], Awaitable[bool]],
        at_once: int,
    ) -> None:
        self._bus = bus
        self._journal_kept_s = journal_kept_s
        self._handle = handle
        self._turns = asyncio.Semaphore(at_once)
        self._short: dict[_Timer, asyncio.TimerHandle] = {}
        self._firing: dict[_Timer, asyncio.Task[None]] = {}
        self._is_drained = False

    async def start(self, run_id: str, timer: str, due_ms: int) -> None:
        of, delay_s = (run_id, timer), due_ms / 1000 - self._bus.clock.time()
        is_short = delay_s <= SHORT_S
        await self._schedule(run_id, timer, due_ms, SHORT if is_short else b"")
        is_known = of in self._short or of in self._firing
        if is_short and not (is_known or self._is_drained) and len(self._short) < MAX_SHORT:
            loop = asyncio.get_running_loop()
            self._short[of] = loop.call_later(max(delay_s, 0), self._fire, of)

    async def _schedule(self, run_id: str, timer: str, due_ms: int, payload: bytes) -> None:
        key = f"{run_id}.{timer}"
        subject, target = subjects.schedule(WORKFLOWS, key), subjects.due(WORKFLOWS, key)
        await schedule(self._bus, subject, target, due_ms / 1000, payload)

    def _fire(self, of: _Timer) -> None:
        del self._short[of]
        self._firing[of] = asyncio.create_task(self._handle_short(of))

    async def _handle_short(self, of: _Timer) -> None:
        try:
            async with self._turns:
                is_decided = await self._handle(*of)
            del self._firing[of]
            # If another process has decided, it may have died before the effects of its decision.
            # Then the message stays, and whoever gets it does them.
            if is_decided:
                await self.cancel(*of)
        except Exception as error:
            # The message of the timer is handled soon, and gives up after some attempts.
            log.warning("run %s: the timer %s is handled later: %s", *of, error)
        finally:
            self._firing.pop(of, None)

    async def drain(self) -> None:
        self._is_drained = True
        for waiting in self._short.values():
            waiting.cancel()
        self._short.clear()
        if self._firing:
            await asyncio.wait(self._firing.values())

    async def stop(self) -> None:
        """Wait for no further timer. Another process handles the messages of unfinished ones."""
        for task in self._firing.values():
            task.cancel()
        await self.drain()

    async def cancel(self, run_id: str, timer: str) -> None:
        """Remove a scheduled timer. A timer that is due already is handled, and changes nothing.

        A due message must not be purged. When NATS purges a message that was delivered and not yet
        acknowledged, NATS moves the consumer's acknowledgement floor past earlier messages. If the
        process that handles such an earlier message dies, NATS then never delivers the message
        again, so another run would wait for its timer for ever (decision 0245).

        While this process handles the timer, the message stays: if the process dies before it has
        done all effects, the message lets another process do them.
        """
        waiting = self._short.pop((run_id, timer), None)
        if waiting is not None:
            waiting.cancel()
        if (run_id, timer) in self._firing:
            return
        subject = subjects.schedule(WORKFLOWS, f"{run_id}.{timer}")
        await self._bus.api(f"STREAM.PURGE.{SCHEDULES}", {"filter": subject})

    async def purge_later(self, run_id: str, ended_ms: int) -> None:
        """Schedule the removal of the journal of a run that has ended."""
        due_ms = ended_ms + round(self._journal_kept_s * 1000)
        await self._schedule(run_id, PURGE, due_ms, b"")

    async def delete_due(self, sequence: int) -> None:
        """Delete the message of a timer that was handled, because SCHEDULES has no age limit."""
        await self._bus.delete(SCHEDULES, sequence)


def was_short(stored: Stored) -> bool:
    return stored.payload == SHORT


def timer_of(subject: str) -> tuple[str, str]:
    _, _, run_id, timer = subject.split(".")
    return run_id, timer
