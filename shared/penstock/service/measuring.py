"""Measure what only NATS knows: what waits for readers, and the size of streams."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from contextlib import suppress

from penstock import telemetry
from penstock.bus import Bus, BusError, streams
from penstock.service.service import Service

log = logging.getLogger(__name__)

COMMON = (
    *(streams.COMMANDS, streams.SCHEDULES, streams.DELIVERIES, streams.DEADLETTERS),
    *(streams.AUDIT, streams.JOURNAL),
)
MEASURE_S = 15.0  # seconds between two measurements


async def measure(services: Sequence[Service]) -> None:
    """Set these metrics every `MEASURE_S` seconds, until cancelled.

    The requests cost NATS one answer for each stream and each durable consumer of the process.
    """
    gaps = 0
    while True:
        for service in services:
            await _measure_bus(service)
        found = sum(service.bus.jetstream.gaps for service in services)
        telemetry.GAPS_REPAIRED.inc(found - gaps)
        gaps = found
        await asyncio.sleep(MEASURE_S)


async def _measure_bus(service: Service) -> None:
    try:
        await _measure_readers(service.bus)
        # Every process would measure the same, so only normalizers do.
        if service.repairs_streams:
            await _measure_streams(service.bus)
    except BusError as error:
        log.debug("%s: NATS is not measured now: %s", service.name, error)
    except Exception:
        # Without this, an unexpected answer would end the loop, and the metrics would keep their
        # last values without a sign of it.
        log.exception("%s: NATS cannot be measured, it is tried again", service.name)


async def _measure_readers(bus: Bus) -> None:
    for (stream, reader), waiting in tuple(bus.jetstream.waiting.items()):
        telemetry.READER_WAITING.labels(stream, reader).set(await waiting())


async def _measure_streams(bus: Bus) -> None:
    shards = range(bus.shards.made)
    of_shards = [
        name for each in shards for name in (streams.raw_of(each), streams.events_of(each))
    ]
    for stream in (*COMMON, *of_shards):
        info = await bus.api(f"STREAM.INFO.{stream}")
        telemetry.STREAM_BYTES.labels(stream).set(info["state"]["bytes"])
        if (limit := info["config"].get("max_bytes", -1)) > 0:
            telemetry.STREAM_LIMIT.labels(stream).set(limit)
        else:
            with suppress(KeyError):  # the stream had no limit before, either
                telemetry.STREAM_LIMIT.remove(stream)
