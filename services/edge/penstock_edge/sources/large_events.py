"""Answers subscribers' requests for events that are in the object store.

Subscribers may not read the object store, because it also has commands, decisions and dead letters.
Each answer has one part of the event, and the header `Penstock-Parts` with the number of parts, or
it is empty and has the header `Penstock-Error`. An event of a run that has a key is sent in the
sealed form that a small event has: who asks here need not have the grant `content`.
"""

from __future__ import annotations

import asyncio
import logging
from typing import Final

from penstock.bus import Bus, BusError, Msg, NatsError, ObjectGone, Subscription, sealing
from penstock.bus.connection.retry import until_answered
from penstock.bus.errors import ContentErased
from penstock.bus.messages import LARGE_PARTS, REFUSAL
from penstock.bus.subjects import is_run_id, large_event
from penstock.bus.write import objects
from penstock.bus.write.fence import MAX_MESSAGE_BYTES as PART_BYTES
from penstock_edge.sources.sessions import RunRecords

log = logging.getLogger(__name__)

AT_ONCE: Final = 4  # the greatest number of requests that read the object store at once
# The greatest number of requests that wait or are being answered. A further request gets no answer,
# and its subscriber asks again.
MAX_WAITING: Final = 256
# Seconds for which an event stays in memory after a request, for requests for its other parts.
KEPT_S: Final = 10.0
KEPT_BYTES: Final = 64 * 1024 * 1024


class LargeEvents:
    """Answers the requests for large events. NATS sends each request to only one edge."""

    def __init__(self, bus: Bus, records: RunRecords) -> None:
        self._bus = bus
        self._records = records
        self._listening: Subscription | None = None
        self._room = asyncio.Semaphore(AT_ONCE)
        self._kept: dict[str, bytes] = {}
        self._answering: set[asyncio.Task[None]] = set()

    async def start(self) -> None:
        subject = large_event("*", "*", "*")
        self._listening = await until_answered(
            f"subscribing to {subject}", lambda: self._bus.subscribe(subject, self._take, "edge")
        )

    async def stop(self) -> None:
        if self._listening is not None:
            try:
                await self._listening.unsubscribe()
            except NatsError as error:
                log.debug("the subscription ended with its connection: %s", error)
            self._listening = None
        for task in self._answering:
            task.cancel()
        await asyncio.gather(*self._answering, return_exceptions=True)
        self._kept.clear()

    def forget(self, run_id: str) -> None:
        for name in [each for each in self._kept if each.startswith(f"{run_id}.")]:
            del self._kept[name]

    async def _take(self, msg: Msg) -> None:
        if len(self._answering) >= MAX_WAITING:
            return
        task = asyncio.create_task(self._answer(msg))
        self._answering.add(task)
        task.add_done_callback(self._answering.discard)

    async def _answer(self, msg: Msg) -> None:
        _, run_id, sequence, part = msg.subject.split(".")
        body, headers = b"", {}
        if not (is_run_id(run_id) and sequence.isdecimal() and part.isdecimal()):
            headers = {REFUSAL: "invalid"}
        else:
            try:
                if await self._records.withholds_number(run_id, int(sequence)):
                    raise ContentErased(f"the content of run {run_id} was erased")
                async with self._room:
                    event = await self._event(run_id, f"{run_id}.{sequence}")
            except ContentErased:
                headers = {REFUSAL: "erased"}
            except (ObjectGone, ValueError):
                headers = {REFUSAL: "gone"}
            except BusError as error:
                log.warning("run %s: a large event cannot be read now: %s", run_id, error)
                headers = {REFUSAL: "unavailable"}
            else:
                start = int(part[:9]) * PART_BYTES
                body = event[start : start + PART_BYTES]
                headers = {LARGE_PARTS: f"{-(-len(event) // PART_BYTES)}"}
        try:
            await self._bus.client.publish(msg.reply, body, headers=headers)
        except NatsError as error:
            log.debug("a part of a large event could not be sent: %s", error)

    async def _event(self, run_id: str, name: str) -> bytes:
        """Commands and dead letters have other names in the object store than `<run
        id>.<sequence>`, so a subscriber cannot request them."""
        kept = self._kept.get(name)
        if kept is None:
            kept = await objects.unwrap(self._bus, objects.reference(name))
            if self._bus.content.masters:
                keys, _ = await self._bus.content.stored_keys(run_id)
                if keys.key is not None:
                    kept = sealing.sealed_event(keys.key, kept)
            if sum(map(len, self._kept.values())) + len(kept) <= KEPT_BYTES:
                self._kept[name] = kept
                asyncio.get_running_loop().call_later(KEPT_S, self._kept.pop, name, None)
        return kept
