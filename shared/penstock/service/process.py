"""Runs a process with services.

The process starts the services, serves their routes, and later drains and stops the services.

After SIGTERM or SIGINT, the services report at once that they are not ready. The services then
drain concurrently for up to `PENSTOCK_DRAIN_S` seconds. Then the services stop in the reverse order
of their start, each within a time limit. A second signal ends the drain, so that the services stop.
A third signal ends the process at once.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import logging
import os
import socket
import sys
from collections.abc import Callable, Coroutine, Sequence
from contextlib import AsyncExitStack
from dataclasses import replace
from typing import Any, TypeVar

import uvloop

from penstock import telemetry
from penstock.bus import Bus, BusError, StartUpError
from penstock.service.connecting import Waiting, connect
from penstock.service.measuring import measure, measure_turns
from penstock.service.service import Service
from penstock.service.stopping import Stop, drain, stop, stop_on_signals
from penstock.service.token_index import BUCKET, TokenIndex
from penstock.settings import Config, ConfigurationError, Settings, load_config, read_settings
from penstock.telemetry import configure_logging
from penstock.tracing import setup as tracing
from penstock.web.auth import Auth, AuthConfig, ServiceTokens, StreamTokens
from penstock.web.auth.csrf import fingerprint
from penstock.web.auth.origins import is_loopback
from penstock.web.body_memory import BodyMemory
from penstock.web.credential_routes import auth_routes
from penstock.web.probes import Probed, probe_routes
from penstock.web.server import BindRefused, Server

log = logging.getLogger(__name__)

T = TypeVar("T")

# The thresholds of Python's garbage collector. The first is the number of new objects after which
# the young objects are collected. The second is the number of these collections after which older
# objects are collected, too. The third is the number of those collections after which all objects
# are collected.
COLLECT_AFTER = (20_000, 20, 10)
CANCEL_S = 2.0  # seconds that a task may take to end after it was cancelled


async def serve(
    service_types: Sequence[type[Service]],
    settings: Settings,
    config: Config,
    *,
    until: Stop,
    on_ready: Callable[[], None] = lambda: None,
    alone: bool = False,
    has_options: bool = False,
) -> None:
    """Run these services in this process until `until` is set, with all routes under one port.

    The services start in this order and stop in the reverse order. `Context` describes `alone`.
    `has_options` says whether the command of this process has the options `--port` and
    `--probe-port`, so that an error may name them.

    Raises:
        StartUpError: NATS cannot be used, or did not become reachable in time.
        BindRefused: a port cannot be opened.
    """
    auth_config = AuthConfig(**settings.auth.model_dump())
    exporter = _observe(service_types, config)
    waiting = [Waiting(service_type.name) for service_type in service_types]
    probed: list[Probed] = [*waiting]
    services: list[Service] = []
    # The services stop first, while the server and the probes still answer. Then everything else is
    # closed in the reverse order in which it was opened.
    async with AsyncExitStack() as stack, AsyncExitStack() as at_first:
        at_first.push_async_callback(stop, services)
        stack.push_async_callback(tracing.stop, exporter)
        stack.push_async_callback(_close_buses, services)
        probes = _probes(service_types, settings, auth_config, probed, has_options)
        stack.push_async_callback(probes.stop)
        await probes.start()
        for number, service_type in enumerate(service_types):
            connecting = connect(service_type, settings, config, waiting[number])
            context = await _unless(until.asked, connecting)
            if context is None:
                return
            services.append(service_type(replace(context, alone=alone)))
            probed[number] = services[number]
        for service in services:
            await service.start()
        servers = await _serve_routes(services, settings, auth_config, stack, has_options)
        for service in services:
            service.mark_ready()
        _run_until_closed("measure", measure(services), stack)
        _run_until_closed("measure-turns", measure_turns(), stack)
        on_ready()
        await until.asked.wait()
        log.info("draining for up to %g s; a second signal ends that", settings.drain_s)
        if _closes_port(settings, alone=alone):
            for server in servers:
                server.close_port()
        await drain(services, settings.drain_s, until.at_once, servers)


async def _serve_routes(
    services: Sequence[Service],
    settings: Settings,
    auth_config: AuthConfig,
    stack: AsyncExitStack,
    has_options: bool,
) -> list[Server]:
    """Serve all routes under one port until `stack` is closed; return the server, if there are
    any."""
    routes = [route for service in services for route in service.routes]
    if not routes:
        return []
    # The bus must be the bus of a service with routes, because the NATS users of all other services
    # may not read the bucket `tokens`.
    bus = [service.bus for service in services if service.routes][-1]
    store = TokenIndex(bus)
    _run_until_closed("list-tokens", store.index.run(), stack)
    auth = _auth(auth_config, bus, store)
    stack.push_async_callback(auth.close)
    server = Server(
        [*routes, *auth_routes(auth)],
        settings.host,
        settings.port,
        settings.insecure_bind == "yes",
        auth,
        min(service.ws_ping_s for service in services),
        setting="--port (PENSTOCK_PORT)" if has_options else "PENSTOCK_PORT",
        body_memory=BodyMemory(
            settings.anonymous_body_bytes, settings.anonymous_body_bytes_per_address
        ),
    )
    stack.push_async_callback(server.stop)
    await server.start()
    return [server]


def _run_until_closed(name: str, loop: Coroutine[Any, Any, None], stack: AsyncExitStack) -> None:
    task = asyncio.create_task(loop, name=name)

    async def end() -> None:
        task.cancel()
        await asyncio.wait([task], timeout=CANCEL_S)

    stack.push_async_callback(end)


def _probes(
    service_types: Sequence[type[Service]],
    settings: Settings,
    auth: AuthConfig,
    probed: Sequence[Probed],
    has_options: bool,
) -> Server:
    serves_api = any(service_type.operations for service_type in service_types)
    asks = serves_api and auth.requires_credentials
    # If the API's port requires authentication, or the process has no API, the operator wants other
    # machines to reach the address. Then other machines may reach the probes, too.
    reachable = settings.insecure_bind == "yes" or asks or not serves_api
    # A kubelet uses the pod's address, and a metrics scraper may use any host name. So every host
    # name is allowed where other machines may reach the probes. Otherwise only configured host
    # names are allowed, so that no web page can read the probes by DNS rebinding.
    is_open = asks or not (serves_api or is_loopback(settings.host))
    return Server(
        probe_routes(probed, (fingerprint(auth) or "its own") if asks else None),
        settings.host,
        settings.probe_port,
        reachable,
        Auth(AuthConfig(hosts=("*",) if is_open else auth.hosts)),
        setting="--probe-port (PENSTOCK_PROBE_PORT; 0 takes a free one)"
        if has_options
        else "PENSTOCK_PROBE_PORT (0 takes a free one)",
        addresses=True,
    )


def _observe(service_types: Sequence[type[Service]], config: Config) -> tracing.Exporter | None:
    """Name this process in the metrics. If OTEL_… variables name a collector, switch tracing on."""
    telemetry.name_process(agent.id for agent in config.agents)
    alone = len(service_types) == 1
    name = f"penstock-{service_types[0].name}" if alone else "penstock"
    try:
        return tracing.start(name, f"{socket.gethostname()}-{os.getpid()}", os.environ)
    except tracing.TracingRefused as error:
        raise ConfigurationError(str(error)) from None


async def _close_buses(services: Sequence[Service]) -> None:
    for service in services:
        await service.bus.close()


def _auth(config: AuthConfig, bus: Bus, store: TokenIndex) -> Auth:
    return Auth(
        config,
        StreamTokens(store, BusError, bus.clock.time),
        ServiceTokens(bus.bucket(BUCKET), BusError, bus.clock.time),
    )


def _closes_port(settings: Settings, *, alone: bool) -> bool:
    """Return whether a drain first closes the port, so that clients reconnect to another process.

    By default, only a process that works alone closes its port. Any other process may be behind a
    load balancer, which sends requests until the load balancer notices the drain. If the port was
    closed, the clients would get errors for these requests.
    """
    if settings.draining_port is None:
        return alone
    return settings.draining_port == "closed"


async def _unless(asked: asyncio.Event, work: Coroutine[Any, Any, T]) -> T | None:
    """Return the result of `work`. If `asked` is set first, cancel `work` and return None."""
    working = asyncio.create_task(work)
    waiter = asyncio.create_task(asked.wait())
    try:
        await asyncio.wait({working, waiter}, return_when=asyncio.FIRST_COMPLETED)
        return working.result() if working.done() else None
    finally:
        for task in (working, waiter):
            task.cancel()
        await asyncio.wait({working, waiter})


def tune_collector() -> None:
    """Make Python's garbage collector look for cycles less often.

    A full collection looks at every object, and meanwhile the process does nothing else. With
    Python's own thresholds (700, 10, 10) and 10,000 open runs, the normalizer stood still for up to
    1.3 s at a time, and the starts of these runs took 3.1 s of CPU instead of 1.9 s. Garbage
    without a cycle is freed at once without the collector, and nearly all garbage here has no
    cycle.
    """
    gc.set_threshold(*COLLECT_AFTER)


def main(service_type: type[Service]) -> None:
    """Run the process of one service, which takes no arguments except `--help`. If the service
    cannot start, the exit code is 2, and stderr says why."""
    argparse.ArgumentParser(
        prog=f"python -m penstock_{service_type.name}",
        description="Run this service until SIGTERM. Its settings are environment variables "
        "(PENSTOCK_...), which the README of the service describes.",
    ).parse_args()
    tune_collector()

    async def run() -> None:
        settings = read_settings(service_type.settings_type)
        if service_type.operations:
            settings.auth.check_shared()
        configure_logging(settings.log_level, settings.log_format)
        await serve([service_type], settings, load_config(settings.config), until=stop_on_signals())

    try:
        uvloop.run(run())
    except (ConfigurationError, StartUpError, BindRefused) as error:
        print(f"penstock-{service_type.name}: {error}", file=sys.stderr)
        raise SystemExit(2) from None
