"""Makes missing streams and upgrades older streams when a service starts.

A start never downgrades a stream of a newer schema, and holds a lease while it upgrades an older
one. So several services may start at once, even services of different versions. A start does not
change the limits and replicas of streams (`streams.RETENTION`); the operator changes them with
`migrate.apply`.
"""

from __future__ import annotations

import asyncio
import logging
from dataclasses import dataclass, replace
from typing import Any

from penstock.bus import shards, streams
from penstock.bus.admin import configuration as configurations
from penstock.bus.admin.configuration import (
    Configuration,
    Difference,
    declared,
    declared_shards,
    differences,
    expected,
    has_partitions,
    info_of,
    oldest_of,
    partitions_of,
    schema_of,
    update,
    with_partitions,
)
from penstock.bus.errors import (
    STREAM_NAME_IN_USE,
    ApiError,
    BusError,
    NotPermitted,
    NotThereYet,
    StartUpError,
    refusal,
)
from penstock.bus.shards import ONE, Shards
from penstock.bus.state.kv import Buckets
from penstock.bus.streams import Retention

log = logging.getLogger(__name__)

_NO_CLUSTER = 10074  # the err_code for several replicas on a server alone


@dataclass(frozen=True, slots=True)
class Ensured:
    """A stream that exists: when it was created, as NATS says, and whether that was just now."""

    created: str
    is_new: bool


async def ensure(bus: Buckets, retention: Retention) -> dict[str, Ensured]:
    """Make the streams that are missing, and upgrade streams of an older schema.

    Returns all streams by name. A new installation gets `retention.shards` shards. Any other
    installation keeps its shards, and only the operator makes more (`migrate.reshard`).

    Raises:
        NotThereYet: this user may not make or change streams, or a leader is missing.
        StartUpError: a stream is not Penstock's, or is too new for this version.
    """
    ensured = await ensure_all(bus, declared(retention))
    try:
        found = await shards_of(bus)
        if found == ONE and ensured[streams.RAW].is_new and retention.shards > 1:
            ensured |= await ensure_all(bus, declared_shards(retention, retention.shards))
            await mark_shards(bus, retention.shards)
            wanted = Shards(retention.shards, retention.shards)
            await bus.bucket(shards.BUCKET).create(shards.KEY, wanted.dump())
            found = await shards_of(bus)
        else:
            found = await _with_marked_shards(bus, found)
            ensured |= await ensure_all(bus, declared_shards(retention, found.made))
    except StartUpError:
        raise
    except BusError as error:
        raise refusal(error)(f"cannot read the number of shards: {error}") from error
    if retention.shards not in (1, found.used):
        log.warning(
            "new runs are divided among %d shards, not %d as PENSTOCK_SHARDS says. `penstock "
            "streams migrate --shards %d` changes the number",
            found.used,
            retention.shards,
            retention.shards,
        )
    return ensured


async def mark_shards(bus: Buckets, count: int) -> None:
    """Write into the streams of shard 0 that there are this many shards.

    Services that do not know shards then refuse to start. And if NATS loses the record of shards,
    the next start writes the record again.
    """
    for name in (streams.RAW, streams.EVENTS):
        found = await expected(bus, name)
        if count > _marked_shards(found):
            oldest = max(oldest_of(found), streams.OLDEST_WITH_SHARDS)
            mark = {streams.OLDEST_KEY: f"{oldest}", streams.SHARDS_KEY: f"{count}"}
            await update(bus, found, [], mark)


def _marked_shards(found: Configuration) -> int:
    return int((found.get("metadata") or {}).get(streams.SHARDS_KEY, 1))


async def _with_marked_shards(bus: Buckets, recorded: Shards) -> Shards:
    """Return the record of shards, corrected if RAW's mark names more shards. If the record lacked
    shards, the normalizers would not read the frames of these shards."""
    marked = _marked_shards(await expected(bus, streams.RAW))
    if marked <= recorded.made:
        return recorded
    log.warning("the record of shards names %d of %d shards", recorded.made, marked)
    bucket = bus.bucket(shards.BUCKET)
    entry = await bucket.get(shards.KEY)
    wanted = Shards(marked, recorded.used)
    revision = entry.revision if entry is not None else 0
    try:
        await bucket.update(shards.KEY, wanted.dump(), revision)
    except NotPermitted as error:
        # The users of most services may not write the record. A normalizer or the operator may.
        log.warning("the record of shards is not written by this service: %s", error)
    return wanted


async def shards_of(bus: Buckets) -> Shards:
    """Return the recorded number of shards; one shard without a record."""
    entry = await bus.bucket(shards.BUCKET).get(shards.KEY)
    if entry is None:
        return ONE
    try:
        return Shards.parse(entry.value)
    except ValueError as error:
        raise BusError(
            f"KV {shards.BUCKET}, key {shards.KEY} cannot be read: {error}. Write the record again "
            "with `penstock streams migrate --shards`"
        ) from error


async def ensure_all(bus: Buckets, wanted_streams: list[Configuration]) -> dict[str, Ensured]:
    """Make or upgrade these streams; return them by name."""
    ensured = {}
    # The requests run concurrently. One request after another would take 30 round trips.
    answers = await asyncio.gather(
        *(info_of(bus, wanted["name"]) for wanted in wanted_streams), return_exceptions=True
    )
    for wanted, answer in zip(wanted_streams, answers, strict=True):
        try:
            if isinstance(answer, BaseException):
                raise answer
            ensured[str(wanted["name"])] = await _ensure(bus, wanted, answer)
        except StartUpError:
            raise
        except NotPermitted as error:
            raise NotThereYet(
                f"the stream {wanted['name']} is missing, or is of an older version, and this NATS "
                f"user may not change that ({error}): let the operator make the streams "
                "(`penstock streams make`)"
            ) from error
        except BusError as error:
            raise refusal(error)(
                f"cannot ensure the stream {wanted['name']}: {error}. {_advice(error, wanted)}"
            ) from error
    return ensured


def _advice(error: BusError, wanted: Configuration) -> str:
    if isinstance(error, ApiError) and error.code == _NO_CLUSTER:
        return (
            f"A stream with {wanted['num_replicas']} replicas needs a cluster of as many NATS "
            "servers, and this server is alone: set PENSTOCK_REPLICAS=1 (in the chart, "
            "streams.replicas: 1), or use a cluster"
        )
    return "May this user create streams? Is a stream of another owner in the way?"


async def _ensure(bus: Buckets, wanted: Configuration, info: dict[str, Any] | None) -> Ensured:
    if info is None:
        try:
            made = await bus.jetstream.api(f"STREAM.CREATE.{wanted['name']}", wanted)
            return Ensured(made["created"], is_new=True)
        except ApiError as error:
            if error.code != STREAM_NAME_IN_USE:
                raise
        info = await info_of(bus, wanted["name"])  # another version has just made the stream
        if info is None:
            raise BusError(f"the stream {wanted['name']} does not exist any more")
    found: Configuration = info["config"]
    if schema_of(found) < streams.SCHEMA:
        async with configurations.change_lease(bus):
            found = await _upgrade(bus, wanted)
    _check(wanted, found)
    # A start never changes retention. Otherwise a service with wrong settings would delete messages
    # that other services need.
    if other := differences(wanted, found, streams.RETENTION):
        log.warning(
            "the stream %s stays as it is: %s. `penstock streams migrate` changes it",
            *(wanted["name"], ", ".join(map(str, other))),
        )
    if found.get("max_bytes", -1) > 0 and found.get("discard") == "old":
        log.warning(
            "the stream %s deletes its oldest messages beyond %d bytes, read or not. An account "
            "that is full (max_file_store) holds everything back instead: `nats stream edit %s "
            "--max-bytes=-1`",
            found["name"],
            found["max_bytes"],
            found["name"],
        )
    return Ensured(info["created"], is_new=False)


async def _upgrade(bus: Buckets, wanted: Configuration) -> Configuration:
    found = await expected(bus, wanted["name"])
    if schema_of(found) >= streams.SCHEMA:
        return found  # another process has upgraded the stream meanwhile
    if not set(found["subjects"]) <= set(wanted["subjects"]):
        raise _not_ours(found, differences(wanted, found, ("subjects",)))
    # A field without a declared value keeps the server's value, and RAW keeps its number of
    # partitions.
    changes = [
        replace(each, wanted=_keeping_partitions(found, each.wanted))
        for each in differences(wanted, found, streams.FORWARD)
        if each.wanted
    ]
    log.info(
        "the stream %s is brought from schema %d to %d%s",
        found["name"],
        schema_of(found),
        streams.SCHEMA,
        "".join(f"; {change}" for change in changes),
    )
    mark = dict(wanted["metadata"])
    # `mark_shards` may have written a newer schema, so that services that do not know shards refuse
    # to start. The upgrade keeps the newer schema.
    mark[streams.OLDEST_KEY] = f"{max(oldest_of(found), oldest_of(wanted))}"
    return await update(bus, found, changes, mark)


def _keeping_partitions(found: Configuration, wanted: object) -> object:
    if not has_partitions(found):
        return wanted
    return with_partitions(wanted, partitions_of(found))


def _check(wanted: Configuration, found: Configuration) -> None:
    if schema_of(found) > streams.SCHEMA:
        oldest = oldest_of(found)
        if oldest > streams.SCHEMA:
            raise StartUpError(
                f"the stream {found['name']} was made by a newer Penstock: it has schema "
                f"{schema_of(found)}, for which services need {oldest} or later, and this one has "
                f"{streams.SCHEMA}. Upgrade this service"
            )
        log.info(
            "the stream %s has schema %d, newer than this service's %d: left as it is",
            found["name"],
            schema_of(found),
            streams.SCHEMA,
        )
    elif other := differences(wanted, found, streams.STRUCTURE):
        raise _not_ours(found, other)


def _not_ours(found: Configuration, other: list[Difference]) -> StartUpError:
    return StartUpError(
        f"there is a stream {found['name']} which is not Penstock's, or was edited: "
        f"{', '.join(map(str, other))}. Give Penstock an account of its own, or edit the stream"
    )
