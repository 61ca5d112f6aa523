"""The skeleton of every service: what it is made of, and how its process runs.

A service starts its consumers last and drains them first, so that nothing is taken that cannot be
finished. `python -m penstock_<name>` is `main(<its class>)`.
"""

from __future__ import annotations

import asyncio
import logging
import os
import secrets
import signal
import socket
import sys
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import ClassVar

import uvloop
from starlette.routing import BaseRoute

from penstock import telemetry
from penstock.bus import Bus, BusError, BusSettings, Message, StartUpError, Stored
from penstock.bus.streams import Retention
from penstock.bus.subjects import deadletter, run_id_of
from penstock.settings import (
    Config,
    ConfigurationError,
    Settings,
    load_config,
    read_settings,
)
from penstock.telemetry import configure_logging
from penstock.web.auth import Auth, AuthConfig, StreamTokens, auth_routes, redact_logs
from penstock.web.probes import probe_routes
from penstock.web.server import WS_PING_S, BindRefused, Server

log = logging.getLogger(__name__)

RESTART_S = 1.0
CANCEL_AGAIN_S = 5.0


@dataclass(frozen=True, slots=True)
class Context:
    """What a service is given. `pod` names this instance of the process in leases and claims."""

    config: Config
    settings: Settings
    bus: Bus
    pod: str


class Service(ABC):
    """One service. Subclasses say what they start, and in which order they stop."""

    name: ClassVar[str]
    settings_type: ClassVar[type[Settings]] = Settings

    def __init__(self, context: Context) -> None:
        self.context = context
        self.bus = context.bus
        self.routes: Sequence[BaseRoute] = ()
        self.ws_ping_s = WS_PING_S  # how often the peers of its WebSockets are pinged
        self._loops: dict[str, asyncio.Task[None]] = {}
        self._started = False

    @abstractmethod
    async def start(self) -> None:
        """Begin to work; returns when the service takes work."""

    async def stop(self) -> None:
        """Take nothing more, finish what is under way, give everything back."""
        await self.cancel(*self._loops)

    async def run(self) -> None:
        """Start, and say so."""
        await self.start()
        self._started = True
        log.info("%s is ready as %s", self.name, self.context.pod)

    @property
    def ready(self) -> bool:
        """True while it can work: started, and connected to NATS."""
        return self._started and self.bus.ready

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

    async def give_up(self, stored: Stored, error: Exception) -> None:
        """Put a message that cannot be processed among the dead letters: logged, counted, kept."""
        run_id = run_id_of(stored.subject)
        log.error(
            "%s: run %s: %s goes to the dead letters: %r", self.name, run_id, stored.subject, error
        )
        telemetry.DEADLETTERS.labels(self.name).inc()
        reason = repr(error)[:1000].encode("ascii", "backslashreplace").decode()
        letter = Message(
            deadletter(self.name, run_id),
            stored.payload,
            {"Penstock-Reason": reason, "Penstock-From": f"{stored.subject} {stored.sequence}"},
        )
        while True:
            try:
                await self.bus.publisher.publish(letter)
                return
            except BusError as failure:
                log.warning("%s: run %s: no dead letter yet: %s", self.name, run_id, failure)
                await asyncio.sleep(RESTART_S)

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


async def connect(service_type: type[Service], settings: Settings, config: Config) -> Context:
    """A context with a connection of its own. Raises StartUpError."""
    pod = pod_name(service_type.name)
    bus = await Bus.connect(
        BusSettings(
            url=settings.nats_url,
            name=pod,
            user=settings.nats_user,
            password=settings.nats_password,
            credentials_file=settings.nats_credentials,
            retention=Retention(
                replicas=settings.replicas,
                raw_max_age_s=settings.raw_max_age_s,
                events_max_age_s=settings.events_max_age_s,
            ),
        )
    )
    # what is common was decided by the caller; what is the service's own comes from the environment
    own = service_type.settings_type(**settings.model_dump())
    return Context(config, own, bus, pod)


async def serve(
    service_types: Sequence[type[Service]],
    settings: Settings,
    config: Config,
    *,
    until: asyncio.Event,
    on_ready: Callable[[], None] = lambda: None,
) -> None:
    """Run these services in this process, their routes under one port, until `until` is set.

    They start in the order given and stop in the reverse one. Raises StartUpError, BindRefused.
    """
    services: list[Service] = []
    server: Server | None = None
    probes: Server | None = None
    auth: Auth | None = None
    insecure = settings.insecure_bind == "yes"
    auth_config = AuthConfig(**settings.auth.model_dump())
    try:
        for service_type in service_types:
            services.append(service_type(await connect(service_type, settings, config)))
        for service in services:
            await service.run()
        routes = [route for service in services for route in service.routes]
        if routes:
            tokens = StreamTokens(services[0].bus.bucket("tokens"), BusError)
            auth = Auth(auth_config, tokens)
            everything = [*routes, *auth_routes(auth)]
            ping_s = min(service.ws_ping_s for service in services)
            server = Server(everything, settings.host, settings.port, insecure, auth, ping_s)
            await server.start()
        # probes ask nobody; where other callers are asked, being reachable is no accident
        reachable = insecure or auth_config.asks
        probes = Server(probe_routes(services), settings.host, settings.probe_port, reachable)
        await probes.start()
        on_ready()
        await until.wait()
        log.info("draining")
    finally:
        for service in reversed(services):
            try:
                await service.stop()
            except Exception:  # the others must still be stopped
                log.exception("%s did not stop in good order", service.name)
        for http in (server, probes):
            if http is not None:
                await http.stop()
        if auth is not None:
            await auth.close()
        for service in services:
            await service.bus.close()


def stop_on_signals() -> asyncio.Event:
    """Set by SIGTERM and SIGINT."""
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
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
