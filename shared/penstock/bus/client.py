"""The connection: start-up checks, readiness, leader reads, and the parts built on it."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any

import nats
import orjson
from nats.aio.client import Client
from nats.aio.msg import Msg
from nats.aio.subscription import Subscription
from nats.errors import Error as NatsError
from nats.errors import NoRespondersError
from nats.errors import TimeoutError as NatsTimeout
from nats.js.errors import APIError

from penstock.bus import streams
from penstock.bus.direct import Stored, stored_of
from penstock.bus.errors import BusError, BusUnavailable, OutcomeUnknown, StartUpError
from penstock.bus.kv import Bucket
from penstock.bus.publisher import Publisher
from penstock.bus.streams import Retention

log = logging.getLogger(__name__)

MIN_SERVER = (2, 12)  # atomic batches and scheduled messages


@dataclass(frozen=True, slots=True)
class BusSettings:
    """How to reach NATS. `publish_timeout_s`: after it an outcome counts as unknown."""

    url: str = "nats://127.0.0.1:4222"
    name: str = "penstock"
    user: str | None = None
    password: str | None = field(default=None, repr=False)
    credentials_file: str | None = None
    connect_timeout_s: float = 10.0
    publish_timeout_s: float = 5.0
    retention: Retention = field(default_factory=Retention)


class Bus:
    """One connection to NATS, and everything Penstock does with it.

    `connect` raises `StartUpError` with a text that says what is wrong and what to do. After
    that the connection is kept for ever; `ready` says whether it stands right now.
    """

    def __init__(self, client: Client, settings: BusSettings) -> None:
        self.client = client
        self.settings = settings
        self.js = client.jetstream(timeout=settings.publish_timeout_s)
        self.publisher = Publisher(client, settings.publish_timeout_s)
        self._on_reconnect: set[Callable[[], None]] = set()
        self._buckets: dict[str, Bucket] = {}

    @classmethod
    async def connect(cls, settings: BusSettings) -> Bus:
        """Connect, check the server, and ensure every stream and bucket."""
        reconnected: list[Callable[[], None]] = []

        async def on_reconnect() -> None:
            log.info("reconnected to NATS")
            for callback in reconnected:
                callback()

        async def on_disconnect() -> None:
            log.warning("disconnected from NATS; reconnecting for ever")

        async def on_error(error: Exception) -> None:
            log.warning("NATS: %s", error)

        try:
            client = await asyncio.wait_for(
                nats.connect(
                    settings.url,
                    name=settings.name,
                    user=settings.user,
                    password=settings.password,
                    user_credentials=settings.credentials_file,
                    ping_interval=5,
                    max_outstanding_pings=2,
                    reconnect_time_wait=0.25,
                    max_reconnect_attempts=-1,
                    reconnected_cb=on_reconnect,
                    disconnected_cb=on_disconnect,
                    error_cb=on_error,
                ),
                settings.connect_timeout_s,
            )
        except (TimeoutError, OSError, NatsError) as error:
            raise StartUpError(
                f"cannot connect to NATS at {settings.url}: {error or type(error).__name__}. "
                "Is it running there, and are the credentials right? (PENSTOCK_NATS_URL)"
            ) from error
        bus = cls(client, settings)
        reconnected.append(bus._reconnected)
        try:
            await bus._check_server()
            await bus.publisher.start()
            await bus._ensure()
        except BaseException:
            await client.close()
            raise
        return bus

    @property
    def ready(self) -> bool:
        """True while the connection stands."""
        return self.client.is_connected

    async def close(self) -> None:
        """Flush what was published, then close."""
        if self.client.is_closed:
            return
        try:
            await asyncio.wait_for(self.client.flush(), 2)
        except (TimeoutError, NatsError):
            log.warning("NATS did not take the last messages before closing")
        await self.client.close()

    def on_reconnect(self, callback: Callable[[], None]) -> Callable[[], None]:
        """Call back after each reconnect; returns what stops that."""
        self._on_reconnect.add(callback)
        return lambda: self._on_reconnect.discard(callback)

    def _reconnected(self) -> None:
        for callback in tuple(self._on_reconnect):
            callback()

    def bucket(self, name: str) -> Bucket:
        """A KV bucket of `streams.buckets`."""
        if name not in self._buckets:
            self._buckets[name] = Bucket(self, name)
        return self._buckets[name]

    async def api(self, call: str, body: dict[str, Any] | None = None) -> dict[str, Any]:
        """A JetStream API request, e.g. `STREAM.INFO.RAW`.

        Raises BusUnavailable when nobody answers, BusError with the server's words on an error.
        The raw form, since nats-py drops fields that it does not know.
        """
        msg = await self.request(f"$JS.API.{call}", orjson.dumps(body) if body else b"")
        answer: dict[str, Any] = orjson.loads(msg.data)
        if "error" in answer:
            error = answer["error"]
            raise ApiError(
                error.get("err_code", 0), f"{call}: {error.get('description', 'refused')}"
            )
        return answer

    async def request(self, subject: str, payload: bytes, timeout_s: float | None = None) -> Msg:
        """A core request; BusUnavailable without a responder, OutcomeUnknown without an answer."""
        try:
            return await self.client.request(
                subject, payload, timeout=timeout_s or self.settings.publish_timeout_s
            )
        except NoRespondersError as error:
            raise BusUnavailable(f"nobody answers {subject}") from error
        except NatsTimeout as error:
            raise OutcomeUnknown(f"no answer to {subject} in time") from error
        except NatsError as error:
            raise BusUnavailable(f"{subject}: {error}") from error

    async def subscribe(
        self, subject: str, callback: Callable[[Msg], Awaitable[None]], queue: str = ""
    ) -> Subscription:
        """A core subscription that the server knows of when this returns."""
        subscription = await self.client.subscribe(subject, queue, cb=callback)
        await self.client.flush()
        return subscription

    async def tail(self, stream: str, pattern: str) -> Stored | None:
        """The last message that matches, read from the leader; None when there is none."""
        try:
            answer = await self.api(f"STREAM.MSG.GET.{stream}", {"last_by_subj": pattern})
        except ApiError as error:
            if error.code == 10037:  # no message found
                return None
            raise
        return stored_of(answer["message"])

    async def _check_server(self) -> None:
        version = self.client.connected_server_version
        if (version.major, version.minor) < MIN_SERVER:
            raise StartUpError(
                f"nats-server {version.major}.{version.minor} at {self.settings.url} is too old: "
                f"Penstock needs {MIN_SERVER[0]}.{MIN_SERVER[1]} or later"
            )
        try:
            await self.js.account_info()
        except (APIError, NatsError) as error:
            raise StartUpError(
                f"the NATS server at {self.settings.url} has no JetStream for this account: "
                "start it with -js (or `jetstream {}` in its configuration), and allow "
                "the user to publish to $JS.API.>"
            ) from error

    async def _ensure(self) -> None:
        retention = self.settings.retention
        for config in (*streams.streams(retention), *streams.buckets(retention)):
            try:
                try:
                    await self.js.stream_info(config.name or "")
                except APIError as error:
                    if error.err_code != 10059:  # stream not found
                        raise
                    await self.js.add_stream(config)
            except (APIError, NatsError) as error:
                raise StartUpError(
                    f"cannot ensure the stream {config.name}: {error}. "
                    "May this user create streams? Is a stream of another owner in the way?"
                ) from error


class ApiError(BusError):
    """The JetStream API said no; `code` is its err_code."""

    def __init__(self, code: int, text: str) -> None:
        super().__init__(f"{text} (err_code {code})")
        self.code = code
