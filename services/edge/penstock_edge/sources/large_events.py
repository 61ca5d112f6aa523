"""Answers subscribers' requests for events that are in the object store.

Subscribers may not read the object store, because it also has commands, decisions and dead letters.
Each answer has one part of the event, and the header `Penstock-Parts` with the number of parts, or
it is empty and has the header `Penstock-Error`. An event of a run that has a key is sent in the
sealed form that a small event has: who asks here need not have the grant `content`.

The subject does not say who asks. The header `Nats-Request-Info` does, which NATS writes into what
one account requests of another: the user, if the account's import has `share`, else the account.
"""

from __future__ import annotations

import asyncio
import logging
from typing import Final

import orjson

from penstock.bus import Bus, BusError, Incoming, Listener, NatsError, ObjectGone, sealing
from penstock.bus.connection.retry import until_answered
from penstock.bus.errors import ContentErased
from penstock.bus.messages import LARGE_PARTS, REFUSAL
from penstock.bus.subjects import is_run_id, large_event
from penstock.bus.write import objects
from penstock.bus.write.fence import MAX_MESSAGE_BYTES as PART_BYTES
from penstock.log_fields import run_of
from penstock_edge.sources.askers import Askers
from penstock_edge.sources.sessions import RunRecords

log = logging.getLogger(__name__)

ASKED_BY: Final = "Nats-Request-Info"
# The requests that read the object store at once, for all subscribers, and for one.
AT_ONCE: Final = 4
AT_ONCE_EACH: Final = 2
# Seconds for which an event stays in memory after a request, for requests for its other parts.
KEPT_S: Final = 10.0
KEPT_BYTES: Final = 64 * 1024 * 1024


class LargeEvents:
    """Answers the requests for large events. NATS sends each request to only one edge."""

    def __init__(self, bus: Bus, records: RunRecords) -> None:
        self._bus = bus
        self._records = records
        self._listening: Listener | None = None
        self._askers = Askers(AT_ONCE, AT_ONCE_EACH)
        self._kept: dict[str, bytes] = {}

    async def start(self) -> None:
        subject = large_event("*", "*", "*")
        self._listening = await until_answered(
            f"subscribing to {subject}", lambda: self._bus.listen(subject, self._take, "edge")
        )

    async def stop(self) -> None:
        if self._listening is not None:
            self._listening.stop()
            self._listening = None
        await self._askers.stop()
        self._kept.clear()

    def forget(self, run_id: str) -> None:
        for name in [each for each in self._kept if each.startswith(f"{run_id}.")]:
            del self._kept[name]

    def _take(self, request: Incoming) -> None:
        subject, reply = request.subject, request.reply
        self._askers.take(
            _asker(request),
            lambda: self._answer(subject, reply),
            lambda: self._send(subject, reply, b"", {REFUSAL: "unavailable"}),
        )

    async def _answer(self, subject: str, reply: str) -> None:
        _, run_id, sequence, part = subject.split(".")
        body, headers = b"", {}
        if not (is_run_id(run_id) and sequence.isdecimal() and part.isdecimal()):
            headers = {REFUSAL: "invalid"}
        else:
            try:
                if await self._records.withholds_number(run_id, int(sequence)):
                    raise ContentErased(f"the content of run {run_id} was erased")
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
            await self._bus.client.room()
        except NatsError as error:
            log.debug("%s is not answered: %s", subject, error, extra=run_of(subject))
        else:
            self._send(subject, reply, body, headers)

    def _send(self, subject: str, reply: str, body: bytes, headers: dict[str, str]) -> None:
        if not reply:
            return
        try:
            self._bus.client.send(reply, body, headers=headers)
        except NatsError as error:
            log.debug("%s is not answered: %s", subject, error, extra=run_of(subject))

    async def _event(self, run_id: str, name: str) -> bytes:
        """Commands and dead letters have other names in the object store than `<run
        id>.<sequence>`, so a subscriber cannot request them."""
        kept = self._kept.get(name)
        if kept is None:
            kept = await objects.unwrap(self._bus, objects.reference(name), whole=True)
            if self._bus.content.masters:
                keys, _ = await self._bus.content.stored_keys(run_id)
                if keys.key is not None:
                    kept = sealing.sealed_event(keys.key, kept)
            if sum(map(len, self._kept.values())) + len(kept) <= KEPT_BYTES:
                self._kept[name] = kept
                asyncio.get_running_loop().call_later(KEPT_S, self._kept.pop, name, None)
        return kept


def _asker(request: Incoming) -> str:
    """Return who asks; nothing of a user in the account of the services."""
    try:
        info = orjson.loads(request.headers.get(ASKED_BY, "{}"))
        return str(info.get("user") or info.get("acc") or "")
    except (orjson.JSONDecodeError, AttributeError):
        return ""
