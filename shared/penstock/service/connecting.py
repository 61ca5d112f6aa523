"""Connects a service to the bus."""

from __future__ import annotations

import asyncio
import logging
import os
import secrets
import socket
import time
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

from penstock import telemetry
from penstock.bus import Bus, BusSettings, NotThereYet
from penstock.bus.admin.permissions import inbox_prefix
from penstock.bus.connection.settings import Tls
from penstock.bus.state import losses
from penstock.bus.streams import Retention
from penstock.service.key_service import is_wrapped, open_content_keys
from penstock.service.service import Context, Service
from penstock.settings import Config, Settings, nats_login
from penstock.settings.keep import Keep, parse_keep

log = logging.getLogger(__name__)

CONNECT_AGAIN_S = 5.0


def pod_name(service: str) -> str:
    host = socket.gethostname().replace(".", "-")[:40]
    return f"{service}-{host}-{os.getpid()}-{secrets.token_hex(3)}"


def bus_settings(settings: Settings, name: str, user: str, *, repairs: bool = False) -> BusSettings:
    """Return the settings of a connection of this name, with the password and inboxes of the user.

    With `repairs`, the connection repairs streams that have lost their end. Raises
    ConfigurationError if the password of the user cannot be read. The content keys must be open
    (`open_content_keys`): sealing with a wrapped one, which is no secret, would hide nothing.
    """
    if any(map(is_wrapped, settings.content_keys)):
        raise ValueError("content keys must be opened before a connection has them")
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
        retention=retention(parse_keep(settings.keep), settings.replicas, settings.shards),
        content_keys=settings.content_keys,
        repairs=repairs,
    )


def retention(keep: Keep, replicas: int = 1, shards: int = 1) -> Retention:
    """Return the limits of streams. The list of runs is kept at least as long as events: without
    its record, a run is not shown, and its content cannot be erased."""
    ages_s: dict[str, Any] = {f"{kind}_max_age_s": age_s for kind, age_s in keep.ages_s.items()}
    found = Retention(replicas=replicas, shards=shards, **ages_s)
    return replace(found, runs_max_age_s=max(found.runs_max_age_s, found.events_max_age_s))


@dataclass(slots=True)
class Waiting:
    """Answers probes for a service while the service waits for NATS, or for its content keys."""

    name: str
    not_ready: list[str] = field(default_factory=lambda: ["it connects to NATS"])
    notices: Sequence[str] = ()


async def connect(
    service_type: type[Service],
    settings: Settings,
    config: Config,
    waiting: Waiting | None = None,
) -> Context:
    """Open the content keys and connect to NATS, for up to `nats_wait_s`; return the service's
    context with the connection.

    Raises:
        StartUpError: NATS or the key service cannot be used, or was not reachable in time.
        ConfigurationError: the password of the NATS user cannot be read.
    """
    pod = pod_name(service_type.name)
    until = time.monotonic() + settings.nats_wait_s
    while True:
        try:
            service = service_type.name
            settings = await open_content_keys(settings)
            wanted = bus_settings(settings, pod, service, repairs=service_type.repairs_streams)
            bus = await Bus.connect(wanted)
            break
        except NotThereYet as error:
            if time.monotonic() >= until:
                raise
            log.warning("%s waits: %s", service_type.name, error)
            if waiting is not None:
                waiting.not_ready = [str(error)]
            await asyncio.sleep(CONNECT_AGAIN_S)
    _measure(service_type.name, bus)
    # The caller has passed the common settings. Only the service's own settings are read from the
    # environment.
    own = service_type.settings_type(**settings.model_dump())
    return Context(config, own, bus, pod)


def _measure(service: str, bus: Bus) -> None:
    # the counter begins at 0, so that the first dead letter is an increase
    telemetry.DEADLETTERS.labels(service)
    telemetry.NATS_CONNECTED.labels(service).set_function(lambda: bus.is_ready)
    # Shards that are made later are not measured before the next start of this process.
    for stream in losses.watched_streams(bus.shards.made):
        telemetry.NATS_LOST.labels(service, stream).set_function(
            partial(bus.continuity.count, stream)
        )
    telemetry.NATS_TROUBLES.labels(service).set_function(lambda: len(bus.not_ready))
    telemetry.CLOCK_OFFSET.labels(service).set_function(lambda: bus.clock.offset_s)
    bus.on_reconnect(telemetry.NATS_RECONNECTS.inc)
    bus.content.refused = telemetry.CONTENT_REFUSED.inc
    bus.health.count = lambda why, where: telemetry.NATS_REFUSED.labels(why, where).inc()
