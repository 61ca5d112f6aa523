"""Corrects nats-py's client: the corrected client reconnects after every error, obeys cancellation,
and is quick.

nats-py makes, orders and authenticates connections. Messages do not pass through nats-py's tasks
and queues: `Wire` and `Parser` read and write, and a `Listener` gets its messages as they are
parsed.
"""

from __future__ import annotations

import asyncio
import random
import re
import time
from collections import deque
from collections.abc import Awaitable, Callable, Mapping
from contextvars import ContextVar
from functools import partial
from typing import Any

import orjson
from nats.aio.client import DEFAULT_FLUSH_TIMEOUT, PING_PROTO, PONG_PROTO, Client, Srv
from nats.aio.msg import Msg
from nats.errors import (
    ConnectionClosedError,
    FlushTimeoutError,
    MaxPayloadError,
    NoRespondersError,
    OutboundBufferLimitError,
    ProtocolError,
    UnexpectedEOF,
)
from nats.errors import Error as NatsError
from nats.errors import TimeoutError as NatsTimeout
from nats.protocol.parser import PERMISSIONS_ERR

from penstock.bus.connection.incoming import Incoming, Listener, fields
from penstock.bus.connection.protocol import Parser, end_of_subscription, publication, subscription
from penstock.bus.connection.retry import abandon
from penstock.bus.connection.wire import Wire
from penstock.bus.errors import BusUnavailable
from penstock.busyness import Pace

REST_S = 0.005  # the longest rest between two reads, in seconds
CHECK_S = 0.02  # seconds between two checks whether the connection is usable
# The shortest and the longest wait, in seconds, between two attempts to connect to one server. The
# wait is random: all services lose a server at the same time, and without the random wait all
# services would return at the same time.
RECONNECT_S = (0.1, 0.5)
# The limit of message bytes that wait for nats-py's own subscriptions. Above this limit, no more
# bytes are read.
MAX_UNREAD_BYTES = 1024 * 1024

# True in tasks whose requests are sent even while all other requests are held back: the tasks that
# check whether work may continue.
PASSES: ContextVar[bool] = ContextVar("passes", default=False)


class NotEncrypted(NatsError):
    """The client requires TLS, and the server offers none."""


_REFUSED = re.compile(r'permissions violation for (publish|subscription)[^"]*"([^"]+)"')


class Connection(Client):
    """A connection that reconnects after every error until `close` is called.

    nats-py closes the client for good when the server sends an error that nats-py does not know
    (an expired authentication, a line that is too long, a revoked account). With nats-py's own
    class, the process would then continue without a bus. In this class, such an error causes a
    reconnect, as a lost connection does.
    """

    def __init__(self) -> None:
        super().__init__()
        self._loop: asyncio.AbstractEventLoop
        self._wire = Wire()
        self.unanswered: set[asyncio.Future[Any]] = set()
        self._pace = Pace(REST_S)
        # The subject below which answers are expected; empty before the first request. One
        # subscription gets all answers, so an answer costs no subscription.
        self._replies = ""
        self._asked = 0  # how many reply subjects were made so far
        # the function that takes an answer, by reply subject
        self._takers: dict[str, Callable[[Incoming], object]] = {}
        self._later: deque[Callable[[], Awaitable[object]]] = deque()  # steps for `_read_loop`
        self._has_later = asyncio.Event()
        self._unread_bytes = 0  # the payload bytes of the messages in `_later`
        self.held_back = ""  # why nothing may be sent although the connection is up; else empty
        self.must_encrypt = False
        self._left: Srv | None = None  # the server that `leave` left; the next attempt skips it
        self.returned_at = float("-inf")  # the monotonic time of the last reconnect
        self.node_lost_at = float("-inf")  # the monotonic time of the last loss of a server
        self._nodes: frozenset[str] = frozenset()  # the cluster's servers, as last announced
        self._address = ""  # the address of the server to which this client is connected
        self.on_refused: Callable[[str, str], None] = lambda action, subject: None

    @property
    def is_up(self) -> bool:
        """True while there is a connection; false at once when it is lost."""
        return self.is_connected and not self._wire.is_lost

    @property
    def is_usable(self) -> bool:
        """True while messages may be sent and reach the server."""
        return self.is_up and (not self.held_back or PASSES.get())

    @property
    def since_reconnect_s(self) -> float:
        """Seconds since the last reconnect; 0 while the connection is not usable."""
        return time.monotonic() - self.returned_at if self.is_usable else 0.0

    @property
    def since_node_lost_s(self) -> float:
        """Seconds since the cluster last lost a server, as far as this connection knows."""
        return time.monotonic() - self.node_lost_at

    def connection_lost(self) -> None:
        """End every wait for an answer, since no answer can arrive over a lost connection."""
        for answer in (*self.unanswered, *self._pongs):
            if not answer.done():
                answer.set_exception(NatsTimeout())
                answer.exception()  # asyncio would log an exception that nobody waits for

    @staticmethod
    def _parse_header_lines(raw: bytes) -> dict[str, str]:
        return fields(b"NATS/1.0\r\n" + raw)

    def _connect_command(self) -> bytes:
        # Without this check, nats-py would send the password in clear text to a server without TLS.
        if self.must_encrypt and not self._server_info.get("tls_required"):
            raise NotEncrypted(
                "nats: the server does not ask for TLS, and this client is configured to use it: "
                "nothing was sent to the server"
            )
        command: bytes = super()._connect_command()
        return command

    async def wait_usable(self, timeout_s: float) -> None:
        """Wait until the connection is usable, for up to `timeout_s`; else raise BusUnavailable.

        Every sender calls this before it sends. Otherwise `send` would keep a message during a
        reconnect and send it later, when the sender already counts the message as not sent.
        """
        if self.is_usable:
            return
        try:
            async with asyncio.timeout(timeout_s):
                while not self.is_usable and not self.is_closed:
                    await asyncio.sleep(CHECK_S)
        except TimeoutError:
            pass
        if not self.is_connected:
            raise BusUnavailable("not connected to NATS")
        if self.held_back and not PASSES.get():
            raise BusUnavailable(self.held_back)

    async def close(self) -> None:
        """Close the connection, also after `connect` has failed before or in the TLS handshake."""
        if self._flush_queue is not None:
            await super().close()

    # sending

    def send(
        self,
        subject: str,
        payload: bytes = b"",
        reply: str = "",
        headers: Mapping[str, str] | bytes | None = None,
        *,
        is_patient: bool = False,
    ) -> None:
        """Publish without waiting; `publish` waits while too many bytes are unsent.

        With `is_patient`, nobody waits for the answer until this process wakes for something else.

        `headers` may be the bytes that `messages.header_lines` returns. Raises NatsError if the
        message cannot be sent; nothing was sent then.

        While there is no connection, messages are kept for the next one, up to 2 MiB in all, so
        that the acknowledgement of a message that was processed meanwhile is not lost. A sender
        that must know whether its message was sent calls `wait_usable` first.
        """
        if len(payload) > self._max_payload:
            raise MaxPayloadError
        command = publication(subject, reply, payload, headers)
        if self.is_up:
            self._wire.write(command)
            if reply and not is_patient:
                self._wire.end_rest()
                self._wire.wake()
        elif self.is_closed:
            raise ConnectionClosedError
        elif self._pending_data_size + len(command) > self._max_pending_size:
            raise OutboundBufferLimitError
        else:
            self._pending.append(command)
            self._pending_data_size += len(command)

    @property
    def is_full(self) -> bool:
        return self._wire.is_full

    async def room(self) -> None:
        if self._wire.is_full:
            await self._wire.drain()

    async def publish(
        self,
        subject: str,
        payload: bytes = b"",
        reply: str = "",
        headers: dict[str, Any] | None = None,
    ) -> None:
        await self.room()
        self.send(subject, payload, reply, headers)

    async def request(
        self,
        subject: str,
        payload: bytes = b"",
        timeout: float = 0.5,
        old_style: bool = False,
        headers: dict[str, Any] | None = None,
    ) -> Msg:
        """Publish with a reply subject, and return the first answer.

        Raises:
            NoRespondersError: no client subscribes to the subject.
            NatsTimeout: no answer came within `timeout` seconds, or the connection was lost.
        """
        answer: asyncio.Future[Incoming] = self._loop.create_future()
        reply = self.expect(partial(_settle, answer))
        self.unanswered.add(answer)
        timer = self._loop.call_later(timeout, _time_out, answer)
        try:
            await self.publish(subject, payload, reply, headers)
            message = await answer
        finally:
            timer.cancel()
            self.give_up(answer)
            self.forget(reply)
        if message.headers.get("Status") == "503":
            raise NoRespondersError
        return Msg(self, message.subject, message.reply, message.data, message.headers or None)

    def expect(self, take: Callable[[Incoming], object]) -> str:
        """Return a new reply subject; until `forget`, `take` gets each answer. It must not wait."""
        if not self._replies:
            self._replies = self.new_inbox()
            self.listen(f"{self._replies}.*", self._take_answer)
        self._asked += 1
        reply = f"{self._replies}.{self._asked}"
        self._takers[reply] = take
        return reply

    def forget(self, reply: str) -> None:
        self._takers.pop(reply, None)

    def _take_answer(self, message: Incoming) -> None:
        take = self._takers.get(message.subject)
        if take is not None:
            take(message)

    def give_up(self, answer: asyncio.Future[Any]) -> None:
        """Wait no longer for an answer that was put into `unanswered`."""
        self.unanswered.discard(answer)
        abandon(answer)

    def listen(
        self,
        subject: str,
        deliver: Callable[[Incoming], None],
        queue: str = "",
        is_patient: bool = False,
    ) -> Listener:
        """Subscribe, and call `deliver` with each message as it is parsed (see `Listener`).

        The subscription survives reconnects. The server has it once a `flush` after this call has
        returned.
        """
        if self.is_closed:
            raise ConnectionClosedError
        self._sid += 1
        number = self._sid
        command = subscription(subject, queue, number)
        listener = Listener(number, subject, queue, deliver, self._stop_listening, is_patient)
        self._subs[number] = listener  # type: ignore[assignment]  # see `Listener`
        if self.is_connected:  # without a connection, the next reconnect makes the subscription
            self._wire.write(command)
        return listener

    async def stop_listening(self, listener: Listener) -> None:
        """End a subscription after the listener has got all messages that the server has sent."""
        if self.is_connected:
            self._wire.write(end_of_subscription(listener.number))
            await self.flush()
        listener.stop()

    def _stop_listening(self, number: int) -> None:
        if self._subs.pop(number, None) is not None and self.is_connected:
            self._wire.write(end_of_subscription(number))

    async def flush(self, timeout: float = DEFAULT_FLUSH_TIMEOUT) -> None:
        """Wait until the server has processed everything that was sent; at once without a
        connection."""
        if self.is_closed:
            raise ConnectionClosedError
        if not self.is_connected:
            return
        pong: asyncio.Future[Any] = self._loop.create_future()
        await self._send_ping(pong)
        try:
            async with asyncio.timeout(timeout):
                await pong
        except TimeoutError as error:
            raise FlushTimeoutError from error

    # nats-py's own sending, without its queue and its task

    async def _send_command(self, cmd: bytes, priority: bool = False) -> None:
        if self.is_connected:
            self._wire.write(cmd)
            await self._wire.drain()
        else:
            self._pending.append(cmd)
            self._pending_data_size += len(cmd)

    async def _flush_pending(self, force_flush: bool = False) -> None:
        if self.is_connected and self._pending:
            kept, self._pending, self._pending_data_size = self._pending, [], 0
            self._wire.writelines(kept)

    async def _flusher(self) -> None:
        return

    async def _send_ping(self, future: asyncio.Future[Any] | None = None) -> None:
        self._pongs.append(future or self._loop.create_future())
        self._wire.write(PING_PROTO)
        self._wire.end_rest()
        self._wire.wake()

    # receiving

    def quiet(self) -> None:
        """Do not wake for a few bytes (see `Wire.quiet`), unless somebody waits for an answer."""
        if not self._takers and not self._pongs:
            self._wire.quiet()

    def _on_message(
        self, number: int, subject: bytes, reply: bytes, block: bytes, data: bytes
    ) -> None:
        taker: object = self._subs.get(number)
        if isinstance(taker, Listener):
            self._pace.messages += taker.is_patient
            try:
                taker.deliver(Incoming(subject, reply, block, data))
            except Exception as error:
                self._do_later(partial(self._error_cb, error))
        elif taker is not None:
            self._unread_bytes += len(data)
            self._do_later(partial(self._queue, number, subject, reply, block, data))
            if self._unread_bytes > MAX_UNREAD_BYTES:
                self._wire.hold()

    async def _queue(
        self, number: int, subject: bytes, reply: bytes, block: bytes, data: bytes
    ) -> None:
        self._unread_bytes -= len(data)
        await self._process_msg(number, subject, reply, data, block)

    def _on_read(self) -> None:
        """Rest if this process is busy and many messages arrive, unless it waits for an answer.

        A process that follows thousands of runs gets each live message separately, because the
        server sends a message as soon as it arrives. Waking for one message costs the edge 20 µs,
        as much as all other work on the message before the edge's write. In a rest, the operating
        system keeps the messages, and the next read takes all of them.
        """
        if not self._pace.messages:
            return
        rest_s = self._pace.wait_s
        if rest_s and not self._takers and not self._pongs:
            self._wire.rest(rest_s)

    def _on_line(self, line: bytes) -> None:
        kind, _, rest = line.partition(b" ")
        if kind == b"PING":
            self._wire.write(PONG_PROTO)
        elif kind == b"PONG":
            self._on_pong()
        elif kind == b"INFO":
            self._do_later(partial(self._process_info, orjson.loads(rest)))
        elif kind == b"-ERR":
            self._do_later(partial(self._process_err, rest.decode("utf-8", "replace").lower()))
        elif kind != b"+OK":
            raise ProtocolError

    def _on_pong(self) -> None:
        self._pongs_received += 1
        self._pings_outstanding = 0
        if self._pongs:
            pong = self._pongs.pop(0)
            if not pong.done():
                pong.set_result(True)

    def _do_later(self, step: Callable[[], Awaitable[object]]) -> None:
        self._later.append(step)
        self._has_later.set()

    async def _read_loop(self) -> None:
        """Do what cannot be done while bytes are parsed, in order, until the connection ends.

        This loop calls nats-py's methods, which fill the queues of its own subscriptions and change
        the state of the connection.
        """
        wire = self._wire
        self._later.clear()
        self._unread_bytes = 0
        wire.begin(
            Parser(self._on_message, self._on_line),
            lambda error: self._do_later(partial(self._ended, wire, error)),
            self._on_read,
        )
        while True:
            await self._has_later.wait()
            self._has_later.clear()
            while self._later:
                try:
                    await self._later.popleft()()
                except Exception as error:
                    await self._error_cb(error)
            wire.release()

    async def _ended(self, wire: Wire, error: Exception | None) -> None:
        if wire is not self._wire or self.is_closed or self.is_reconnecting:
            return
        if error is None:
            error = UnexpectedEOF()
            await self._error_cb(error)
        await self._process_op_err(error)

    async def _process_err(self, err_msg: str) -> None:
        if PERMISSIONS_ERR in err_msg:
            # The server refused one publish or subscription; the connection stays up.
            if refused := _REFUSED.search(err_msg):
                self.on_refused(refused[1], refused[2])
            else:
                await super()._process_err(err_msg)
            return
        error = NatsError(f"nats: {err_msg}")
        await self._error_cb(error)
        await self._process_op_err(error)

    async def _process_op_err(self, e: Exception) -> None:
        # Abort the connection first. An orderly close would wait until the server has taken all
        # sent bytes, and a hanging server never takes them.
        self._abort()
        await super()._process_op_err(e)

    async def _process_info(self, info: dict[str, Any], initial_connection: bool = False) -> None:
        await super()._process_info(info, initial_connection)
        nodes = frozenset(info.get("connect_urls") or ())
        address = self._current_server.uri.netloc if self._current_server else ""
        if initial_connection and self._address:
            self.returned_at = time.monotonic()
        # The cluster has lost a server if the new list lacks one. It also counts as a loss that the
        # client is now connected to another server, because the client has lost its previous one.
        if self._nodes - nodes or (self._address and address != self._address):
            self.node_lost_at = time.monotonic()
        self._nodes, self._address = nodes, address

    async def leave(self) -> None:
        if len(self._server_pool) > 1:
            self._left = self._current_server
            await self.connect_anew()

    async def connect_anew(self) -> None:
        """Drop the connection and make a new connection."""
        if self.is_connected:
            await self._process_op_err(NatsError("nats: dropped by us"))

    async def _connect_to_server(self, s: Srv) -> None:
        left, self._left = self._left, None
        if s is left:
            raise ConnectionError("the server is cut off from its cluster")
        self._abort()  # ends a connection that was accepted but not completed
        self._loop = asyncio.get_running_loop()
        self._transport = self._wire = Wire()
        self.options["reconnect_time_wait"] = random.uniform(*RECONNECT_S)
        await super()._connect_to_server(s)

    def _abort(self) -> None:
        self._wire.abort()


def _settle(answer: asyncio.Future[Incoming], message: Incoming) -> None:
    if not answer.done():
        answer.set_result(message)


def _time_out(answer: asyncio.Future[Any]) -> None:
    if not answer.done():
        answer.set_exception(NatsTimeout())
