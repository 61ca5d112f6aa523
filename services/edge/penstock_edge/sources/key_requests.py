"""Gives subscribers the keys of runs, as far as the operator has granted them content.

NATS lets a user ask under the names of its own durables only, so the durable in the subject says
who asks. The durable's grant is read for each request, and so are the run's record and its key: a
grant that was taken back and an erasure count at once. An answer is the key of the run, 32 bytes,
or it is empty and its header `Penstock-Error` says why (`KeyRefusal`).
"""

from __future__ import annotations

import logging
from typing import Final

from pydantic import ValidationError

from penstock.bus import Bus, BusError, Incoming, Listener, NatsError, ObjectGone
from penstock.bus.admin.subscribers import grant_to
from penstock.bus.connection.retry import until_answered
from penstock.bus.messages import REFUSAL, KeyRefusal
from penstock.bus.records.runs import RunRecord
from penstock.bus.streams import events_for
from penstock.bus.subjects import is_run_id, key_request
from penstock_edge.sources.askers import Askers

log = logging.getLogger(__name__)

# The requests that an edge works on at once, for all durables, and for one. Each takes three
# requests to NATS.
AT_ONCE: Final = 64
AT_ONCE_EACH: Final = 8


class KeyRequests:
    """Answers the requests for keys. NATS sends each request to only one edge."""

    def __init__(self, bus: Bus) -> None:
        self._bus = bus
        self._listening: Listener | None = None
        self._askers = Askers(AT_ONCE, AT_ONCE_EACH)

    async def start(self) -> None:
        subject = key_request("*", "*")
        self._listening = await until_answered(
            f"subscribing to {subject}", lambda: self._bus.listen(subject, self._take, "edge")
        )

    async def stop(self) -> None:
        if self._listening is not None:
            self._listening.stop()
            self._listening = None
        await self._askers.stop()

    def _take(self, request: Incoming) -> None:
        _, durable, run_id = request.subject.split(".")
        reply = request.reply
        self._askers.take(
            durable,
            lambda: self._answer(durable, run_id, reply),
            lambda: self._send(run_id, reply, b"", "busy"),
        )

    async def _answer(self, durable: str, run_id: str, reply: str) -> None:
        key: bytes = b""
        try:
            refusal = await self._refusal(durable, run_id)
            if refusal is None:
                keys, _ = await self._bus.content.stored_keys(run_id)
                if keys.key is not None:
                    key = keys.key.secret
                else:
                    refusal = "erased" if keys.destroyed else "unknown"
        except (BusError, ObjectGone, ValidationError) as error:
            log.warning("run %s: the subscriber %s gets no key now: %s", run_id, durable, error)
            refusal = "unavailable"
        self._send(run_id, reply, key, refusal)

    async def _refusal(self, durable: str, run_id: str) -> KeyRefusal | None:
        """Return why this durable may not have the key of the run; None if it may."""
        if not is_run_id(run_id):
            return "unknown"
        grant = await grant_to(self._bus, events_for(run_id), durable)
        if not grant.content:
            return "no_grant"
        record = await self._bus.bucket("runs").load(run_id, RunRecord)
        if record is None:
            return "unknown"
        if not grant.covers(record.tenant or ""):
            return "other_tenant"
        return "erased" if record.erasure is not None else None

    def _send(self, run_id: str, reply: str, key: bytes, refusal: KeyRefusal | None) -> None:
        if not reply:
            return
        headers = {REFUSAL: refusal} if refusal is not None else {}
        try:
            self._bus.client.send(reply, key, headers=headers)
        except NatsError as error:
            log.debug("run %s: its key could not be sent: %s", run_id, error)
