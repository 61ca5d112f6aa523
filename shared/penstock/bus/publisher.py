"""Pipelined JetStream publishing over one reply inbox.

nats-py's own publish makes a subscription answer per call: 85 to 127 µs of CPU when awaited one by
one, 20 µs with `publish_async`; this costs 7 to 8 µs with 200 in flight.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import orjson
from nats.aio.client import Client
from nats.aio.msg import Msg
from nats.errors import (
    ConnectionClosedError,
    ConnectionDrainingError,
    MaxPayloadError,
    OutboundBufferLimitError,
)

from penstock.bus.errors import (
    BusError,
    BusUnavailable,
    FenceConflict,
    MessageTooLarge,
    OutcomeUnknown,
    StreamFull,
)

EXPECTED_SEQUENCE = "Nats-Expected-Last-Subject-Sequence"
EXPECTED_SUBJECT = "Nats-Expected-Last-Subject-Sequence-Subject"
BATCH_ID = "Nats-Batch-Id"
BATCH_SEQUENCE = "Nats-Batch-Sequence"
BATCH_COMMIT = "Nats-Batch-Commit"
MAX_BATCH = 1000

# 10164 is what a replica says, without a number
_CONFLICTS = frozenset({10071, 10164})
_FULL = frozenset({10077, 10047, 10023, 10122})


@dataclass(frozen=True, slots=True)
class Message:
    """What is published: headers are sent as they stand."""

    subject: str
    payload: bytes
    headers: Mapping[str, str]


class Publisher:
    """Publishes with any number in flight; every call ends in a sequence or a `BusError`."""

    def __init__(self, client: Client, timeout_s: float) -> None:
        self._client = client
        self._timeout_s = timeout_s
        self._inbox = client.new_inbox()
        self._waiting: dict[str, asyncio.Future[int]] = {}
        self._next = 0

    async def start(self) -> None:
        """Subscribe to the inbox that all acknowledgements come to."""
        await self._client.subscribe(f"{self._inbox}.*", cb=self._on_ack)

    async def publish(self, message: Message) -> int:
        """Store one message; returns its stream sequence.

        Raises FenceConflict, BusUnavailable, OutcomeUnknown, StreamFull or MessageTooLarge.
        """
        reply, ack = self._expect()
        await self._send(message, reply)
        return await self._settled(reply, ack)

    async def publish_batch(self, messages: Sequence[Message]) -> int:
        """Store up to 1,000 messages all together or not at all; returns the last sequence.

        A fence belongs to the first message. Costs 4 to 7 ms whatever the size (one replica).
        """
        batch_id = self._client.new_inbox()[-22:]
        last = len(messages)
        reply, ack = self._expect()
        for number, message in enumerate(messages, 1):
            headers = {**message.headers, BATCH_ID: batch_id, BATCH_SEQUENCE: str(number)}
            if number == last:
                headers[BATCH_COMMIT] = "1"
            # the first asks for an answer, so that a refused batch says so at once
            await self._send(
                Message(message.subject, message.payload, headers),
                reply if number in (1, last) else "",
            )
        return await self._settled(reply, ack)

    def _expect(self) -> tuple[str, asyncio.Future[int]]:
        self._next += 1
        reply = f"{self._inbox}.{self._next}"
        ack = asyncio.get_running_loop().create_future()
        self._waiting[reply] = ack
        return reply, ack

    async def _send(self, message: Message, reply: str) -> None:
        try:
            await self._client.publish(
                message.subject, message.payload, reply, dict(message.headers) or None
            )
        except MaxPayloadError as error:
            self._waiting.pop(reply, None)
            raise MessageTooLarge(
                f"{message.subject}: {len(message.payload)} bytes are over the server's "
                f"max_payload of {self._client.max_payload}"
            ) from error
        except (
            OutboundBufferLimitError,
            ConnectionClosedError,
            ConnectionDrainingError,
        ) as error:
            self._waiting.pop(reply, None)
            raise BusUnavailable(f"{message.subject}: not connected to NATS") from error

    async def _settled(self, reply: str, ack: asyncio.Future[int]) -> int:
        timer = asyncio.get_running_loop().call_later(self._timeout_s, self._expire, reply)
        try:
            return await ack
        finally:
            timer.cancel()
            self._waiting.pop(reply, None)

    def _expire(self, reply: str) -> None:
        ack = self._waiting.get(reply)
        if ack is not None and not ack.done():
            ack.set_exception(OutcomeUnknown(f"no acknowledgement within {self._timeout_s:g} s"))

    async def _on_ack(self, msg: Msg) -> None:
        ack = self._waiting.get(msg.subject)
        if ack is None or ack.done():
            return
        if not msg.data:
            if msg.headers and msg.headers.get("Status") == "503":
                ack.set_exception(BusUnavailable("no stream leader answered"))
            return  # the go-ahead for a batch
        answer = orjson.loads(msg.data)
        error = answer.get("error")
        if error is None:
            ack.set_result(answer["seq"])
        else:
            ack.set_exception(_error_of(error))


def _error_of(error: Mapping[str, object]) -> BusError:
    code = error.get("err_code")
    text = f"{error.get('description')} (err_code {code})"
    if code in _CONFLICTS:
        return FenceConflict(text)
    if code in _FULL:
        return StreamFull(text)
    if error.get("code") == 503:
        return BusUnavailable(text)
    return BusError(text)
