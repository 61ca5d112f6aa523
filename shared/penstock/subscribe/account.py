"""Makes a subscriber's requests: for its consumers, the number of shards, and large events."""

from __future__ import annotations

import asyncio
import logging
import re
from typing import Any, Final

import orjson

from penstock.bus import BusUnavailable, NatsError, ObjectGone, StartUpError
from penstock.bus.admin.permissions import SHARDS_RECORD
from penstock.bus.connection.dialing import Dialer
from penstock.bus.connection.health import Health
from penstock.bus.connection.jetstream import JetStream
from penstock.bus.connection.nats_client import Connection
from penstock.bus.errors import CONSUMER_NOT_FOUND, STREAM_NOT_FOUND, ApiError, BusError
from penstock.bus.messages import LARGE_ERROR, LARGE_PARTS
from penstock.bus.shards import ONE, Shards
from penstock.bus.subjects import is_run_id, large_event
from penstock.events import InvalidEvent
from penstock.subscribe.settings import Nats

log = logging.getLogger("penstock.subscribe")

_REFERENCE: Final = re.compile(rb'\{"penstock_object":"([0-9a-f-]+)\.([0-9]{1,9})"\}')
LARGE_AGAIN_S: Final = 1.0  # seconds before an unanswered request for a large event is repeated


class Account:
    """A subscriber's connection to NATS, with the rights of the subscriber's NATS user. Requests
    raise StartUpError if the user may not make them, and BusError if they fail."""

    def __init__(self, nats: Nats, name: str) -> None:
        self._settings = nats.bus_settings(name)
        self._prefix = f"$JS.{nats.domain}.API" if nats.domain else "$JS.API"
        self.domain = nats.domain
        self.connection = Connection()
        self.connection.on_refused = self._refused
        self._jetstream = JetStream(self.connection, Health(), nats.request_timeout_s)
        # the subjects that NATS has refused to this user, in lower case
        self._denied: set[str] = set()

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

    async def consumer(self, stream: str, durable: str) -> dict[str, Any] | None:
        """Return the configuration of a durable consumer; None if the durable does not exist."""
        try:
            info = await self._api(f"CONSUMER.INFO.{stream}.{durable}", {})
        except ApiError as error:
            if error.code in (CONSUMER_NOT_FOUND, STREAM_NOT_FOUND):
                return None
            raise
        config: dict[str, Any] = info["config"]
        return config

    async def declare(self, stream: str, config: dict[str, Any]) -> None:
        """Make a durable consumer, or change the subjects of the existing durable."""
        call = f"CONSUMER.DURABLE.CREATE.{stream}.{config['durable_name']}"
        await self._api(call, {"stream_name": stream, "config": config})

    async def large_event(self, reference: bytes) -> bytes:
        """Return the large event to which a message refers; ask until an edge answers.

        Raises:
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
                log.warning(
                    "run %s: the event %s is large, and no edge sends it: %s",
                    *(run_id, sequence, error),
                )
                await asyncio.sleep(LARGE_AGAIN_S)
                continue
            headers = answer.headers or {}
            trouble = headers.get(LARGE_ERROR)
            if trouble == "unavailable":
                await asyncio.sleep(LARGE_AGAIN_S)
            elif trouble is not None:
                raise ObjectGone(f"the payload of {run_id}.{sequence} is {trouble}")
            else:
                wanted = int(headers[LARGE_PARTS])
                parts.append(answer.data)
        return b"".join(parts)

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
