"""Stores in KV `listens` which steps of runs listen for events, and for which events.

A step gets each event that is stored after the step began, and no event that was stored before:
1. `begin` finds, for each stream of events, the first sequence after the step's beginning, and
   writes these sequences to KV `listens`.
2. `begin` adds the event's type to the durable consumers of all shards.
3. `begin` reads the events that were stored meanwhile, because the consumers may have skipped these
   events.

A process that gets an event from a consumer first reads KV `listens` from the bucket's leader. So
the process knows every step whose type was added to the consumers before the event was stored.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
from collections import OrderedDict, defaultdict
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from typing import Any, Final

import orjson
from pydantic import Field

from penstock.bus import (
    Bus,
    BusUnavailable,
    Lease,
    ObjectGone,
    Stored,
    streams,
    subjects,
)
from penstock.bus.connection.retry import first_answer
from penstock.bus.read import direct
from penstock.bus.read.pull import NANO
from penstock.bus.records.base import Record
from penstock.bus.state.kv import is_marker
from penstock.bus.write import objects
from penstock_workflows.engine.effects import Listen, Unlisten
from penstock_workflows.engine.inputs import EventInput
from penstock_workflows.engine.state import State

log = logging.getLogger(__name__)

BUCKET: Final = "listens"
DURABLE: Final = "workflows-listen"
NOTHING: Final = "custom.none.none"  # a subject without messages
MAX_PENDING: Final = 10_000
LEASE_TTL_S, LEASE_WAIT_S, CHECK_S = 5.0, 30.0, 0.05
TIDY_S: Final = 30.0  # seconds between two calls of `remove_unused_types`
_STREAM: Final = f"KV_{BUCKET}"


class Listening(Record):
    """A listening step: an entry of KV `listens`, key `<run>.<step>.<index, or _>.<attempt>`.

    `begins` maps the name of a stream of events to the first sequence that counts there. If a
    stream has no entry, the stream was made later, and all its events count. `caught_up` becomes
    True when the step has handled the events that were stored while it began.
    """

    run_id: str
    step: str
    index: int | None = None
    attempt: int = 1
    event: str
    user_id: str
    begins: dict[str, int] = Field({})
    caught_up: bool = False

    def includes_event(self, stream: str, sequence: int) -> bool:
        return sequence >= self.begins.get(stream, 0)


class Listens:
    """Keeps the listening steps in memory, and turns events into inputs of their runs."""

    def __init__(self, bus: Bus, ack_wait_s: float) -> None:
        self._bus = bus
        self._owners = _Owners(bus)
        self._ack_wait_s = ack_wait_s
        self._bucket = bus.bucket(BUCKET)
        self._known: dict[str, Listening] = {}
        self._by_type: defaultdict[str, set[str]] = defaultdict(set)
        self._sequence = 0  # the stream sequence up to which the bucket was read
        self._reading = asyncio.Lock()
        # `_calls` counts the calls of `_read_on`; `_served` is the number of calls that are done.
        self._calls = self._served = 0
        self._declared: frozenset[str] = frozenset()

    # effects

    async def begin(self, state: State, listen: Listen) -> list[EventInput]:
        """Begin to deliver the events of a type to a step.

        Returns the events that were stored after the step began and before the consumers were
        changed. A repeated call returns them again, until `caught_up` is called.
        """
        key = _key(state.run_id, listen)
        listening = await self._bucket.load(key, Listening)
        if listening is None:
            user_id = str(state.started.command.get("user_id", "anonymous"))
            made = Listening(
                run_id=state.run_id,
                step=listen.step,
                index=listen.index,
                attempt=listen.attempt,
                event=listen.event,
                user_id=user_id,
                begins=await self._begins(listen.since),
            )
            await self._bucket.create(key, made.dump())
            listening = await self._bucket.load(key, Listening)
            if listening is None:
                raise BusUnavailable(f"{key} of KV {BUCKET} was just deleted")
        if listening.caught_up:
            return []
        await self.update_consumers()
        return [
            EventInput(listen.step, listen.index, listen.attempt, event)
            for event in await self._stored_meanwhile(listening)
        ]

    async def caught_up(self, state: State, listen: Listen) -> None:
        """Record that all events that `begin` returned were handled."""

        def note(listening: Listening) -> None:
            listening.caught_up = True

        await self._bucket.change(_key(state.run_id, listen), Listening, note)

    async def end(self, state: State, listen: Unlisten) -> None:
        await self._bucket.delete(_key(state.run_id, listen))

    # events

    async def inputs_of(self, stream: str, stored: Stored) -> list[tuple[str, EventInput]]:
        """Return an input for each run that listens for this event, with the id of the run.

        Raises:
            ValueError: the event is malformed.
        """
        await self._read_on()
        type_ = stored.subject.rpartition(".")[0]
        found = [self._known[key] for key in self._by_type.get(type_, ())]
        found = [each for each in found if each.includes_event(stream, stored.sequence)]
        if not found:
            return []
        owner = await self._owners.of(subjects.run_id_of(stored.subject))
        found = [each for each in found if each.user_id == owner]
        if not found:
            return []
        event: dict[str, Any] = orjson.loads(await objects.unwrap(self._bus, stored.payload))
        return [
            (each.run_id, EventInput(each.step, each.index, each.attempt, event)) for each in found
        ]

    async def _stored_meanwhile(self, listening: Listening) -> list[dict[str, Any]]:
        events: list[dict[str, Any]] = []
        for shard in range(self._bus.shards.made):
            stream = streams.events_of(shard)
            pattern = subjects.event(listening.event, "*")
            begin = listening.begins.get(stream, 0)
            for stored in await _all_from(self._bus, stream, pattern, begin):
                owner = await self._owners.of(subjects.run_id_of(stored.subject))
                if owner != listening.user_id:
                    continue
                try:
                    payload = await objects.unwrap(self._bus, stored.payload)
                except ObjectGone:
                    log.warning("%s: the event is gone, so no step gets it", stored.subject)
                    continue
                events.append(orjson.loads(payload))
        return events

    async def _begins(self, since_ms: int) -> dict[str, int]:
        at = datetime.fromtimestamp(since_ms / 1000, UTC)
        found: dict[str, int] = {}
        for shard in range(self._bus.shards.made):
            stream = streams.events_of(shard)
            # Read the end before the first message. In the other order, a message that is stored
            # between the two reads would be skipped.
            end = (await self._bus.api(f"STREAM.INFO.{stream}"))["state"]["last_seq"]
            first = await self._bus.since(stream, at)
            found[stream] = first.sequence if first is not None else end + 1
        return found

    # memory

    async def _read_on(self) -> None:
        """Apply all changes of the bucket that the bucket's leader has stored.

        One read serves all calls that wait for the lock when it begins, so a frequent event does
        not cost a request each.
        """
        self._calls += 1
        call = self._calls
        async with self._reading:
            if self._served >= call:
                return
            calls = self._calls
            pattern = f"$KV.{BUCKET}.>"
            tail = await self._bus.tail(_STREAM, pattern)
            while tail is not None and self._sequence < tail.sequence:
                found, _ = await direct.read(self._bus, _STREAM, pattern, self._sequence + 1)
                for stored in found:
                    self._apply(stored)
                    self._sequence = stored.sequence
                if not found:
                    # The answer came from a replica that lags behind. So wait, and read again.
                    await asyncio.sleep(direct.LAG_S)
                    tail = await self._bus.tail(_STREAM, pattern)
            self._served = calls

    def _apply(self, stored: Stored) -> None:
        key = stored.subject.removeprefix(f"$KV.{BUCKET}.")
        known = self._known.pop(key, None)
        if known is not None:
            keys = self._by_type[known.event]
            keys.discard(key)
            if not keys:
                del self._by_type[known.event]
        if not is_marker(stored):
            listening = Listening.model_validate_json(stored.payload)
            self._known[key] = listening
            self._by_type[listening.event].add(key)

    # the consumers

    async def update_consumers(self) -> None:
        """Make the consumers of all shards deliver exactly the types that steps listen for."""
        async with self._alone():
            await self._read_on()
            types = frozenset(self._by_type)
            for shard in range(self._bus.shards.made):
                await self._declare(streams.events_of(shard), types)
            self._declared = types

    async def remove_unused_types(self) -> None:
        """Remove the types for which no step listens any more. Raises BusError."""
        await self._read_on()
        if self._declared - self._by_type.keys():
            await self.update_consumers()

    async def _declare(self, stream: str, types: frozenset[str]) -> None:
        patterns = [subjects.event(type_, "*") for type_ in sorted(types)] or [NOTHING]
        config: Mapping[str, Any] = {
            "durable_name": DURABLE,
            "filter_subjects": patterns,
            "deliver_policy": "new",
            "ack_policy": "explicit",
            "ack_wait": int(self._ack_wait_s * NANO),
            "max_ack_pending": MAX_PENDING,
            "max_deliver": -1,
        }
        call = f"CONSUMER.DURABLE.CREATE.{stream}.{DURABLE}"
        body = {"stream_name": stream, "config": config}
        await first_answer(lambda: self._bus.api(call, body))

    @asynccontextmanager
    async def _alone(self) -> AsyncIterator[None]:
        """Hold the lease for changes of the consumers.

        If two processes changed the consumers at once, the slower one could remove the type of a
        step that began after it had read the bucket. Raises BusUnavailable after `LEASE_WAIT_S`.
        """
        holder = f"listens-{secrets.token_hex(8)}"
        lease = Lease(self._bus, "workflows.consumers", holder, LEASE_TTL_S)
        try:
            async with asyncio.timeout(LEASE_WAIT_S):
                while not await lease.acquire():
                    await asyncio.sleep(CHECK_S)
        except TimeoutError:
            raise BusUnavailable(
                "another process changes the consumers of workflows for too long"
            ) from None
        try:
            yield
        finally:
            await lease.release()


async def _all_from(bus: Bus, stream: str, pattern: str, begin: int) -> list[Stored]:
    """Return all matching messages that the leader has from the stream sequence `begin` on."""
    tail = await bus.tail(stream, pattern)
    found: list[Stored] = []
    while tail is not None and begin <= tail.sequence:
        some = [stored async for stored in direct.replay(bus, stream, pattern, begin)]
        found += some
        if some:
            begin = some[-1].sequence + 1
        else:
            await asyncio.sleep(direct.LAG_S)  # the answer came from a replica that lags behind
            tail = await bus.tail(stream, pattern)
    return found


def _key(run_id: str, listen: Listen | Unlisten) -> str:
    index = "_" if listen.index is None else listen.index
    return f"{run_id}.{listen.step}.{index}.{listen.attempt}"


MAX_KNOWN_OWNERS: Final = 10_000


class _Owners:
    """Reads the users of runs from KV `runs`, and caches them: a run never changes its user."""

    def __init__(self, bus: Bus) -> None:
        self._runs = bus.bucket("runs")
        self._known: OrderedDict[str, str] = OrderedDict()

    async def of(self, run_id: str) -> str | None:
        known = self._known.get(run_id)
        if known is not None:
            return known
        entry = await self._runs.get(run_id)
        if entry is None:
            return None
        user_id = str(orjson.loads(entry.value).get("user_id", "anonymous"))
        self._known[run_id] = user_id
        if len(self._known) > MAX_KNOWN_OWNERS:
            self._known.popitem(last=False)
        return user_id
