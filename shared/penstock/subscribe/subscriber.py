"""Calls handlers with the events of a durable consumer in each shard."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine, Sequence
from typing import Any, Final, Protocol, TypeVar

from penstock.bus import BusError, Msg, StartUpError, subjects
from penstock.bus.admin.subscribers import Durable, Start
from penstock.bus.streams import events_of
from penstock.events import Data, Event
from penstock.subscribe.account import Account
from penstock.subscribe.broker import EventBroker, app_of
from penstock.subscribe.handlers import Handler, handler_of
from penstock.subscribe.received import Received
from penstock.subscribe.settings import Limits, Nats
from penstock.subscribe.work import Delivery, Work

log = logging.getLogger("penstock.subscribe")

# during each `ack_wait`, the server gets this many signs that an event is still being handled
BEATS: Final = 3
NANO: Final = 1_000_000_000

Form = TypeVar("Form", bound=Data | Event | Received[Any])
Result = TypeVar("Result")


class On(Protocol):
    """Registers a handler, and returns it unchanged."""

    def __call__(
        self, call: Callable[[Form], Coroutine[Any, Any, Result]], /
    ) -> Callable[[Form], Coroutine[Any, Any, Result]]:
        """Register the handler; raise TypeError if it cannot be called with the events."""
        ...


class Subscriber:
    """Calls handlers with events, at least once for each event.

    ```python subscriber = Subscriber("subscriber", Nats(user="subscriber", password_file="…"))

    @subscriber.on() async def tool_called(event: ToolCall) -> None: ...

    asyncio.run(subscriber.run()) ```

    `durable` is the name of the durable consumer, which remembers how far the events were handled.
    Without `start`, the durable must exist. The operator makes the durable with `penstock
    subscribers make`. With `start`, the subscriber makes a missing durable, which begins at
    `start`. The NATS user must then be allowed to make consumers. Several processes can use one
    durable; each event then goes to one of the processes.
    """

    def __init__(
        self,
        durable: str,
        nats: Nats | None = None,
        *,
        limits: Limits | None = None,
        start: Start | None = None,
    ) -> None:
        self._durable = durable
        self._start = start
        self._limits = limits or Limits()
        nats = nats or Nats()
        self._handlers: list[Handler] = []
        self._followed = 0  # the number of shards that are followed
        self._work: Work | None = None
        self._looking: asyncio.Task[None] | None = None
        # The FastStream broker. An application that has hooks of its own can run the broker with
        # `FastStream(subscriber.broker)`.
        self.broker = EventBroker(
            lambda: Account(nats, durable),
            self._begin,
            self._end,
            self._limits.grace_s,
            nats.domain,
        )

    def on(self, *events: str) -> On:
        """Register the decorated handler for events.

        `events` are types such as `llm.tool_call`, in which each part may be `*`, or `*.*.<run
        id>`. Without `events`, the annotation of the handler's parameter, which names models of
        `penstock.events`, says which events it wants. The decorator raises TypeError for a handler
        that cannot be called with these events.
        """

        def register(
            call: Callable[[Form], Coroutine[Any, Any, Result]], /
        ) -> Callable[[Form], Coroutine[Any, Any, Result]]:
            self._handlers.append(handler_of(call, events))
            return call

        return register

    async def run(self) -> None:
        """Handle events until SIGTERM or SIGINT; finish those that are being handled, and return.
        Raises StartUpError if the server refuses the user, or the durable is missing. The text says
        what to do."""
        await app_of(self.broker).run()

    async def _begin(self) -> None:
        if not self._handlers:
            raise StartUpError("the subscriber has no handlers: decorate them with `on`")
        self._work = Work(self.broker.account, self._handlers, self._limits)
        self._followed = 0
        await self._follow_shards()
        self._looking = asyncio.create_task(self._look_for_shards())

    async def _end(self) -> None:
        if self._looking is not None:
            self._looking.cancel()
            await asyncio.wait([self._looking])
            self._looking = None
        if self._work is not None:
            await self._work.finish(self._limits.grace_s)
            self._work = None

    async def _look_for_shards(self) -> None:
        """Follow new shards, and log when a durable is missing, until cancelled."""
        while True:
            await asyncio.sleep(self._limits.look_s)
            try:
                await self._follow_shards()
                for shard in range(self._followed):
                    await self._consumer(events_of(shard))
            except BusError as error:
                log.error("%s", error)

    async def _follow_shards(self) -> None:
        """Follow each shard that is not followed yet. StartUpError means that a durable is missing,
        or cannot deliver what a handler wants."""
        for shard in range(self._followed, await self.broker.account.shards()):
            stream = events_of(shard)
            config = await self._consumer(stream)
            self._check_subjects(config)
            heartbeat_s = config.get("ack_wait", 30 * NANO) / NANO / BEATS
            await self.broker.follow(
                stream, self._durable, _any_of(config), self._taker(heartbeat_s)
            )
            self._followed = shard + 1

    def _taker(self, heartbeat_s: float) -> Callable[[Msg], Coroutine[Any, Any, None]]:
        account, work = self.broker.account, self._work
        assert work is not None

        async def take(msg: Msg) -> None:
            await work.take(Delivery.of(account.connection, msg), heartbeat_s)

        return take

    async def _consumer(self, stream: str) -> dict[str, Any]:
        """Return the durable's configuration. With `start`, make the durable if it is missing."""
        account = self.broker.account
        config = await account.consumer(stream)
        wanted = sorted({each for handler in self._handlers for each in handler.events})
        if self._start is not None:
            filters = subjects.event_patterns(wanted)
            if config is None:
                durable = Durable(self._durable, tuple(wanted), self._start)
                await account.declare(stream, durable.config())
            elif sorted(_filters(config)) != sorted(filters):
                kept = {name: each for name, each in config.items() if name != "filter_subject"}
                await account.declare(stream, kept | {"filter_subjects": filters})
            config = await account.consumer(stream)
        if config is None:
            options = " ".join(f"--event '{each}'" for each in wanted)
            raise StartUpError(
                f"{stream} has no durable consumer {self._durable}: the operator makes it with "
                f"`penstock subscribers make {self._durable} {options}`"
            )
        return config

    def _check_subjects(self, config: dict[str, Any]) -> None:
        filters = _filters(config)
        for handler in self._handlers:
            for pattern in subjects.event_patterns(handler.events):
                if filters and not any(subjects.can_overlap(each, pattern) for each in filters):
                    raise StartUpError(
                        f"the durable {self._durable} never delivers {pattern}, which "
                        f"{handler.name} wants: it has {', '.join(filters)}. Make another durable "
                        "that has these events"
                    )


def _filters(config: dict[str, Any]) -> Sequence[str]:
    one = config.get("filter_subject")
    return config.get("filter_subjects") or ([one] if one else [])


def _any_of(config: dict[str, Any]) -> str:
    """Return one of the durable's subjects, which nats-py requires and does not use."""
    return next(iter(_filters(config)), "*.*.*")
