"""Measures what only NATS knows, such as the waiting messages, and how long the loop is busy."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from contextlib import suppress

from penstock import telemetry
from penstock.bus import Bus, BusError, streams
from penstock.bus.admin.permissions import READ_BY_DURABLES
from penstock.busyness import until_tick_s
from penstock.service.service import Service

log = logging.getLogger(__name__)

OBJECTS = "OBJ_payloads"  # the stream of the object store, which holds large payloads
COMMON = (
    *(streams.COMMANDS, streams.SCHEDULES, streams.DELIVERIES, streams.DEADLETTERS),
    *(streams.AUDIT, streams.JOURNAL, OBJECTS),
)
MEASURE_S = 15.0  # seconds between two measurements
# Seconds between two looks at the event loop. A turn of the loop is measured too short by at most
# 1.5 times this time. Looks every 0.02 s took half of the CPU time of an idle process, and every
# 0.1 s a quarter of its wake-ups.
LOOK_S = 0.2
WINDOW_S = 30.0  # The gauge has the longest turn of this window and of the window before.


async def measure(services: Sequence[Service]) -> None:
    """Set the metrics of readers, streams and repaired gaps every `MEASURE_S`, until cancelled.

    Each measurement makes one request for each durable consumer of the process. Normalizers also
    make up to two requests for each stream.
    """
    gaps = 0
    readers: set[tuple[str, str]] = set()
    while True:
        for service in services:
            await _measure_bus(service, readers)
        found = sum(service.bus.jetstream.gaps for service in services)
        telemetry.GAPS_REPAIRED.inc(found - gaps)
        gaps = found
        await asyncio.sleep(MEASURE_S)


async def measure_turns() -> None:
    """Measure how long the event loop of this process takes for one turn, until cancelled. While
    the loop computes, nobody else is served. A process that gets no CPU time looks the same."""
    loop = asyncio.get_running_loop()
    before = longest = 0.0
    window_end = loop.time() + WINDOW_S
    while True:
        # at the moment at which other loops of the process look, too, so that it wakes once
        begun = loop.time()
        due = begun + until_tick_s(LOOK_S, begun)
        await asyncio.sleep(due - begun)
        now = loop.time()
        longest = max(longest, now - due)
        telemetry.LOOP_LONGEST_TURN.set(max(before, longest))
        if now >= window_end:
            before, longest, window_end = longest, 0.0, now + WINDOW_S


async def _measure_bus(service: Service, readers: set[tuple[str, str]]) -> None:
    try:
        await _measure_readers(service.bus)
        # The sizes of streams are the same for every process, so only normalizers measure them.
        if service.repairs_streams:
            await _measure_streams(service.bus)
            await _measure_all_readers(service.bus, readers)
    except BusError as error:
        log.debug("%s: NATS is not measured now: %s", service.name, error)
    except Exception:
        # If an unexpected answer ended the loop, the metrics would keep their last values, and
        # nobody would notice.
        log.exception("%s: NATS cannot be measured, it is tried again", service.name)


async def _measure_readers(bus: Bus) -> None:
    for (stream, reader), waiting in tuple(bus.jetstream.waiting.items()):
        telemetry.READER_WAITING.labels(stream, reader).set(await waiting())


async def _measure_all_readers(bus: Bus, known: set[tuple[str, str]]) -> None:
    """Measure all durable consumers of EVENTS and of the streams in `READ_BY_DURABLES`.

    Nobody else measures the consumers of a service without a running process, or of a subscriber
    outside of Penstock. `known` has the consumers of the last measurement; the values of those that
    no longer exist are removed.
    """
    found = set()
    shards = (streams.events_of(shard) for shard in range(1, bus.shards.made))
    for stream in (*READ_BY_DURABLES, *shards):
        for info in await bus.jetstream.consumers(stream):
            if durable := info["config"].get("durable_name"):
                found.add((stream, durable))
                telemetry.READER_WAITING.labels(stream, durable).set(info["num_pending"])
    for gone in known - found:
        telemetry.READER_WAITING.remove(*gone)
    known.clear()
    known |= found


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
            with suppress(KeyError):  # raised if the stream had no limit before
                telemetry.STREAM_LIMIT.remove(stream)
