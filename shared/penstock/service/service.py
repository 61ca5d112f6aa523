"""Defines the base class of every service."""

from __future__ import annotations

import asyncio
import logging
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar

from starlette.types import ASGIApp

from penstock import telemetry
from penstock.bus import Bus, BusError, Consumer, Msg, ObjectGone, Stored, Subscription, streams
from penstock.bus.connection.retry import until_answered
from penstock.bus.read.work_queue import GiveUp, Handle
from penstock.bus.state import deadletters
from penstock.bus.state.attempts import Attempts
from penstock.bus.state.bucket_index import StillReading
from penstock.bus.state.deadletters import DeadLetter
from penstock.bus.subjects import replay_of
from penstock.bus.write import objects
from penstock.service.consumption import Consumption
from penstock.settings import Config, Settings
from penstock.web.operation import Handler, Operation, Route, routes_of
from penstock.web.problems import Problem
from penstock.web.server import WS_PING_S

log = logging.getLogger(__name__)

DRAINING = "draining: it takes no new work"
RESTART_S = 1.0
CANCEL_AGAIN_S = 5.0


@dataclass(frozen=True, slots=True)
class Context:
    """The configuration, settings and bus of a service.

    `pod` names this instance of the service in leases and claims. With `alone`, no other process
    works on this bus. So a lease that this process does not hold belongs to a process that has
    ended.
    """

    config: Config
    settings: Settings
    bus: Bus
    pod: str
    alone: bool = False


class Service(ABC):
    """The base of a service. Subclasses define what they start, drain and stop.

    A service must start its consumers last and drain them first. Otherwise the service could take a
    message before it can process messages, or when it can no longer process them.
    """

    name: ClassVar[str]
    settings_type: ClassVar[type[Settings]] = Settings
    operations: ClassVar[Sequence[Operation]] = ()  # The declarations of the service's routes.
    # Whether the service repairs streams that have lost their end.
    repairs_streams: ClassVar[bool] = False

    def __init__(self, context: Context) -> None:
        self.context = context
        self.bus = context.bus
        self.attempts = Attempts(self.bus, self.name)
        self.routes: Sequence[Route] = ()
        self.ws_ping_s = WS_PING_S  # seconds between pings on WebSockets
        self.draining = False
        self._loops: dict[str, asyncio.Task[None]] = {}
        self._consumptions: list[Consumption] = []
        self._answering: list[Subscription] = []
        self._is_ready = False

    @abstractmethod
    async def start(self) -> None: ...

    async def drain(self, grace_s: float) -> None:
        """Take no new work, and finish the present work, for up to `grace_s` seconds.

        Other services of the process may continue to work meanwhile. The drain may be cancelled.
        `stop` is called after the drain in any case.
        """
        return

    async def stop(self) -> None:
        """Take no more work, hand over unfinished work, and release all leases."""
        await self.stop_consuming()
        await self.cancel(*self._loops)

    def mark_ready(self) -> None:
        """Let the probes say that the service takes work. Its port must be open: whoever reads this
        sends requests."""
        self._is_ready = True
        log.info("%s is ready as %s", self.name, self.context.pod)

    @property
    def not_ready(self) -> list[str]:
        """Why the service takes no work, as texts for operators; empty while it takes work."""
        reasons = [] if self._is_ready else ["it has not started yet"]
        return reasons + [DRAINING] * self.draining + self.bus.not_ready

    @property
    def notices(self) -> list[str]:
        """Texts for operators about lost data of NATS, in spite of which the service works."""
        return self.bus.continuity.notices

    def spawn(self, name: str, loop: Callable[[], Awaitable[None]]) -> None:
        """Run `loop` in a task until `cancel` is called; log a failure, and start it again."""

        async def forever() -> None:
            while True:
                try:
                    await loop()
                    return
                except Exception:
                    log.exception("%s: %s failed, it is restarted", self.name, name)
                    await asyncio.sleep(RESTART_S)

        self._loops[name] = asyncio.create_task(forever(), name=f"{self.name}:{name}")

    def repeat(self, name: str, every_s: float, work: Callable[[], Awaitable[None]]) -> None:
        """Call `work` every so many seconds until `cancel` is called. While the bus does not
        answer, only a warning is logged, because a later call does the same work."""

        async def loop() -> None:
            while True:
                await asyncio.sleep(every_s)
                try:
                    await work()
                except BusError as error:
                    log.warning("%s: %s: tried again later: %s", self.name, name, error)

        self.spawn(name, loop)

    async def answer(self, subject: str, handle: Callable[[Msg], Awaitable[None]]) -> None:
        """Let one instance of this service handle each request of a subject, until
        `stop_consuming` is called; wait until NATS has the subscription."""
        subscribe = partial(self.bus.subscribe, subject, handle, self.name)
        self._answering.append(await until_answered(f"subscribing to {subject}", subscribe))

    def has_spawned(self, name: str) -> bool:
        return name in self._loops

    async def give_up(self, stored: Stored, error: Exception) -> None:
        await self.store_dead_letter(self.name, stored, error)

    async def store_dead_letter(self, service: str, stored: Stored, error: Exception) -> None:
        """Log, count and store a dead letter for a message that `service` cannot process.

        A service may call this method for another service that could not store the dead letter.
        Repeated calls store only one dead letter.
        """
        letter = deadletters.letter_about(service, self.context.pod, stored, error)
        log.error(
            "%s: run %s: %s goes to the dead letters, traceback %s",
            service,
            letter.run_id,
            stored.subject,
            letter.traceback_id,
            exc_info=error,
        )
        telemetry.DEADLETTERS.labels(service).inc()
        while True:
            try:
                await deadletters.store_dead_letter(self.bus, letter)
                return
            except BusError as failure:
                log.warning("%s: run %s: no dead letter yet: %s", service, letter.run_id, failure)
                await asyncio.sleep(RESTART_S)

    def consume(
        self,
        consumer: Consumer,
        handle: Handle,
        *,
        give_up: GiveUp | None = None,
        counts_attempts: bool = True,
    ) -> Consumption:
        """Process the messages of a durable consumer until `stop_consuming` is called.

        If the consumer's stream is RAW or EVENTS, the messages of all shards are processed, also of
        shards that are made later. `handle` gets each message. A repeated call must do no harm.
        `WorkQueue` describes what happens if `handle` raises an error. `give_up` gets a message
        that cannot be processed; by default, the message becomes a dead letter. Pass
        `counts_attempts=False` if the handler itself records the steps that may kill its process.
        """
        attempts = self.attempts if counts_attempts else None
        consumption = Consumption(self.bus, consumer, handle, give_up or self.give_up, attempts)
        self._consumptions.append(consumption)
        self.spawn(consumption.name, consumption.run)
        return consumption

    def consume_replays(self, handle: Handle) -> None:
        """Process replays: messages that this service gave up and an operator has sent again."""

        async def handle_again(stored: Stored) -> None:
            letter = await objects.unwrap(self.bus, stored.payload)
            await handle(DeadLetter.model_validate_json(letter).message)

        replays = replay_of(self.name, "*")
        durable = f"{self.name}-replay"
        self.consume(
            Consumer(stream=streams.COMMANDS, durable=durable, subjects=(replays,)), handle_again
        )

    async def stop_consuming(self, *consumptions: Consumption) -> None:
        """Take no more messages of these consumers, or of all consumers and no more requests, and
        wait for the handlers of messages. `Consumer.finish_s` limits this time. Unfinished messages
        are given back."""
        while self._answering and not consumptions:
            await self._answering.pop().unsubscribe()
        stopping = [
            # a second cancellation would cut the handlers short
            self.cancel(each.name, again_s=each.finish_s + CANCEL_AGAIN_S)
            for each in consumptions or self._consumptions
        ]
        await asyncio.gather(*stopping)

    async def cancel(self, *names: str, again_s: float = CANCEL_AGAIN_S) -> None:
        """Cancel these loops in this order; one that has not ended after `again_s`, again."""
        for name in names:
            task = self._loops.pop(name, None)
            if task is not None:
                while not task.done():
                    # repeated, because a library may have swallowed the first cancellation
                    task.cancel()
                    await asyncio.wait([task], timeout=again_s)


def routes_on_bus(
    *surfaces: object, statuses: Mapping[type[Exception], int] | None = None
) -> list[Route]:
    """Return the routes of objects whose handlers read and write the bus (decision 0333).

    What the bus raises in a handler becomes a Problem: 410 for a payload that has expired, else
    503. `statuses` has the statuses of further errors, which are logged.
    """
    further = statuses or {}

    def around(handler: Handler) -> Handler:
        async def handle(request: Any) -> ASGIApp | None:
            try:
                return await handler(request)
            except ObjectGone as error:
                raise Problem(410, str(error)) from error
            except StillReading as error:
                raise Problem(503, str(error)) from error
            except BusError as error:
                raise Problem(503, f"the bus does not answer: {error}; try again") from error
            except tuple(further) as error:
                log.error("%s", error)
                raise Problem(further[type(error)], str(error)) from error

        return handle

    return [route for surface in surfaces for route in routes_of(surface, around)]
