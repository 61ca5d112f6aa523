"""Compares declared configurations of streams with the server's, and changes streams.

The metadata of every stream contain the stream's schema (`streams.SCHEMA`), and the oldest schema
whose services can still work on the stream. Only the holder of a lease changes a stream.
"""

from __future__ import annotations

import asyncio
import re
import secrets
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

from nats.js.api import StreamConfig

from penstock.bus import streams
from penstock.bus.connection.jetstream import HasJetStream
from penstock.bus.errors import STREAM_NOT_FOUND, ApiError, BusError, StartUpError
from penstock.bus.state.kv import Buckets
from penstock.bus.state.leases import Lease
from penstock.bus.streams import Retention

Configuration = dict[str, Any]  # the configuration of a stream as the JetStream API writes it

LEASE_TTL_S = 15.0  # the TTL of the lease on changes
LEASE_WAIT_S = 30.0  # the most seconds to wait for this lease
CHECK_S = 0.1  # seconds between two attempts or checks

_COUNT = re.compile(r"partition\((\d+),1\)")


@dataclass(frozen=True, slots=True)
class Difference:
    """The present value and the wanted value of one field of one stream."""

    stream: str
    field: str
    found: Any
    wanted: Any

    def __str__(self) -> str:
        return f"{self.field} is {self.found}, not {self.wanted}"


def declared(retention: Retention, shards: int = 1) -> list[Configuration]:
    """Return the configurations of all streams and buckets, with this number of shards. The bucket
    of leases comes first, since every change of another stream needs a lease."""
    made: list[StreamConfig] = [*streams.streams(retention), *streams.buckets(retention)]
    made.sort(key=lambda config: config.name != "KV_leases")
    return [*map(_marked, made), *declared_shards(retention, shards)]


def declared_shards(retention: Retention, shards: int) -> list[Configuration]:
    return [
        _marked(config, streams.OLDEST_WITH_SHARDS)
        for shard in range(1, shards)
        for config in streams.shard_streams(retention, shard)
    ]


def _marked(config: StreamConfig, oldest: int = streams.OLDEST) -> Configuration:
    mark = {streams.SCHEMA_KEY: f"{streams.SCHEMA}", streams.OLDEST_KEY: f"{oldest}"}
    return {**config.as_dict(), "metadata": mark}


def oldest_of(found: Configuration) -> int:
    return int((found.get("metadata") or {}).get(streams.OLDEST_KEY, 1))


def schema_of(found: Configuration) -> int:
    """Return the schema of a stream; 1 for a stream without a recorded schema."""
    return int((found.get("metadata") or {}).get(streams.SCHEMA_KEY, 1))


def has_partitions(found: Configuration) -> bool:
    """Return whether this is a configuration of RAW, whose transform has partitions."""
    return bool(_COUNT.search((found.get("subject_transform") or {}).get("dest", "")))


def partitions_of(raw: Configuration) -> int:
    count = _COUNT.search(raw["subject_transform"]["dest"])
    assert count is not None
    return int(count[1])


def with_partitions(transform: Any, count: int) -> Any:
    if not isinstance(transform, dict) or not _COUNT.search(transform.get("dest", "")):
        return transform
    return {**transform, "dest": _COUNT.sub(f"partition({count},1)", transform["dest"])}


def differences(
    wanted: Configuration, found: Configuration, fields: tuple[str, ...]
) -> list[Difference]:
    """Return the declared fields that differ. Another number of partitions is no difference."""
    return [
        Difference(found["name"], field, found.get(field), wanted[field])
        for field in fields
        if wanted.get(field) is not None
        and _plain(wanted[field], field) != _plain(found.get(field) or 0, field)
    ]


def _plain(value: Any, field: str) -> Any:
    if field == "subjects":
        return sorted(value)
    if isinstance(value, dict):
        return {key: _COUNT.sub("partition(n,1)", str(each)) for key, each in value.items()}
    return value or 0  # the server leaves out fields that are false


async def info_of(bus: HasJetStream, name: str) -> dict[str, Any] | None:
    """Return what NATS says of a stream; None without it."""
    try:
        return await bus.jetstream.api(f"STREAM.INFO.{name}")
    except ApiError as error:
        if error.code == STREAM_NOT_FOUND:
            return None
        raise


async def configuration(bus: HasJetStream, name: str) -> Configuration | None:
    """Return a stream's configuration, with fields that this version does not know; None without
    it."""
    info = await info_of(bus, name)
    found: Configuration | None = info["config"] if info is not None else None
    return found


async def expected(bus: HasJetStream, name: str) -> Configuration:
    found = await configuration(bus, name)
    if found is None:
        raise BusError(f"the stream {name} does not exist any more")
    return found


async def update(
    bus: HasJetStream, found: Configuration, changes: list[Difference], metadata: dict[str, str]
) -> Configuration:
    """Change these fields of a stream and no other fields; return the new configuration."""
    wanted = {
        **found,
        **{change.field: change.wanted for change in changes},
        "metadata": {**(found.get("metadata") or {}), **metadata},
    }
    if 0 < wanted["max_age"] < wanted.get("duplicate_window", 0):
        # The server refuses a duplicate window that is longer than the age limit.
        wanted["duplicate_window"] = wanted["max_age"]
    answer = await bus.jetstream.api(f"STREAM.UPDATE.{found['name']}", wanted)
    updated: Configuration = answer["config"]
    return updated


@asynccontextmanager
async def change_lease(bus: Buckets) -> AsyncIterator[Lease]:
    """Hold the lease that every change of streams needs. Raises StartUpError if another process
    holds the lease for too long."""
    lease = Lease(bus, "streams.migration", f"migration-{secrets.token_hex(8)}", LEASE_TTL_S)
    try:
        async with asyncio.timeout(LEASE_WAIT_S):
            while not await lease.acquire():
                await asyncio.sleep(CHECK_S)
    except TimeoutError:
        raise StartUpError(
            "another service has been changing the streams for too long (KV leases, "
            "key streams.migration); try again"
        ) from None
    keeper = asyncio.create_task(lease.hold(LEASE_TTL_S / 3))
    try:
        yield lease
    finally:
        keeper.cancel()
        await asyncio.wait([keeper])
