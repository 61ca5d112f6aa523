"""Makes requests to NATS: core requests, subscriptions, and the JetStream API."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Protocol

import orjson
from nats.aio.msg import Msg
from nats.aio.subscription import Subscription
from nats.errors import Error as NatsError
from nats.errors import NoRespondersError
from nats.errors import TimeoutError as NatsTimeout

from penstock.bus.connection.content import Content
from penstock.bus.connection.health import Health, stream_of
from penstock.bus.connection.incoming import Incoming, Listener
from penstock.bus.connection.nats_client import Connection
from penstock.bus.errors import (
    NOT_ENABLED,
    STREAM_NOT_FOUND,
    ApiError,
    BusUnavailable,
    NoJetStream,
    NotPermitted,
    OutcomeUnknown,
)
from penstock.bus.sealing import MasterKeys

READS_AT_ONCE = 64  # the most histories that are read at once


class JetStream:
    """Makes requests over one connection, for all parts of the bus.

    A request waits up to `timeout_s` for the connection, and then up to `timeout_s` for its answer.
    `reading` limits how many histories are read at once. Without this limit, all followers would
    read their histories at the same time after a reconnect.
    """

    def __init__(
        self,
        connection: Connection,
        health: Health,
        timeout_s: float,
        content_keys: Sequence[str] = (),
    ) -> None:
        self.connection = connection
        self.health = health
        self.timeout_s = timeout_s
        # seals what is published, and opens what is read, as the operator's keys say
        self.content = Content(self, MasterKeys(content_keys), health)
        self.reading = asyncio.Semaphore(READS_AT_ONCE)
        # nats-py's own JetStream object, which has the object store
        self.nats = connection.jetstream(timeout=timeout_s)
        # objects that the users of this connection share, by name
        self.shared: dict[str, object] = {}
        # For metrics: functions that count the waiting messages, by stream and durable consumer.
        self.waiting: dict[tuple[str, str], Callable[[], Awaitable[int]]] = {}
        self.gaps = 0  # for metrics: the gaps in live messages that followers have repaired
        self._on_reconnect: set[Callable[[], None]] = set()

    @property
    def is_ready(self) -> bool:
        return self.connection.is_usable

    def on_reconnect(self, callback: Callable[[], None]) -> Callable[[], None]:
        """Call `callback` after each reconnect, once the streams are known to be complete. Returns
        a function that removes the callback."""
        self._on_reconnect.add(callback)
        return lambda: self._on_reconnect.discard(callback)

    def reconnected(self) -> None:
        for callback in tuple(self._on_reconnect):
            callback()

    async def api(
        self, call: str, body: dict[str, Any] | None = None, timeout_s: float | None = None
    ) -> dict[str, Any]:
        """Make a JetStream API request, e.g. `STREAM.INFO.RAW`, and return the answer's JSON.

        The answer is raw JSON, because nats-py's own types drop unknown fields.

        Raises:
            BusUnavailable: no leader answered.
            NoJetStream: the account or the server has no JetStream.
            ApiError: the server refused the request.
            OutcomeUnknown: no answer came in time.
        """
        payload = orjson.dumps(body) if body else b""
        msg = await self.request(f"$JS.API.{call}", payload, timeout_s)
        answer: dict[str, Any] = orjson.loads(msg.data)
        if "error" in answer:
            error = answer["error"]
            text = f"{call}: {error.get('description', 'refused')}"
            if error.get("err_code") in NOT_ENABLED:
                raise NoJetStream(text)
            if error.get("code") == 503:  # no leader at the moment
                raise BusUnavailable(text)
            raise ApiError(error.get("err_code", 0), text)
        return answer

    async def consumers(self, stream: str) -> list[dict[str, Any]]:
        """Return the server's information about each consumer of a stream, as raw JSON."""
        found: list[dict[str, Any]] = []
        while True:
            page = await self.api(f"CONSUMER.LIST.{stream}", {"offset": len(found)})
            listed: list[dict[str, Any]] = page.get("consumers") or []
            found += listed
            if not listed or len(found) >= page["total"]:
                return found

    async def request(
        self,
        subject: str,
        payload: bytes,
        timeout_s: float | None = None,
        *,
        headers: dict[str, Any] | None = None,
    ) -> Msg:
        """Make a core request, and return the first answer.

        Raises:
            BusUnavailable: there is no connection, or no client subscribes to the subject.
            NotPermitted: this user may not publish to the subject.
            OutcomeUnknown: no answer came in time.
        """
        timeout_s = timeout_s or self.timeout_s
        await self.connection.wait_usable(timeout_s)
        try:
            return await self.connection.request(
                subject, payload, timeout=timeout_s, headers=headers
            )
        except NoRespondersError as error:
            raise BusUnavailable(f"nobody answers {subject}") from error
        except NatsTimeout as error:
            if self.health.denies(stream_of(subject)):
                raise NotPermitted(f"NATS does not let this user publish to {subject}") from error
            raise OutcomeUnknown(f"no answer to {subject} in time") from error
        except NatsError as error:
            raise BusUnavailable(f"{subject}: {error}") from error

    async def subscribe(
        self, subject: str, callback: Callable[[Msg], Awaitable[None]], queue: str = ""
    ) -> Subscription:
        """Make a core subscription, which survives reconnects; return when the server has
        registered it."""
        await self.connection.wait_usable(self.timeout_s)
        try:
            subscription = await self.connection.subscribe(subject, queue, cb=callback)
        except NatsError as error:
            raise BusUnavailable(f"{subject}: {error}") from error
        try:
            await self.connection.flush()
        except NatsError as error:
            with contextlib.suppress(NatsError):
                await subscription.unsubscribe()
            raise BusUnavailable(f"{subject}: the server did not take it: {error}") from error
        return subscription

    async def listen(
        self,
        subject: str,
        deliver: Callable[[Incoming], None],
        queue: str = "",
        is_patient: bool = False,
    ) -> Listener:
        """Make a core subscription as `subscribe` does, but without a task and a queue.

        `deliver` is called with each message while the bytes from the server are parsed, so it must
        not wait, and must bound the memory that it keeps (see `Listener`). While many messages for
        patient listeners arrive at a busy process, the connection collects them for some
        milliseconds (see `Pace`).
        """
        await self.connection.wait_usable(self.timeout_s)
        try:
            listener = self.connection.listen(subject, deliver, queue, is_patient)
        except NatsError as error:
            raise BusUnavailable(f"{subject}: {error}") from error
        try:
            await self.connection.flush()
        except BaseException as error:
            listener.stop()
            if isinstance(error, NatsError):
                raise BusUnavailable(f"{subject}: the server did not take it: {error}") from error
            raise
        return listener

    async def has(self, stream: str) -> bool:
        try:
            await self.api(f"STREAM.INFO.{stream}")
        except ApiError as error:
            if error.code != STREAM_NOT_FOUND:
                raise
            return False
        return True


class HasJetStream(Protocol):
    """The interface of objects that can make requests, such as a `Bus` and its parts."""

    @property
    def jetstream(self) -> JetStream: ...
