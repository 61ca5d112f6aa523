"""nats-py's client, made to reconnect whatever the server says, and to obey cancellation."""

from __future__ import annotations

import asyncio
from typing import Any

from nats.aio.client import DEFAULT_FLUSH_TIMEOUT, Client
from nats.aio.msg import Msg
from nats.errors import Error as NatsError
from nats.errors import TimeoutError as NatsTimeout
from nats.protocol.parser import PERMISSIONS_ERR

from penstock.bus.errors import BusUnavailable

LOOK_S = 0.02


class Connection(Client):
    """A connection that is kept for ever.

    nats-py closes for good on every error that the server sends and it does not know (an expired
    authentication, a line that is too long, a revoked account): the process would then live on
    without a bus. Here they end in a reconnect, as a lost connection does.
    """

    def __init__(self) -> None:
        super().__init__()
        self.unanswered: set[asyncio.Future[Any]] = set()

    def connection_lost(self) -> None:
        """Whoever waits for an answer would wait in vain until the timeout: it is over now."""
        for answer in (*self.unanswered, *self._resp_map.values()):
            if not answer.done():
                answer.set_exception(NatsTimeout())

    @staticmethod
    def _parse_header_lines(raw: bytes) -> dict[str, str]:
        """As nats-py's, at a fifth of its cost: 3 µs instead of 16 for the headers of an event."""
        text = raw.decode("utf-8", "replace")
        return {
            name.strip(): value.strip()
            for name, colon, value in (line.partition(":") for line in text.split("\r\n"))
            if colon
        }

    async def standing(self, timeout_s: float) -> None:
        """Wait out a reconnect; raises BusUnavailable when it takes longer.

        Whoever sends asks first: nats-py would keep the message and send it after the reconnect,
        when its sender has long counted it as lost.
        """
        try:
            async with asyncio.timeout(timeout_s):
                while not self.is_connected and not self.is_closed:
                    await asyncio.sleep(LOOK_S)
        except TimeoutError:
            pass
        if not self.is_connected:
            raise BusUnavailable("not connected to NATS")

    async def close(self) -> None:
        """As nats-py's, but also where `connect` has refused its arguments."""
        if self._flush_queue is not None:
            await super().close()

    async def publish(
        self,
        subject: str,
        payload: bytes = b"",
        reply: str = "",
        headers: dict[str, Any] | None = None,
    ) -> None:
        """As nats-py's."""
        before = _cancellations()
        try:
            await super().publish(subject, payload, reply, headers)
        finally:
            _obey_cancellation(before)

    async def request(
        self,
        subject: str,
        payload: bytes = b"",
        timeout: float = 0.5,
        old_style: bool = False,
        headers: dict[str, Any] | None = None,
    ) -> Msg:
        """As nats-py's."""
        before = _cancellations()
        try:
            return await super().request(subject, payload, timeout, old_style, headers)
        finally:
            _obey_cancellation(before)

    async def flush(self, timeout: int = DEFAULT_FLUSH_TIMEOUT) -> None:
        """As nats-py's."""
        before = _cancellations()
        try:
            await super().flush(timeout)
        finally:
            _obey_cancellation(before)

    async def _process_err(self, err_msg: str) -> None:
        if PERMISSIONS_ERR in err_msg:
            # one publish or subscription was refused; the connection stands
            await super()._process_err(err_msg)
            return
        error = NatsError(f"nats: {err_msg}")
        await self._error_cb(error)
        await self._process_op_err(error)


def _cancellations() -> int:
    task = asyncio.current_task()
    return task.cancelling() if task else 0


def _obey_cancellation(before: int) -> None:
    """Raise the CancelledError that was swallowed since.

    nats-py drops one that comes while it waits for the socket, and `asyncio.wait_for` of Python
    3.11, by which it waits for answers, one that comes together with the answer. The task would go
    on, and whoever cancelled it would wait for ever.
    """
    if _cancellations() > before:
        raise asyncio.CancelledError
