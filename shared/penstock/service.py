"""The skeleton of every service: what it is made of, and how its process runs.

A service starts its consumers last and drains them first, so that nothing is taken that cannot be
finished. `python -m penstock_<name>` is `main(<its class>)`.

SIGTERM and SIGINT: not ready at once, then every service drains side by side for up to
`PENSTOCK_DRAIN_S`, then they stop in order. A second signal, or the end of the grace, goes on to
the stopping, which is bounded too; a third ends the process as it stands.
"""

from __future__ import annotations

import asyncio
import logging
import os
import secrets
import signal
import socket
import sys
import time
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, ClassVar, TypeVar

import uvloop

from penstock import telemetry
from penstock.bus import (
    Bus,
    BusError,
    BusSettings,
    NotThereYet,
    StartUpError,
    Stored,
    WorkQueue,
    streams,
)
from penstock.bus.admin.permissions import inbox_prefix
from penstock.bus.connection.tls import Tls
from penstock.bus.state import deadletters, losses
from penstock.bus.state.deadletters import DeadLetter
from penstock.bus.streams import Retention
from penstock.bus.subjects import replay_of
from penstock.bus.write import objects
from penstock.settings import (
    Config,
    ConfigurationError,
    Settings,
    load_config,
    nats_login,
    read_settings,
)
from penstock.telemetry import configure_logging
from penstock.web.auth import Auth, AuthConfig, StreamTokens, redact_logs
from penstock.web.auth.routes import auth_routes
from penstock.web.operation import Operation, Route
from penstock.web.probes import Probed, probe_routes
from penstock.web.server import WS_PING_S, BindRefused, Server

log = logging.getLogger(__name__)

T = TypeVar("T")

DRAINING = "draining: it takes no new work"
RESTART_S = 1.0
CANCEL_AGAIN_S = 5.0
CONNECT_AGAIN_S = 5.0
LATE_S = 1.0  # how long after its grace a drain is left to end by itself
STOP_S = 15.0  # how long one service may take to give everything back


@dataclass(frozen=True, slots=True)
class Context:
    """What a service is given. `pod` names this instance of the process in leases and claims.

    `alone`: no other process works on this bus, so that whoever else has left something is dead.
    """

    config: Config
    settings: Settings
    bus: Bus
    pod: str
    alone: bool = False


class Service(ABC):
    """One service. Subclasses say what they start, and in which order they stop."""

    name: ClassVar[str]
    settings_type: ClassVar[type[Settings]] = Settings
    operations: ClassVar[Sequence[Operation]] = ()  # what its routes declare
    repairs_streams: ClassVar[bool] = False  # puts those in order that have lost their end

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
        """Begin to work; returns when the service takes work."""

    async def drain(self, grace_s: float) -> None:
        """Take nothing new, and see what is under way to its end, for so long at the most.

        Everything goes on meanwhile, the services beside it too. It may be cancelled; `stop`
        follows in any case.
        """
        return

    async def stop(self) -> None:
        """Take nothing more, hand over what is still under way, give everything back."""
        await self.cancel(*self._loops)

    async def run(self) -> None:
        """Start, and say so."""
        await self.start()
        self._started = True
        log.info("%s is ready as %s", self.name, self.context.pod)

    @property
    def not_ready(self) -> list[str]:
        """Why it should be given no work now, in words for people; empty while it can work."""
        reasons = [] if self._started else ["it has not started yet"]
        return reasons + [DRAINING] * self.draining + self.bus.not_ready

    @property
    def notices(self) -> list[str]:
        """What an operator should know though it works: what NATS has lost of late."""
        return self.bus.continuity.notices

    def spawn(self, name: str, loop: Callable[[], Awaitable[None]]) -> None:
        """Run a loop for as long as the service; one that fails is logged and begun again."""

        async def forever() -> None:
            while True:
                try:
                    await loop()
                    return
                except Exception:
                    log.exception("%s: %s failed, it is begun again", self.name, name)
                    await asyncio.sleep(RESTART_S)

        self._loops[name] = asyncio.create_task(forever(), name=f"{self.name}:{name}")

    def spawned(self, name: str) -> bool:
        """Whether that loop runs."""
        return name in self._loops

    async def give_up(self, stored: Stored, error: Exception) -> None:
        """Put a message that cannot be processed among the dead letters: logged, counted, kept."""
        await self.bury(self.name, stored, error)

    async def bury(self, service: str, stored: Stored, error: Exception) -> None:
        """The same for a message that another service could not even give up. Safe to repeat."""
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
        """The queue of messages that this service had given up, and that were put back."""

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
        """End these loops, in this order, each before the next."""
        for name in names:
            task = self._loops.pop(name, None)
            if task is not None:
                while not task.done():
                    task.cancel()  # again, should a library have swallowed it
                    await asyncio.wait([task], timeout=CANCEL_AGAIN_S)


def pod_name(service: str) -> str:
    """A name that no other instance has, nor had."""
    host = socket.gethostname().replace(".", "-")[:40]
    return f"{service}-{host}-{os.getpid()}-{secrets.token_hex(3)}"


def bus_settings(settings: Settings, name: str, user: str, *, repairs: bool = False) -> BusSettings:
    """How to reach the bus, of what is set; `name` is what the server calls the connection.

    `user`: the service, whose password and whose inbox it takes. Raises ConfigurationError.
    """
    login, password = nats_login(settings, user)
    return BusSettings(
        url=settings.nats_url,
        name=name,
        user=login,
        password=password,
        credentials_file=settings.nats_credentials,
        inbox_prefix=settings.nats_inbox_prefix or inbox_prefix(user),
        tls=Tls(settings.nats_tls_ca, settings.nats_tls_cert, settings.nats_tls_key),
        max_unacked_bytes=settings.max_unacked_bytes,
        clock_limit_s=settings.clock_limit_s,
        retention=Retention(
            replicas=settings.replicas,
            raw_max_age_s=settings.raw_max_age_s,
            events_max_age_s=settings.events_max_age_s,
        ),
        repairs=repairs,
    )


@dataclass(slots=True)
class _Waiting:
    """A service that waits for NATS, as the probes see it."""

    name: str
    not_ready: list[str] = field(default_factory=lambda: ["it connects to NATS"])
    notices: Sequence[str] = ()


async def connect(
    service_type: type[Service],
    settings: Settings,
    config: Config,
    waiting: _Waiting | None = None,
) -> Context:
    """A context with a connection of its own.

    Where NATS is not there yet it is waited for, `nats_wait_s` long. Raises StartUpError.
    """
    pod = pod_name(service_type.name)
    until = time.monotonic() + settings.nats_wait_s
    while True:
        try:
            service = service_type.name
            wanted = bus_settings(settings, pod, service, repairs=service_type.repairs_streams)
            bus = await Bus.connect(wanted)
            break
        except NotThereYet as error:
            if time.monotonic() >= until:
                raise
            log.warning("%s waits for NATS: %s", service_type.name, error)
            if waiting is not None:
                waiting.not_ready = [str(error)]
            await asyncio.sleep(CONNECT_AGAIN_S)
    _measure(service_type.name, bus)
    # what is common was decided by the caller; what is the service's own comes from the environment
    own = service_type.settings_type(**settings.model_dump())
    return Context(config, own, bus, pod)


def _measure(service: str, bus: Bus) -> None:
    telemetry.NATS_CONNECTED.labels(service).set_function(lambda: bus.ready)
    for stream in losses.WATCHED:
        telemetry.NATS_LOST.labels(service, stream).set_function(
            partial(bus.continuity.count, stream)
        )
    telemetry.NATS_TROUBLES.labels(service).set_function(lambda: len(bus.not_ready))
    telemetry.CLOCK_OFFSET.labels(service).set_function(lambda: bus.clock.offset_s)
    bus.on_reconnect(telemetry.NATS_RECONNECTS.inc)
    bus.health.count = lambda why, where: telemetry.NATS_REFUSED.labels(why, where).inc()


async def serve(
    service_types: Sequence[type[Service]],
    settings: Settings,
    config: Config,
    *,
    until: Stop,
    on_ready: Callable[[], None] = lambda: None,
    alone: bool = False,
) -> None:
    """Run these services in this process, their routes under one port, until they are to stop.

    They start in the order given and stop in the reverse one. `alone`: see `Context`. Raises
    StartUpError, BindRefused.
    """
    services: list[Service] = []
    server: Server | None = None
    probes: Server | None = None
    auth: Auth | None = None
    insecure = settings.insecure_bind == "yes"
    auth_config = AuthConfig(**settings.auth.model_dump())
    waiting = [_Waiting(service_type.name) for service_type in service_types]
    probed: list[Probed] = [*waiting]
    try:
        # probes ask nobody; where other callers are asked, being reachable is no accident
        reachable = insecure or auth_config.asks
        # a kubelet asks by the pod's address; and a scraper by any name, where a page gets nothing
        # from the other port
        names = ("*",) if auth_config.asks else auth_config.hosts
        probes = Server(
            probe_routes(probed),
            settings.host,
            settings.probe_port,
            reachable,
            Auth(AuthConfig(hosts=names)),
            setting="--probe-port (PENSTOCK_PROBE_PORT; 0 takes a free one)",
            addresses=True,
        )
        await probes.start()
        for number, service_type in enumerate(service_types):
            connecting = connect(service_type, settings, config, waiting[number])
            context = await _unless(until.asked, connecting)
            if context is None:
                return
            services.append(service_type(replace(context, alone=alone)))
            probed[number] = services[number]
        for service in services:
            await service.run()
        routes = [route for service in services for route in service.routes]
        if routes:
            # of a service that has routes: the others may not read tokens
            bus = [service.bus for service in services if service.routes][-1]
            tokens = StreamTokens(bus.bucket("tokens"), BusError, bus.clock.time)
            auth = Auth(auth_config, tokens)
            everything = [*routes, *auth_routes(auth)]
            ping_s = min(service.ws_ping_s for service in services)
            server = Server(everything, settings.host, settings.port, insecure, auth, ping_s)
            await server.start()
        on_ready()
        await until.asked.wait()
        log.info("draining for up to %g s; a second signal ends that", settings.drain_s)
        served = (server,) if server is not None else ()
        if _closes_port(settings, alone=alone):
            for each in served:
                each.close_port()
        await drain(services, settings.drain_s, until.at_once, served)
    finally:
        await stop(services)
        for http in (server, probes):
            if http is not None:
                await http.stop()
        if auth is not None:
            await auth.close()
        for service in services:
            await service.bus.close()


def _closes_port(settings: Settings, *, alone: bool) -> bool:
    """Whether a drain begins with refusing connections, so that clients come back to the successor.

    One that is not alone may stand behind a load balancer, which sends requests until it has
    noticed; a refused one of those would be an error that its client sees.
    """
    if settings.draining_port is None:
        return alone
    return settings.draining_port == "closed"


async def _unless(asked: asyncio.Event, work: Coroutine[Any, Any, T]) -> T | None:
    """What the work comes to; None when the process is asked to end before."""
    working = asyncio.create_task(work)
    waiter = asyncio.create_task(asked.wait())
    try:
        await asyncio.wait({working, waiter}, return_when=asyncio.FIRST_COMPLETED)
        return working.result() if working.done() else None
    finally:
        for task in (working, waiter):
            task.cancel()
        await asyncio.wait({working, waiter})


async def drain(
    services: Sequence[Service],
    grace_s: float,
    at_once: asyncio.Event | None = None,
    servers: Sequence[Server] = (),
) -> None:
    """Drain them side by side; returns when all have, the grace is over, or `at_once` is set."""
    for service in services:
        service.draining = True
    draining = asyncio.gather(
        *(_drained(service, grace_s) for service in services),
        *(server.drain(grace_s) for server in servers),
    )
    hurry = asyncio.ensure_future((at_once or asyncio.Event()).wait())
    both: set[asyncio.Future[Any]] = {draining, hurry}
    await asyncio.wait(both, timeout=grace_s + LATE_S, return_when=asyncio.FIRST_COMPLETED)
    for task in both:
        task.cancel()
    await asyncio.wait(both)


async def _drained(service: Service, grace_s: float) -> None:
    try:
        await service.drain(grace_s)
    except Exception:  # the others must still be drained
        log.exception("%s did not drain in good order", service.name)


async def stop(services: Sequence[Service]) -> None:
    """Stop them in the reverse order of their start, whatever becomes of one of them."""
    for service in reversed(services):
        try:
            async with asyncio.timeout(STOP_S):
                await service.stop()
        except Exception:  # the others must still be stopped
            log.exception("%s did not stop in good order", service.name)


@dataclass(frozen=True, slots=True)
class Stop:
    """When a process ends: `asked` begins the drain, `at_once` ends it before its time."""

    asked: asyncio.Event = field(default_factory=asyncio.Event)
    at_once: asyncio.Event = field(default_factory=asyncio.Event)


def stop_on_signals() -> Stop:
    """Asked for by SIGTERM or SIGINT, at once by a second; a third ends the process as ever."""
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


def main(service_type: type[Service]) -> None:
    """The process of one service: exit 0 after a drain, 2 when it cannot start."""

    async def run() -> None:
        settings = read_settings(service_type.settings_type)
        configure_logging(settings.log_level, settings.log_format)
        redact_logs()
        await serve([service_type], settings, load_config(settings.config), until=stop_on_signals())

    try:
        uvloop.run(run())
    except (ConfigurationError, StartUpError, BindRefused) as error:
        print(f"penstock-{service_type.name}: {error}", file=sys.stderr)
        raise SystemExit(2) from None
