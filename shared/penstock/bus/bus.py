"""The connection: start-up checks, readiness, leader reads, and the parts built on it."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import re
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

import orjson
from nats.aio.msg import Msg
from nats.aio.subscription import Subscription
from nats.errors import Error as NatsError
from nats.errors import NoRespondersError
from nats.errors import TimeoutError as NatsTimeout

from penstock.bus.admin import migrate
from penstock.bus.connection.clock import LIMIT_S, Clock
from penstock.bus.connection.health import Health, advice_on, family, stream_of
from penstock.bus.connection.leader_probe import Pulse
from penstock.bus.connection.nats_client import PASSES, Connection, cancellations, obey_cancellation
from penstock.bus.connection.retry import first_answer
from penstock.bus.connection.stream_identity import Presence
from penstock.bus.connection.tls import Tls, TlsRefused
from penstock.bus.errors import (
    NOT_ENABLED,
    STREAM_NOT_FOUND,
    ApiError,
    BusError,
    BusUnavailable,
    NoJetStream,
    NotPermitted,
    NotThereYet,
    OutcomeUnknown,
    StartUpError,
    refusal,
)
from penstock.bus.read.direct import Stored, stored_of
from penstock.bus.state.continuity import Continuity
from penstock.bus.state.kv import Bucket
from penstock.bus.streams import Retention
from penstock.bus.write.publisher import Publisher

log = logging.getLogger(__name__)

MIN_SERVER = (2, 12)  # atomic batches and scheduled messages
MIN_PAYLOAD_BYTES = 1024 * 1024  # parts and records are up to 512 KiB, with room for the rest
CLOSE_TIMEOUT_S = 2
READS_AT_ONCE = 64
MESSAGE_NOT_FOUND = 10037
SUBSCRIBE_AGAIN_S = 10.0
READ_TIMEOUT_S = 2.0  # one attempt
LEASES = "KV_leases"
LOOK_TIMEOUT_S = 1.0  # for a stream's leader, after a reconnect
NOTE_S = 2.0  # how often it is noted how far the streams reach
LEARN_S = 5.0  # how often the others look for what was lost
ORDER_S = 0.25  # how often it is asked whether a stream has been put in order
ORDER_WAIT_S = 5.0  # how long a start waits for that
_FIRST_TIME, _LAST_TIME = datetime(1970, 1, 1, tzinfo=UTC), datetime(2200, 1, 1, tzinfo=UTC)


@dataclass(frozen=True, slots=True)
class BusSettings:
    """How to reach NATS. `publish_timeout_s`: after it an outcome counts as unknown.

    `url`: one, or several separated by commas; a cluster's other servers are learned.
    `max_unacked_bytes`: what may be published and not yet acknowledged; more waits its turn.
    `repairs`: puts streams in order that have lost their end (`continuity`), as normalizers do.
    `clock_limit_s`: by how much this machine's clock may differ from NATS's; see `clock`.
    `inbox_prefix`: where answers come, so that other users cannot listen to them.
    """

    url: str = "nats://127.0.0.1:4222"
    name: str = "penstock"
    user: str | None = None
    password: str | None = field(default=None, repr=False)
    credentials_file: str | None = None
    inbox_prefix: str = "_INBOX"
    tls: Tls = field(default_factory=Tls)
    connect_timeout_s: float = 10.0
    publish_timeout_s: float = 5.0
    max_unacked_bytes: int = 64 * 1024 * 1024
    clock_limit_s: float = LIMIT_S
    retention: Retention = field(default_factory=Retention)
    repairs: bool = False


class Bus:
    """One connection to NATS, and everything Penstock does with it.

    `connect` raises `StartUpError` with a text that says what is wrong and what to do,
    `NotThereYet` where that may change by itself. After that the connection is kept for ever;
    `ready` says whether it stands right now, `not_ready` what else is in the way.
    """

    def __init__(self, settings: BusSettings) -> None:
        self.settings = settings
        self.client = Connection()
        self.client.on_refused = self._refused
        self.health = Health()
        self.js = self.client.jetstream(timeout=settings.publish_timeout_s)
        self.publisher = Publisher(
            self.client, settings.publish_timeout_s, settings.max_unacked_bytes, self.health
        )
        self.continuity = Continuity(self, repairs=settings.repairs)
        # so many parts of the past are read at once: after a reconnect everybody would
        self.reading = asyncio.Semaphore(READS_AT_ONCE)
        self._on_reconnect: set[Callable[[], None]] = set()
        self._buckets: dict[str, Bucket] = {}
        self._troubles: list[str] = []  # since the connection last stood, each once
        self._dialing = False
        self._away_since: float | None = None
        self._presence = Presence(self._created, self._found, self._lost)
        self.clock = Clock(self._server_time, settings.clock_limit_s)
        self._ticking: asyncio.Task[None] | None = None
        self._checking: asyncio.Task[None] | None = None
        self._pulse: asyncio.Task[None] | None = None
        self._settling: asyncio.Task[None] | None = None
        self._watching: asyncio.Task[None] | None = None
        self._subscribing: asyncio.TimerHandle | None = None
        self._reconnecting: asyncio.Task[None] | None = None

    @classmethod
    async def connect(cls, settings: BusSettings, *, ensure: bool = True) -> Bus:
        """Connect, check the server, and ensure every stream and bucket.

        Who only looks at what is there does not ensure: it may know another retention.
        """
        bus = cls(settings)
        try:
            await bus._dial()
            await bus._check_server()
            await bus.publisher.start()
            if ensure:
                await migrate.ensure(bus, settings.retention)
                await bus._learn_streams()
                await bus._begin_in_order()
            await bus.clock.begin()
        except BaseException:
            await bus.client.close()
            raise
        pulse = Pulse(bus._ask_leader, bus.client.leave, bus.health)
        bus._pulse = asyncio.create_task(pulse.run())
        if ensure:
            bus._watching = asyncio.create_task(bus._watch())
        bus._ticking = asyncio.create_task(bus.clock.run())
        return bus

    async def _ask_leader(self) -> None:
        if self.client.is_connected:
            await self.api("INFO", timeout_s=READ_TIMEOUT_S)

    async def _server_time(self) -> str:
        # the leader answers, who stamps the leases, and puts its time into the answer
        answer = await self.api(f"STREAM.INFO.{LEASES}", timeout_s=READ_TIMEOUT_S)
        return str(answer["ts"])

    async def _dial(self) -> None:
        settings = self.settings
        self._dialing = True
        servers = re.findall(r"[^,\s]+", settings.url)
        try:
            context = settings.tls.context(servers)
            self.client.must_encrypt = context is not None
            async with asyncio.timeout(settings.connect_timeout_s):
                await self.client.connect(
                    servers,
                    name=settings.name,
                    user=settings.user,
                    password=settings.password,
                    user_credentials=settings.credentials_file,
                    inbox_prefix=settings.inbox_prefix.encode(),
                    tls=context,
                    ping_interval=5,
                    max_outstanding_pings=2,
                    reconnect_time_wait=0.25,  # type: ignore[arg-type]  # it is only slept for
                    max_reconnect_attempts=-1,
                    reconnected_cb=self._reconnected,
                    disconnected_cb=self._disconnected,
                    error_cb=self._failed,
                )
        except TimeoutError as error:
            # nats-py tries until the timeout: what went wrong is what it met on the way
            raise NotThereYet(self._cannot_connect("; ".join(self._troubles))) from error
        except TlsRefused as error:
            raise StartUpError(f"cannot connect to NATS at {self.where}: {error}") from error
        except (OSError, NatsError, ImportError, ValueError) as error:
            raise StartUpError(self._cannot_connect(str(error))) from error
        finally:
            self._dialing = False

    def _cannot_connect(self, reason: str) -> str:
        advice = advice_on(reason, self.settings.user) or (
            "Is it running there, and are the credentials right? (PENSTOCK_NATS_URL)"
        )
        return f"cannot connect to NATS at {self.where}: {reason or 'no answer'}. {advice}"

    @property
    def where(self) -> str:
        """The URL without the password that may stand in it."""
        return re.sub(r"//[^@/]*@", "//", self.settings.url)

    @property
    def ready(self) -> bool:
        """True while the connection stands, and the streams are those of the start."""
        return self.client.usable

    @property
    def calm_s(self) -> float:
        """For how long the connection has stood since a reconnect; 0 while it does not stand."""
        return time.monotonic() - self.client.returned_at if self.ready else 0.0

    @property
    def cluster_whole_s(self) -> float:
        """For how long the cluster has lost no server, as far as this connection knows."""
        return time.monotonic() - self.client.node_lost_at

    @property
    def hindrance(self) -> str:
        """Why nothing can be sent now, without addresses: clients may read it. Else empty."""
        return self.client.held_back if self.client.is_connected else "not connected to NATS"

    @property
    def not_ready(self) -> list[str]:
        """Why nothing new should be begun on it now, in words for people; else empty."""
        if self.client.is_connected:
            reasons = self.health.reasons + self.clock.not_ready
            held_back = self.client.held_back
            return reasons if not held_back or held_back in reasons else [held_back, *reasons]
        since = self._away_since
        away = f" for {time.monotonic() - since:.0f} s" if since is not None else ""
        if not self._troubles:
            return [f"NATS at {self.where} is away{away}"]
        trouble = self._troubles[-1]
        advice = advice_on(trouble, self.settings.user)
        return [f"NATS at {self.where} is away{away} ({trouble})" + (f". {advice}" * bool(advice))]

    async def close(self) -> None:
        """Flush what was published, then close."""
        if self.client.is_closed:
            return
        connecting = (self._checking, self._subscribing, self._reconnecting)
        for task in (*connecting, self._pulse, self._ticking, self._watching, self._settling):
            if task is not None:
                task.cancel()
        try:
            await self.client.flush(CLOSE_TIMEOUT_S)
        except NatsError:
            log.warning("NATS did not take the last messages before closing")
        await self.client.close()

    def on_reconnect(self, callback: Callable[[], None]) -> Callable[[], None]:
        """Call back after each reconnect, once the streams are known to be there.

        Returns what stops that.
        """
        self._on_reconnect.add(callback)
        return lambda: self._on_reconnect.discard(callback)

    async def _reconnected(self) -> None:
        url = self.client.connected_url
        log.info("reconnected to NATS at %s", url.netloc.rpartition("@")[2] if url else "")
        self._away_since = None
        self._troubles.clear()
        self.health.begin_anew()
        self._checking = asyncio.create_task(self._presence.check())

    async def _disconnected(self) -> None:
        for task in (self._checking, self._settling):
            if task is not None:
                task.cancel()
        self._settling = None
        if not self.client.is_closed:
            self._away_since = self._away_since or time.monotonic()
            self.client.held_back = "it is not known yet whether the streams are still there"
            log.warning("disconnected from NATS; reconnecting for ever")
        self.client.connection_lost()
        self.publisher.connection_lost()

    async def _learn_streams(self) -> None:
        for config in migrate.declared(self.settings.retention):
            try:
                created = await self._created(config["name"])
            except BusError as error:
                raise NotThereYet(f"the stream {config['name']} does not answer") from error
            self._presence.know(config["name"], created or "")

    async def _created(self, stream: str) -> str | None:
        # not by `api`, which waits for what is found out here
        try:
            msg = await self.client.request(f"$JS.API.STREAM.INFO.{stream}", timeout=LOOK_TIMEOUT_S)
        except NatsError as error:
            raise BusUnavailable(str(error)) from error
        answer = orjson.loads(msg.data)
        if "error" in answer:
            if answer["error"].get("err_code") == STREAM_NOT_FOUND:
                return None
            raise BusUnavailable(str(answer["error"].get("description")))
        return str(answer["created"])

    def _found(self) -> None:
        if self.client.held_back and self._settling is None:
            self._settling = asyncio.create_task(self._settle())

    def _lost(self, reason: str) -> None:
        if self._settling is not None:
            self._settling.cancel()
            self._settling = None
        self._hold_back(reason)

    def _hold_back(self, reason: str) -> None:
        self.client.held_back = reason
        self.health.refused("lost", "", reason)

    async def _begin_in_order(self) -> None:
        until = time.monotonic() + ORDER_WAIT_S
        try:
            while reason := await self.continuity.check():
                if time.monotonic() > until:
                    raise NotThereYet(reason)
                await asyncio.sleep(ORDER_S)
        except BusError as error:
            if isinstance(error, StartUpError):
                raise
            raise refusal(error)(
                f"cannot find out whether NATS has lost data: {error}. May this user read and "
                "write the bucket checkpoints?"
            ) from error

    async def _settle(self) -> None:
        """The streams are there: are they whole? Then everything goes on."""
        until = time.monotonic() + ORDER_WAIT_S
        passing = PASSES.set(True)
        while True:
            try:
                reason = await self.continuity.check()
            except BusError as error:
                log.warning("whether NATS has lost data is not known yet: %s", error)
                reason = ""
                if time.monotonic() < until:
                    await asyncio.sleep(ORDER_S)
                    continue  # an election, say; whoever watches looks again
            if not reason:
                break
            self._hold_back(reason)
            await asyncio.sleep(ORDER_S)
        PASSES.reset(passing)
        await asyncio.sleep(0)  # first, whoever remembers what is lost hears of it
        self.client.held_back = ""
        self._settling = None
        self.health.worked("", "lost")
        for callback in tuple(self._on_reconnect):
            callback()

    async def _watch(self) -> None:
        """Note how far the streams reach; see that none of them ends before that."""
        before = cancellations()
        while True:
            # Whoever closes the bus would wait for the next look, if one that came in the middle
            # of a request was lost.
            obey_cancellation(before)
            await asyncio.sleep(NOTE_S if self.settings.repairs else LEARN_S)
            if not self.ready:
                continue
            try:
                reason = await self.continuity.check()
                if self.settings.repairs:
                    await self.continuity.note()
            except BusError as error:
                log.debug("how far the streams reach is not noted: %s", error)
                continue
            if reason and self._settling is None:
                self._hold_back(reason)
                self._settling = asyncio.create_task(self._settle())

    def _refused(self, action: str, subject: str) -> None:
        if action == "publish":
            self.health.refused("denied", stream_of(subject), subject)
            self.publisher.refused(subject)
        else:
            self.health.refused("unheard", family(subject), subject)
            # nobody says when it is allowed; a new connection subscribes to everything again
            if self._subscribing is None:
                loop = asyncio.get_running_loop()
                self._subscribing = loop.call_later(SUBSCRIBE_AGAIN_S, self._connect_anew)

    def _connect_anew(self) -> None:
        self._subscribing = None
        self._reconnecting = asyncio.create_task(self.client.connect_anew())

    async def _failed(self, error: Exception) -> None:
        if not isinstance(error, OSError | NatsError | EOFError):
            log.error("a subscription's callback failed", exc_info=error)
            return
        text = str(error) or type(error).__name__
        if self._dialing and advice_on(text, None):
            raise error  # which ends the attempts: another one would be refused, too
        if text not in self._troubles:  # each attempt to reconnect ends in the same words
            log.warning("NATS: %s", text)
            self._troubles.append(text)

    def bucket(self, name: str) -> Bucket:
        """A KV bucket of `streams.buckets`."""
        if name not in self._buckets:
            self._buckets[name] = Bucket(self, name)
        return self._buckets[name]

    async def api(
        self, call: str, body: dict[str, Any] | None = None, timeout_s: float | None = None
    ) -> dict[str, Any]:
        """A JetStream API request, e.g. `STREAM.INFO.RAW`.

        Raises BusUnavailable when nobody answers, BusError with the server's words on an error.
        The raw form, since nats-py drops fields that it does not know.
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

    async def request(self, subject: str, payload: bytes, timeout_s: float | None = None) -> Msg:
        """A core request; BusUnavailable without a responder, OutcomeUnknown without an answer."""
        timeout_s = timeout_s or self.settings.publish_timeout_s
        await self.client.standing(timeout_s)
        try:
            return await self.client.request(subject, payload, timeout=timeout_s)
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
        """A core subscription that the server knows of when this returns.

        It lives on over reconnects. Raises BusUnavailable.
        """
        await self.client.standing(self.settings.publish_timeout_s)
        try:
            subscription = await self.client.subscribe(subject, queue, cb=callback)
        except NatsError as error:
            raise BusUnavailable(f"{subject}: {error}") from error
        try:
            await self.client.flush()
        except NatsError as error:
            with contextlib.suppress(NatsError):
                await subscription.unsubscribe()
            raise BusUnavailable(f"{subject}: the server did not take it: {error}") from error
        return subscription

    async def has(self, stream: str) -> bool:
        """Whether there is that stream."""
        try:
            await self.api(f"STREAM.INFO.{stream}")
        except ApiError as error:
            if error.code != STREAM_NOT_FOUND:
                raise
            return False
        return True

    async def tail(self, stream: str, pattern: str) -> Stored | None:
        """The last message that matches, read from the leader; None when there is none."""
        return await self._message(stream, {"last_by_subj": pattern})

    async def at(self, stream: str, sequence: int) -> Stored | None:
        """The message of this stream sequence, read from the leader; None when there is none."""
        return await self._message(stream, {"seq": sequence})

    async def delete(self, stream: str, sequence: int) -> bool:
        """Delete the message of this stream sequence; False when there is none (any more)."""
        try:
            await self.api(f"STREAM.MSG.DELETE.{stream}", {"seq": sequence, "no_erase": True})
        except ApiError:
            # the server has two codes for it, depending on what else the stream holds
            if await self.at(stream, sequence) is not None:
                raise
            return False
        return True

    async def since(self, stream: str, time: datetime) -> Stored | None:
        """The first message that was stored at that time or later; None when there is none."""
        # the server counts nanoseconds since 1970 in 64 bits
        within = min(max(time, _FIRST_TIME), _LAST_TIME).astimezone(UTC)
        return await self._message(stream, {"start_time": within.isoformat()})

    async def _message(self, stream: str, which: dict[str, Any]) -> Stored | None:
        try:
            answer = await first_answer(lambda: self.api(f"STREAM.MSG.GET.{stream}", which))
        except ApiError as error:
            if error.code == MESSAGE_NOT_FOUND:
                return None
            raise
        return stored_of(answer["message"])

    async def _check_server(self) -> None:
        version = self.client.connected_server_version
        if (version.major, version.minor) < MIN_SERVER:
            raise StartUpError(
                f"nats-server {version.major}.{version.minor} at {self.where} is too old: "
                f"Penstock needs {MIN_SERVER[0]}.{MIN_SERVER[1]} or later"
            )
        if self.client.max_payload < MIN_PAYLOAD_BYTES:
            raise StartUpError(
                f"the NATS server at {self.where} takes messages of {self.client.max_payload} "
                f"bytes: set its max_payload to {MIN_PAYLOAD_BYTES} or more (its default is)"
            )
        try:
            await self.api("INFO")
        except BusError as error:
            raise refusal(error)(
                f"the NATS server at {self.where} has no JetStream for this account ({error}): "
                "start it with -js (or `jetstream {}` in its configuration), and allow "
                "the user to publish to $JS.API.>"
            ) from error
