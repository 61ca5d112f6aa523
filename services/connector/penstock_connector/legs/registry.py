"""Knows which legs this process holds, and which runs it works on."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Final, NamedTuple

from penstock import log_fields
from penstock.bus import Retry
from penstock_connector.legs.leg import Leg
from penstock_connector.legs.outcome import Outcome

# The seconds that `stop` waits for legs to write their outcomes, and the number of such waits.
# After the last wait, the process ends even if the bus does not answer.
STOP_S: Final = 2.0
STOP_TRIES: Final = 3
STOPPED: Final = "the connector was stopped, the upstream was not"


class HeldLeg(NamedTuple):
    """A leg of this process, and the task that runs the leg and updates its records."""

    leg: Leg
    task: asyncio.Task[Outcome]


class LegRegistry:
    """Keeps the legs of this process, by run. No I/O."""

    def __init__(self, max_legs: int) -> None:
        self._max_legs = max_legs
        self._legs: dict[str, HeldLeg] = {}
        self._exclusive: set[str] = set()  # the runs that a command or a takeover works on

    def has_leg(self, run_id: str) -> bool:
        """Return whether this process holds a leg of the run, or updates such a leg's records."""
        return run_id in self._legs

    def works_on(self, run_id: str) -> bool:
        """Return whether this process holds a leg, or a command or takeover works on the run."""
        return run_id in self._legs or run_id in self._exclusive

    @property
    def free_legs(self) -> int:
        return self._max_legs - len(self._legs)

    @property
    def legs(self) -> Mapping[str, HeldLeg]:
        return dict(self._legs)

    @contextmanager
    def exclusively(self, run_id: str) -> Iterator[None]:
        """Let only one command or takeover work on a run at a time; raise Retry for another one.

        NATS may deliver a command twice to this process, and the reaper may find a run that a
        command works on. If both worked on the run at once, both would open the same leg.
        """
        if run_id in self._exclusive:
            raise Retry(1)
        self._exclusive.add(run_id)
        try:
            with log_fields.within_run(run_id):
                yield
        finally:
            self._exclusive.remove(run_id)

    def register(self, leg: Leg, task: asyncio.Task[Outcome]) -> None:
        held = self._legs[leg.spec.run_id] = HeldLeg(leg, task)

        def unregister(_: asyncio.Task[Outcome]) -> None:
            if self._legs.get(leg.spec.run_id) is held:
                del self._legs[leg.spec.run_id]

        task.add_done_callback(unregister)

    async def closed(self, run_id: str) -> None:
        """Wait until the run's earlier leg in this process, if any, has updated all its records."""
        if (held := self._legs.get(run_id)) is not None:
            await asyncio.wait({held.task})

    async def release(self, run_id: str) -> None:
        """Release the run's leg in this process, if any, and wait until its records are updated.

        The leg has ended, or another connector holds it. Without the wait, its task would change
        the records of the leg that this connector is about to take over.
        """
        if (held := self._legs.get(run_id)) is not None:
            held.leg.stop_requests.release()
            await asyncio.wait({held.task})

    async def stop(self) -> None:
        """End all legs as lost; this takes at most 6 s."""
        legs = self.legs
        for leg, _ in legs.values():
            leg.stop_requests.abandon(STOPPED)
        tasks = {task for _, task in legs.values()}
        for _ in range(STOP_TRIES):
            if tasks:
                _, tasks = await asyncio.wait(tasks, timeout=STOP_S)
            for task in tasks:
                task.cancel()
