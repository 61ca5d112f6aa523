"""The streams as this version declares them: made, and brought forward, never back.

Every stream carries the schema that it has (`streams.SCHEMA`), and the oldest one whose services
can still work on it. A start brings an older schema forward under a lease, so that several
services, and several versions, may start at once; it leaves a newer one as it is. How long and how
often things are kept (`streams.RETENTION`) and the number of partitions are the operator's:
`apply` and `repartition` change them.
"""

from __future__ import annotations

import asyncio
import logging
import re
import secrets
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from nats.js.api import StreamConfig

from penstock.bus import streams, subjects
from penstock.bus.errors import (
    STREAM_NOT_FOUND,
    ApiError,
    BusError,
    BusUnavailable,
    NotPermitted,
    NotThereYet,
    StartUpError,
    refusal,
)
from penstock.bus.state.leases import Lease, keep, note_of
from penstock.bus.streams import Retention

if TYPE_CHECKING:
    from penstock.bus.bus import Bus
    from penstock.bus.state.kv import Entry

log = logging.getLogger(__name__)

Configuration = dict[str, Any]  # of a stream, as the JetStream API has it

STREAM_NAME_IN_USE = 10058
GROUP = "normalizer"  # whose members divide the partitions
LEASE_TTL_S = 15.0
LEASE_WAIT_S = 30.0
LOOK_S = 0.1
# a replica may become leader that has not heard of the new transform yet
SETTLE_S = 2.0

_COUNT = re.compile(r"partition\((\d+),1\)")


@dataclass(frozen=True, slots=True)
class Difference:
    """One field of one stream: what it is, and what it should be."""

    stream: str
    field: str
    found: Any
    wanted: Any

    def __str__(self) -> str:
        return f"{self.field} is {self.found}, not {self.wanted}"


def declared(retention: Retention) -> list[Configuration]:
    """Every stream and bucket, the leases first: whoever changes another holds one."""
    made: list[StreamConfig] = [*streams.streams(retention), *streams.buckets(retention)]
    made.sort(key=lambda config: config.name != "KV_leases")
    mark = {streams.SCHEMA_KEY: f"{streams.SCHEMA}", streams.OLDEST_KEY: f"{streams.OLDEST}"}
    return [{**config.as_dict(), "metadata": mark} for config in made]


def schema_of(found: Configuration) -> int:
    """The schema that a stream has; 1 for what was made before schemas were noted."""
    return int((found.get("metadata") or {}).get(streams.SCHEMA_KEY, 1))


def partitions_of(raw: Configuration) -> int:
    """Into how many partitions RAW divides the runs."""
    count = _COUNT.search(raw["subject_transform"]["dest"])
    assert count is not None
    return int(count[1])


def differences(
    wanted: Configuration, found: Configuration, fields: tuple[str, ...]
) -> list[Difference]:
    """Where the two differ, in what is declared; the number of partitions is nobody's business."""
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
    return value or 0  # the server leaves out what is false


# at start


async def ensure(bus: Bus, retention: Retention) -> None:
    """Make what is missing, bring forward what is older. Raises StartUpError."""
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


async def _ensure(bus: Bus, wanted: Configuration) -> None:
    found = await configuration(bus, wanted["name"])
    if found is None:
        try:
            await bus.api(f"STREAM.CREATE.{wanted['name']}", wanted)
            return
        except ApiError as error:
            if error.code != STREAM_NAME_IN_USE:
                raise
        found = await _expected(bus, wanted["name"])  # another version was first
    if schema_of(found) < streams.SCHEMA:
        async with alone(bus):
            found = await _bring_forward(bus, wanted)
    _check(wanted, found)
    # Never changed here: a service started with other settings would delete what others keep.
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


async def _bring_forward(bus: Bus, wanted: Configuration) -> Configuration:
    found = await _expected(bus, wanted["name"])
    if schema_of(found) >= streams.SCHEMA:
        return found  # meanwhile, by somebody else
    if not set(found["subjects"]) <= set(wanted["subjects"]):
        raise _not_ours(found, differences(wanted, found, ("subjects",)))
    # what a declaration does not ask for, the server decides
    changes = [
        replace(each, wanted=_divided_as(found, each.wanted))
        for each in differences(wanted, found, streams.FORWARD)
        if each.wanted
    ]
    log.info(
        "the stream %s is brought from schema %d to %d%s",
        *(found["name"], schema_of(found), streams.SCHEMA),
        "".join(f"; {change}" for change in changes),
    )
    return await _update(bus, found, changes, wanted["metadata"])


def _divided_as(found: Configuration, wanted: Any) -> Any:
    """A transform with the number of partitions that there are, anything else as it is."""
    if not isinstance(wanted, dict) or not _COUNT.search(wanted.get("dest", "")):
        return wanted
    count = f"partition({partitions_of(found)},1)"
    return {**wanted, "dest": _COUNT.sub(count, wanted["dest"])}


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


# by the operator


async def plan(bus: Bus, retention: Retention) -> list[Difference]:
    """What `apply` would change: where streams are kept otherwise than these settings say."""
    return [
        difference
        for wanted in declared(retention)
        if (found := await configuration(bus, wanted["name"])) is not None
        for difference in differences(wanted, found, streams.RETENTION)
        if difference.wanted != -1  # no limit is said: one that was set by hand stays
    ]


async def apply(bus: Bus, retention: Retention) -> list[Difference]:
    """Keep everything as long, and as often, as these settings say; returns what has changed."""
    async with alone(bus):
        changes = await plan(bus, retention)
        for name in dict.fromkeys(change.stream for change in changes):
            found = await _expected(bus, name)
            await _update(bus, found, [each for each in changes if each.stream == name], {})
    return changes


async def repartition(bus: Bus, count: int, timeout_s: float = 30.0) -> None:
    """Divide the runs into another number of partitions, while they go on.

    Three steps, each of which may be the last one that is done, and any of which may be repeated:
    the normalizers take up the new partitions; RAW's transform changes; those that nothing comes
    to any more are given up once they are read to their end. A frame is never in a partition that
    nobody reads; that a run's frames are folded in order over two partitions is the normalizer's
    to see to. Raises BusError.
    """
    async with alone(bus) as lease:
        await at_least(bus, count)
        await _all_know(bus, timeout_s)
        found = await _expected(bus, streams.RAW)
        former = partitions_of(found)
        if former != count:
            transform = found["subject_transform"]
            dest = _COUNT.sub(f"partition({count},1)", transform["dest"])
            wanted = {**transform, "dest": dest}
            change = Difference(streams.RAW, "subject_transform", transform, wanted)
            if not lease.held:
                raise BusUnavailable("the lease on changes was lost; begin again")
            await _update(bus, found, [change], {})
            log.info("RAW has %d partitions, no more %d", count, former)
        await _give_up_surplus(bus, count, timeout_s)


async def at_least(bus: Bus, count: int) -> int:
    """Let the normalizers divide so many partitions, or more; returns how many they divide."""
    bucket = bus.bucket("leases")
    while True:
        entry = await bucket.get(f"{GROUP}.parts")
        if entry is not None and int(entry.value) >= count:
            return int(entry.value)
        revision = entry.revision if entry is not None else 0
        await bucket.update(f"{GROUP}.parts", b"%d" % count, revision)


async def partitions(bus: Bus) -> int:
    """Into how many partitions RAW divides the runs now."""
    return partitions_of(await _expected(bus, streams.RAW))


async def _all_know(bus: Bus, timeout_s: float) -> None:
    """Wait until every normalizer that lives divides the number that is written down."""
    bucket = bus.bucket("leases")
    members: list[Entry] = []
    others: list[str] = []
    try:
        async with asyncio.timeout(timeout_s):
            while True:
                parts = await bucket.get(f"{GROUP}.parts")
                wanted = parts.value.decode() if parts is not None else ""
                members = await bucket.entries(f"{GROUP}.member.*")
                others = [member.key for member in members if note_of(member) != wanted]
                if not others:
                    return
                await asyncio.sleep(LOOK_S)
    except TimeoutError:
        if len(others) == len(members):
            raise BusError(
                f"no normalizer takes up the new partitions ({', '.join(others)}): "
                "are they of an older version? Upgrade them first"
            ) from None
        # those that know take what the others leave
        log.warning("these normalizers do not know of the partitions yet: %s", ", ".join(others))


async def _give_up_surplus(bus: Bus, count: int, timeout_s: float) -> None:
    bucket = bus.bucket("leases")
    entry = await bucket.get(f"{GROUP}.parts")
    if entry is None or int(entry.value) <= count:
        return
    await asyncio.sleep(SETTLE_S)
    surplus = range(count, int(entry.value))
    try:
        async with asyncio.timeout(timeout_s):
            while not all([await _is_read(bus, partition) for partition in surplus]):
                await asyncio.sleep(LOOK_S)
    except TimeoutError:
        raise BusError(
            f"RAW has {count} partitions, but those from {count} on are not read to their end "
            "yet, and stay with the normalizers"
        ) from None
    if await bucket.update(f"{GROUP}.parts", b"%d" % count, entry.revision) is not None:
        log.info("the partitions %d to %d are given up", surplus[0], surplus[-1])


async def _is_read(bus: Bus, partition: int) -> bool:
    last = await bus.tail(streams.RAW, subjects.raw_of_partition(partition))
    if last is None:
        return True
    checkpoint = await bus.bucket("checkpoints").get(f"{GROUP}.{partition}")
    return checkpoint is not None and int(checkpoint.value) >= last.sequence


# reading and writing


async def configuration(bus: Bus, name: str) -> Configuration | None:
    """A stream's configuration as the server has it, with what this version does not know."""
    try:
        info = await bus.api(f"STREAM.INFO.{name}")
    except ApiError as error:
        if error.code == STREAM_NOT_FOUND:
            return None
        raise
    found: Configuration = info["config"]
    return found


async def _expected(bus: Bus, name: str) -> Configuration:
    found = await configuration(bus, name)
    if found is None:
        raise BusError(f"the stream {name} has gone")
    return found


async def _update(
    bus: Bus, found: Configuration, changes: list[Difference], metadata: dict[str, str]
) -> Configuration:
    """The stream with these fields changed, and all others as they are."""
    wanted = {
        **found,
        **{change.field: change.wanted for change in changes},
        "metadata": {**(found.get("metadata") or {}), **metadata},
    }
    if 0 < wanted["max_age"] < wanted.get("duplicate_window", 0):
        wanted["duplicate_window"] = wanted["max_age"]  # the server wants it so
    answer = await bus.api(f"STREAM.UPDATE.{found['name']}", wanted)
    updated: Configuration = answer["config"]
    return updated


@asynccontextmanager
async def alone(bus: Bus) -> AsyncIterator[Lease]:
    """Be the only one who changes streams. Raises StartUpError when somebody else does not end."""
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
