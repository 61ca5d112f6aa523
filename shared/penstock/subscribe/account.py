"""Makes a subscriber's requests: for its consumers, the number of shards, large events, and the
keys of runs whose content is sealed."""

from __future__ import annotations

import asyncio
import logging
import re
import time
from typing import Any, Final

import orjson

from penstock.bus import BusUnavailable, Listener, NatsError, ObjectGone, StartUpError, Stored
from penstock.bus.admin.permissions import SHARDS_RECORD
from penstock.bus.admin.subscribers import SHAPE, Grant, grant_of
from penstock.bus.connection.dialing import Dialer
from penstock.bus.connection.health import Health
from penstock.bus.connection.jetstream import JetStream
from penstock.bus.connection.nats_client import Connection
from penstock.bus.errors import (
    CONSUMER_NOT_FOUND,
    STREAM_NOT_FOUND,
    ApiError,
    BusError,
    ContentErased,
)
from penstock.bus.messages import LARGE_PARTS, REFUSAL, Unreadable
from penstock.bus.shards import ONE, Shards
from penstock.bus.streams import events_for
from penstock.bus.subjects import is_run_id, key_notice, key_request, large_event
from penstock.events import InvalidEvent
from penstock.subscribe.granted import GrantedContent, KeyRefused
from penstock.subscribe.settings import Nats

log = logging.getLogger("penstock.subscribe")

_REFERENCE: Final = re.compile(rb'\{"penstock_object":"([0-9a-f-]+)\.([0-9]{1,9})"\}')
# Seconds before a request to edges is repeated that got no answer, for a large event or a key.
AGAIN_S: Final = 1.0
SAY_AGAIN_S: Final = 30.0  # seconds between two log lines about what all waiting events wait for


class Lasting:
    """What is not repeated in the log for each event and attempt while it lasts."""

    def __init__(self) -> None:
        self._said_at = float("-inf")

    def is_to_be_said(self) -> bool:
        if time.monotonic() - self._said_at < SAY_AGAIN_S:
            return False
        self._said_at = time.monotonic()
        return True


class Account:
    """A subscriber's connection to NATS, with the rights of the subscriber's NATS user. Requests
    raise StartUpError if the user may not make them, and BusError if they fail."""

    def __init__(self, nats: Nats, durable: str) -> None:
        self._settings = nats.bus_settings(f"penstock-subscriber-{durable}")
        self._durable = durable
        self._prefix = f"$JS.{nats.domain}.API" if nats.domain else "$JS.API"
        self.domain = nats.domain
        self.connection = Connection()
        self.connection.on_refused = self._refused
        self._jetstream = JetStream(self.connection, Health(), nats.request_timeout_s)
        # the subjects that NATS has refused to this user, in lower case
        self._denied: set[str] = set()
        self._content = GrantedContent(self._jetstream, self._key)
        self._grants: dict[str, Grant] = {}  # of the durable, by stream, as last seen
        self._notices: Listener | None = None  # to forget keys that were destroyed
        self._without_edges = Lasting()

    @property
    def inbox_prefix(self) -> str:
        return self._settings.inbox_prefix

    async def connect(self) -> None:
        """Connect to NATS; a connection that breaks later reconnects by itself.

        Raises:
            NotThereYet: no server took the connection in time.
            StartUpError: the server refuses the user, or the settings cannot be used.
        """
        dialer = Dialer(self._settings, self.connection)

        async def lost() -> None:
            self._content.forget()  # the notices that come meanwhile are lost
            dialer.record_disconnect()
            if not self.connection.is_closed:
                log.warning("%s", dialer.disconnect_reason)

        async def returned() -> None:
            dialer.record_reconnect()
            self._denied.clear()
            log.info("connected to NATS again")

        await dialer.connect(returned, lost)

    async def close(self) -> None:
        try:
            await self.connection.flush(2)
        except NatsError:
            log.warning("NATS did not take the last acknowledgements: these events come again")
        await self.connection.close()

    async def shards(self) -> int:
        answer = await self._request(f"{self._prefix}.{SHARDS_RECORD}", b"")
        status = (answer.headers or {}).get("Status")
        if status == "404":
            return ONE.made
        if status is not None:
            raise BusUnavailable(f"the number of shards: {status}")
        return Shards.parse(answer.data).made if answer.data else ONE.made

    async def consumer(self, stream: str) -> dict[str, Any] | None:
        """Return the configuration of the durable consumer; None if the durable does not exist."""
        try:
            info = await self._api(f"CONSUMER.INFO.{stream}.{self._durable}", {})
        except ApiError as error:
            if error.code in (CONSUMER_NOT_FOUND, STREAM_NOT_FOUND):
                return None
            raise
        config: dict[str, Any] = info["config"]
        grant = grant_of(config)
        if grant != self._grants.get(stream):
            self._content.forget()
        self._grants[stream] = grant
        if grant.content:
            await self._listen_to_notices()
        return config

    async def declare(self, stream: str, config: dict[str, Any]) -> None:
        """Make a durable consumer, or change the subjects of the existing durable."""
        call = f"CONSUMER.DURABLE.CREATE.{stream}.{config['durable_name']}"
        await self._api(call, {"stream_name": stream, "config": config})

    async def large_event(self, reference: bytes) -> bytes:
        """Return the large event to which a message refers; ask until an edge answers.

        Raises:
            ContentErased: nobody gets the event any more.
            ObjectGone: the event is no longer stored.
            InvalidEvent: the message contains no reference to an event.
        """
        match = _REFERENCE.fullmatch(reference)
        if match is None or not is_run_id(run_id := match[1].decode()):
            raise InvalidEvent("", f"{reference[:100]!r} does not refer to an event")
        sequence = match[2].decode()
        parts: list[bytes] = []
        wanted = 1
        while len(parts) < wanted:
            try:
                answer = await self._request(large_event(run_id, sequence, len(parts)), b"")
            except BusError as error:
                if self._without_edges.is_to_be_said():
                    log.warning(
                        "run %s: the event %s is large, and waits with all such events, since no "
                        "edge sends it: %s",
                        *(run_id, sequence, error),
                    )
                await asyncio.sleep(AGAIN_S)
                continue
            headers = answer.headers or {}
            trouble = headers.get(REFUSAL)
            if trouble == "unavailable":
                await asyncio.sleep(AGAIN_S)
            elif trouble == "erased":
                raise ContentErased(f"the content of run {run_id} was erased")
            elif trouble is not None:
                raise ObjectGone(f"the payload of {run_id}.{sequence} is {trouble}")
            else:
                wanted = int(headers[LARGE_PARTS])
                parts.append(answer.data)
        return b"".join(parts)

    async def opened(self, stored: Stored) -> bytes:
        """Return the payload of an event whose content this subscriber may read; ask until an edge
        answers.

        Raises:
            KeyRefused: this subscriber gets the envelope only.
            ObjectGone: the content was changed, or stands where it does not belong.
        """
        while True:
            try:
                await self._content.open(stored)
            except BusError as error:
                if self._without_edges.is_to_be_said():
                    log.warning(
                        "%s is sealed, and waits with all such events, since no edge sends keys: "
                        "%s",
                        *(stored.subject, error),
                    )
                await asyncio.sleep(AGAIN_S)
                continue
            if isinstance(stored.payload, Unreadable):
                raise stored.payload.error
            return stored.payload

    async def _key(self, run_id: str) -> bytes:
        """Return the key of a run. Raises KeyRefused, BusError."""
        if not self._grants.get(events_for(run_id), SHAPE).content:
            raise KeyRefused("no_grant")
        answer = await self._request(key_request(self._durable, run_id), b"")
        refusal = (answer.headers or {}).get(REFUSAL)
        if refusal in ("busy", "unavailable"):
            raise BusUnavailable(f"the key of run {run_id}: {refusal}")
        if key_notice("*") in self._denied:
            # Without the notices, a key would stay here after an erasure.
            raise StartUpError(
                f"the NATS user {self._settings.user} may not subscribe to {key_notice('*')}: the "
                "operator allows it in the server's configuration (see deploy/nats)"
            )
        if refusal is not None and refusal != "unknown":
            raise KeyRefused(refusal)
        return bytes(answer.data)

    async def _listen_to_notices(self) -> None:
        subject = key_notice("*")
        if self._notices is None or subject in self._denied:
            if self._notices is not None:
                self._notices.stop()
            self._denied.discard(subject)
            self._notices = await self._jetstream.listen(subject, self._content.on_notice)

    async def _api(self, call: str, body: dict[str, Any]) -> dict[str, Any]:
        answer = await self._request(f"{self._prefix}.{call}", orjson.dumps(body))
        content: dict[str, Any] = orjson.loads(answer.data)
        if error := content.get("error"):
            text = f"{call}: {error.get('description', 'refused')}"
            if error.get("code") == 503:
                raise BusUnavailable(text)
            raise ApiError(error.get("err_code", 0), text)
        return content

    async def _request(self, subject: str, payload: bytes) -> Any:
        try:
            return await self._jetstream.request(subject, payload)
        except BusError as error:
            if subject.lower() in self._denied:
                raise StartUpError(
                    f"the NATS user {self._settings.user} may not publish to {subject}: the "
                    "operator allows it in the server's configuration (see deploy/nats)"
                ) from error
            raise

    def _refused(self, action: str, subject: str) -> None:
        self._denied.add(subject.lower())
        log.error(
            "NATS refuses the user %s this %s: %s. The operator allows it in the server's "
            "configuration (see deploy/nats)",
            *(self._settings.user, action, subject),
        )
