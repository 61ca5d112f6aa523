"""Schedules the timers of runs, and the removal of journals. Every call may be repeated."""

from __future__ import annotations

from typing import Final

from penstock.bus import Bus, subjects
from penstock.bus.streams import SCHEDULES
from penstock.bus.subjects import WORKFLOWS
from penstock.bus.write.schedules import schedule

DUE: Final = subjects.due(WORKFLOWS, ">")
PURGE: Final = "purge"  # the name of the timer that removes an ended run's journal


class Timers:
    """Schedules the timers of runs, as messages with the subject
    `schedule.workflows.<run>.<timer>`."""

    def __init__(self, bus: Bus, journal_kept_s: float) -> None:
        self._bus = bus
        self._journal_kept_s = journal_kept_s

    async def start(self, run_id: str, timer: str, due_ms: int) -> None:
        """Schedule a timer, unless it is scheduled already. Raises BusError."""
        key = f"{run_id}.{timer}"
        subject, target = subjects.schedule(WORKFLOWS, key), subjects.due(WORKFLOWS, key)
        await schedule(self._bus, subject, target, due_ms / 1000, b"")

    async def cancel(self, run_id: str, timer: str) -> None:
        """Remove a scheduled timer. A timer that is due already is handled, and changes nothing.

        A due message must not be purged. When NATS purges a message that was delivered and not yet
        acknowledged, NATS moves the consumer's acknowledgement floor past earlier messages. If the
        process that handles such an earlier message dies, NATS then never delivers the message
        again, so another run would wait for its timer for ever (decision 0245).

        Raises:
            BusError: it is unknown whether the timer is removed; repeat the call.
        """
        subject = subjects.schedule(WORKFLOWS, f"{run_id}.{timer}")
        await self._bus.api(f"STREAM.PURGE.{SCHEDULES}", {"filter": subject})

    async def purge_later(self, run_id: str, ended_ms: int) -> None:
        """Schedule the removal of the journal of a run that has ended. Raises BusError."""
        await self.start(run_id, PURGE, ended_ms + round(self._journal_kept_s * 1000))

    async def delete_due(self, sequence: int) -> None:
        """Delete the message of a timer that was handled, because SCHEDULES has no age limit.

        Raises:
            BusError: the message was not deleted.
        """
        await self._bus.delete(SCHEDULES, sequence)


def timer_of(subject: str) -> tuple[str, str]:
    """Return the run and the timer in the subject of a due message."""
    _, _, run_id, timer = subject.split(".")
    return run_id, timer
