"""Makes missing streams and upgrades older streams when a service starts.

A start never downgrades a stream of a newer schema. A start holds a lease while it upgrades an
older stream. So several services may start at once, even services of different versions. A start
does not change the limits and replicas of streams (`streams.RETENTION`); the operator changes the
limits and replicas with `migrate.apply`.
"""

from __future__ import annotations

import logging
from dataclasses import replace

from penstock.bus import streams
from penstock.bus.admin import configuration as configurations
from penstock.bus.admin.configuration import (
    Configuration,
    Difference,
    configuration,
    declared,
    differences,
    expected,
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
from penstock.bus.state.kv import Buckets
from penstock.bus.streams import Retention

log = logging.getLogger(__name__)


async def ensure(bus: Buckets, retention: Retention) -> None:
    """Make the streams that are missing, and upgrade streams of an older schema.

    Raises:
        NotThereYet: this user may not make or change streams, or a leader is missing.
        StartUpError: a stream is not Penstock's, or is too new for this version.
    """
    for wanted in declared(retention):
        try:
            await _ensure(bus, wanted)
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
                f"cannot ensure the stream {wanted['name']}: {error}. "
                "May this user create streams? Is a stream of another owner in the way?"
            ) from error


async def _ensure(bus: Buckets, wanted: Configuration) -> None:
    found = await configuration(bus, wanted["name"])
    if found is None:
        try:
            await bus.jetstream.api(f"STREAM.CREATE.{wanted['name']}", wanted)
            return
        except ApiError as error:
            if error.code != STREAM_NAME_IN_USE:
                raise
        found = await expected(bus, wanted["name"])  # another version has just made the stream
    if schema_of(found) < streams.SCHEMA:
        async with configurations.alone(bus):
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
            *(found["name"], found["max_bytes"], found["name"]),
        )


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
        *(found["name"], schema_of(found), streams.SCHEMA),
        "".join(f"; {change}" for change in changes),
    )
    return await update(bus, found, changes, wanted["metadata"])


def _keeping_partitions(found: Configuration, wanted: object) -> object:
    if not found.get("subject_transform"):
        return wanted
    return with_partitions(wanted, partitions_of(found))


def _check(wanted: Configuration, found: Configuration) -> None:
    if schema_of(found) > streams.SCHEMA:
        oldest = int(found["metadata"].get(streams.OLDEST_KEY, 1))
        if oldest > streams.SCHEMA:
            raise StartUpError(
                f"the stream {found['name']} was made by a newer Penstock: it has schema "
                f"{schema_of(found)}, for which services need {oldest} or later, and this one has "
                f"{streams.SCHEMA}. Upgrade this service"
            )
        log.info(
            "the stream %s has schema %d, newer than this service's %d: left as it is",
            *(found["name"], schema_of(found), streams.SCHEMA),
        )
    elif other := differences(wanted, found, streams.STRUCTURE):
        raise _not_ours(found, other)


def _not_ours(found: Configuration, other: list[Difference]) -> StartUpError:
    return StartUpError(
        f"there is a stream {found['name']} which is not Penstock's, or was edited: "
        f"{', '.join(map(str, other))}. Give Penstock an account of its own, or edit the stream"
    )
