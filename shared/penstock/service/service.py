"""What every service is made of."""

from __future__ import annotations

import asyncio
import logging
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import ClassVar

from penstock import telemetry
from penstock.bus import Bus, BusError, Stored, WorkQueue, streams
from penstock.bus.state import deadletters
from penstock.bus.state.deadletters import DeadLetter
from penstock.bus.subjects import replay_of
from penstock.bus.write import objects
from penstock.settings import Config, Settings
from penstock.web.operation import Operation, Route
from penstock.web.server import WS_PING_S

log = logging.getLogger(__name__)

DRAINING = "draining: it takes no new work"
RESTART_S = 1.0
CANCEL_AGAIN_S = 5.0


@dataclass(frozen=True, slots=True)
class Context:
    """What a service is made with. `pod` names this instance of the process in leases and claims.

    `alone`: no other process works on this bus, so every other holder of a lease is dead.
    """

    config: Config
    settings: Settings
    bus: Bus
    pod: str
    alone: bool = False


class Service(ABC):
    """One service. Subclasses define what they start, and in which order they stop.

    A service starts its consumers last and drains them first, so that it takes no work that it
    cannot finish.
    """

    name: ClassVar[str]
    settings_type: ClassVar[type[Settings]] = Settings
    operations: ClassVar[Sequence[Operation]] = ()  # the declarations of its routes
    repairs_streams: ClassVar[bool] = False  # it repairs streams that have lost their end

    def __init__(self, context: Context) -> None:
        self.context = context
        self.bus = context.bus
        self.routes: Sequence[Route] = ()
        self.ws_ping_s = WS_PING_S  # how often the peers of its WebSockets are pinged
        self.draining = False
        self._loops: dict[str, asyncio.Task[None]] = {}
        self._started = False

    @abstractmethod
    async def start(self) -> None:
        """Begin to work; returns once the service takes work."""

    async def drain(self, grace_s: float) -> None:
        """Take no new work, and finish the present work, for up to `grace_s` seconds.

        Other services of the process continue meanwhile. This may be cancelled; `stop` follows in
        any case.
        """
        return

    async def stop(self) -> None:
        """Take no more work, hand over unfinished work, and release all leases."""
        await self.cancel(*self._loops)

    async def run(self) -> None:
        """Start, and log it."""
        await self.start()
        self._started = True
        log.info("%s is ready as %s", self.name, self.context.pod)

    @property
    def not_ready(self) -> list[str]:
        """Why the service can take no work now, in words for people; empty while it can."""
        reasons = [] if self._started else ["it has not started yet"]
        return reasons + [DRAINING] * self.draining + self.bus.not_ready

    @property
    def notices(self) -> list[str]:
        """What an operator should know although the service works: losses of NATS's data."""
        return self.bus.continuity.notices

    def spawn(self, name: str, loop: Callable[[], Awaitable[None]]) -> None:
        """Run a loop as long as the service runs. A loop that fails is logged and restarted."""

        async def forever() -> None:
            while True:
                try:
                    await loop()
                    return
                except Exception:
                    log.exception("%s: %s failed, it is restarted", self.name, name)
                    await asyncio.sleep(RESTART_S)

        self._loops[name] = asyncio.create_task(forever(), name=f"{self.name}:{name}")

    def spawned(self, name: str) -> bool:
        """Whether the loop of this name runs."""
        return name in self._loops

    async def give_up(self, stored: Stored, error: Exception) -> None:
        """Make a dead letter of a message that cannot be processed: logged, counted and kept."""
        await self.bury(self.name, stored, error)

    async def bury(self, service: str, stored: Stored, error: Exception) -> None:
        """Make a dead letter for another service, which failed to do so. Safe to repeat."""
        letter = deadletters.letter_about(service, self.context.pod, stored, error)
        log.error(
            "%s: run %s: %s goes to the dead letters, traceback %s",
            *(service, letter.run_id, stored.subject, letter.traceback_id),
            exc_info=error,
        )
        telemetry.DEADLETTERS.labels(service).inc()
        while True:
            try:
                await deadletters.bury(self.bus, letter)
                return
            except BusError as failure:
                log.warning("%s: run %s: no dead letter yet: %s", service, letter.run_id, failure)
                await asyncio.sleep(RESTART_S)

    def replays(self, handle: Callable[[Stored], Awaitable[None]]) -> WorkQueue:
        """The queue of messages that this service gave up and that an operator replays."""

        async def again(stored: Stored) -> None:
            letter = await objects.unwrap(self.bus, stored.payload)
            await handle(DeadLetter.model_validate_json(letter).message)

        return WorkQueue(
            self.bus,
            streams.COMMANDS,
            f"{self.name}-replay",
            [replay_of(self.name, "*")],
            again,
            on_poison=self.give_up,
        )

    async def cancel(self, *names: str) -> None:
        """End these loops one after another, in this order."""
        for name in names:
            task = self._loops.pop(name, None)
            if task is not None:
                while not task.done():
                    task.cancel()  # once more if a library has swallowed the cancellation
                    await asyncio.wait([task], timeout=CANCEL_AGAIN_S)
