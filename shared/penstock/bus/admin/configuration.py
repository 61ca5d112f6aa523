"""The configurations of streams: as this version declares them, as the server has them, compared.

Every stream carries the schema that it has (`streams.SCHEMA`) in its metadata, and the oldest
schema whose services can still work on it. Only the holder of a lease changes a stream.
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
from penstock.bus.state.leases import Lease, keep
from penstock.bus.streams import Retention

Configuration = dict[str, Any]  # of a stream, in the form of the JetStream API

LEASE_TTL_S = 15.0
LEASE_WAIT_S = 30.0
LOOK_S = 0.1

_COUNT = re.compile(r"partition\((\d+),1\)")


@dataclass(frozen=True, slots=True)
class Difference:
    """One field of one stream: its present value, and the wanted one."""

    stream: str
    field: str
    found: Any
    wanted: Any

    def __str__(self) -> str:
        return f"{self.field} is {self.found}, not {self.wanted}"


def declared(retention: Retention) -> list[Configuration]:
    """Every stream and bucket. The bucket of leases comes first: changing another needs a lease."""
    made: list[StreamConfig] = [*streams.streams(retention), *streams.buckets(retention)]
    made.sort(key=lambda config: config.name != "KV_leases")
    mark = {streams.SCHEMA_KEY: f"{streams.SCHEMA}", streams.OLDEST_KEY: f"{streams.OLDEST}"}
    return [{**config.as_dict(), "metadata": mark} for config in made]


def schema_of(found: Configuration) -> int:
    """The schema of a stream; 1 for a stream of release 0.1, which recorded no schema."""
    return int((found.get("metadata") or {}).get(streams.SCHEMA_KEY, 1))


def partitions_of(raw: Configuration) -> int:
    """The number of partitions into which RAW divides the runs."""
    count = _COUNT.search(raw["subject_transform"]["dest"])
    assert count is not None
    return int(count[1])


def with_partitions(transform: Any, count: int) -> Any:
    """A subject transform with this number of partitions; any other value unchanged."""
    if not isinstance(transform, dict) or not _COUNT.search(transform.get("dest", "")):
        return transform
    return {**transform, "dest": _COUNT.sub(f"partition({count},1)", transform["dest"])}


def differences(
    wanted: Configuration, found: Configuration, fields: tuple[str, ...]
) -> list[Difference]:
    """The declared fields in which two configurations differ, the number of partitions aside."""
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


async def configuration(bus: HasJetStream, name: str) -> Configuration | None:
    """A stream's configuration, fields that this version does not know included; None without one.

    Raises:
        BusError: the server cannot be asked.
    """
    try:
        info = await bus.jetstream.api(f"STREAM.INFO.{name}")
    except ApiError as error:
        if error.code == STREAM_NOT_FOUND:
            return None
        raise
    found: Configuration = info["config"]
    return found


async def expected(bus: HasJetStream, name: str) -> Configuration:
    """The configuration of a stream that must exist.

    Raises:
        BusError: the stream does not exist, or the server cannot be asked.
    """
    found = await configuration(bus, name)
    if found is None:
        raise BusError(f"the stream {name} does not exist any more")
    return found


async def update(
    bus: HasJetStream, found: Configuration, changes: list[Difference], metadata: dict[str, str]
) -> Configuration:
    """Change these fields of a stream and no others; returns the new configuration.

    Raises:
        BusError: the server refuses the change, or cannot be asked.
    """
    wanted = {
        **found,
        **{change.field: change.wanted for change in changes},
        "metadata": {**(found.get("metadata") or {}), **metadata},
    }
    if 0 < wanted["max_age"] < wanted.get("duplicate_window", 0):
        wanted["duplicate_window"] = wanted["max_age"]  # the server demands this
    answer = await bus.jetstream.api(f"STREAM.UPDATE.{found['name']}", wanted)
    updated: Configuration = answer["config"]
    return updated


@asynccontextmanager
async def alone(bus: Buckets) -> AsyncIterator[Lease]:
    """Hold the lease on changes of streams.

    Raises:
        StartUpError: another process holds the lease for too long.
        BusError: the bucket of leases cannot be read or written.
    """
    lease = Lease(bus, "streams.migration", f"migration-{secrets.token_hex(8)}", LEASE_TTL_S)
    try:
        async with asyncio.timeout(LEASE_WAIT_S):
            while not await lease.acquire():
                await asyncio.sleep(LOOK_S)
    except TimeoutError:
        raise StartUpError(
            "another service has been changing the streams for too long (KV leases, "
            "key streams.migration); try again"
        ) from None
    keeper = asyncio.create_task(keep(lease, LEASE_TTL_S / 3))
    try:
        yield lease
    finally:
        keeper.cancel()
        await asyncio.wait([keeper])
