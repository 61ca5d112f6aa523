"""Batched direct get: reading a stream's past without a consumer.

nats-py exposes one message at a time. A replica that lags behind may answer, so a caller that
needs everything checks that what it got is contiguous.
"""

from __future__ import annotations

import asyncio
import base64
import itertools
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import orjson
from nats.aio.msg import Msg
from nats.errors import Error as NatsError

from penstock.bus.connection.retry import first_answer
from penstock.bus.errors import BusUnavailable, OutcomeUnknown

if TYPE_CHECKING:
    from penstock.bus.bus import Bus

BATCH = 500
MAX_BATCH_BYTES = 4 * 1024 * 1024
# Without an answer, whoever should have given it is gone; after the first time it may be slow.
SILENCES_S = (0.75, 1.5, 3.0)


STORED_AT = "Nats-Time-Stamp"


@dataclass(slots=True)
class Stored:
    """A message as a stream holds it."""

    subject: str
    sequence: int
    headers: dict[str, str]
    payload: bytes
    delivered: int = 1  # how often a consumer has handed it out
    stored_at: str = ""  # RFC 3339; a direct get has it in the header STORED_AT instead


async def read(
    bus: Bus,
    stream: str,
    pattern: str,
    start: int = 1,
    limit: int = BATCH,
    max_bytes: int = MAX_BATCH_BYTES,
) -> tuple[list[Stored], int]:
    """Up to `limit` messages that match, from stream sequence `start` on, and how many follow.

    One message over `max_bytes` comes alone. Where nothing comes it is asked again.
    Raises BusUnavailable when nobody answers, OutcomeUnknown when the answer stops half-way.
    """
    request = {
        "seq": max(start, 1),
        "next_by_subj": pattern,
        "batch": limit,
        "max_bytes": max_bytes,
    }
    await bus.client.standing(bus.settings.publish_timeout_s)
    try:
        async with asyncio.timeout(bus.settings.publish_timeout_s):
            for silence_s in itertools.chain(SILENCES_S, itertools.repeat(SILENCES_S[-1])):
                if (answer := await _answer(bus, stream, request, silence_s)) is not None:
                    return answer
            raise AssertionError("it is asked until it is answered")
    except TimeoutError as error:
        raise OutcomeUnknown(f"{stream}: the direct get did not end in time") from error
    except NatsError as error:
        raise BusUnavailable(f"{stream}: {error}") from error


async def _answer(
    bus: Bus, stream: str, request: dict[str, Any], silence_s: float
) -> tuple[list[Stored], int] | None:
    """What comes, and how many follow; None when nothing comes: who was asked may have died."""
    inbox = bus.client.new_inbox()
    found: list[Stored] = []
    begun = asyncio.Event()
    done: asyncio.Future[int] = asyncio.get_running_loop().create_future()

    async def collect(msg: Msg) -> None:
        begun.set()
        headers = msg.headers or {}
        status = headers.get("Status")
        if status is None:
            found.append(
                Stored(headers["Nats-Subject"], int(headers["Nats-Sequence"]), headers, msg.data)
            )
        elif done.done():
            return
        elif status == "204":
            done.set_result(int(headers.get("Nats-Num-Pending", 0)))
        elif status == "404":
            done.set_result(0)
        else:
            done.set_exception(
                BusUnavailable(f"{stream}: {status} {headers.get('Description', '')}")
            )

    # who loses the connection hears of it here
    done.add_done_callback(lambda _: begun.set())
    bus.client.unanswered.add(done)
    try:
        subscription = await bus.client.subscribe(inbox, cb=collect)
        try:
            await bus.client.publish(f"$JS.API.DIRECT.GET.{stream}", orjson.dumps(request), inbox)
            if not await _happens(begun, silence_s):
                return None
            return found, await done
        finally:
            await subscription.unsubscribe()
    finally:
        bus.client.unanswered.discard(done)
        done.cancel()


async def _happens(event: asyncio.Event, timeout_s: float) -> bool:
    try:
        async with asyncio.timeout(timeout_s):
            await event.wait()
    except TimeoutError:
        return False
    return True


async def last(bus: Bus, stream: str, pattern: str) -> Stored | None:
    """The last message that matches, or an older one where a replica lags; None without any.

    Costs the server 0.1 ms, however much the stream holds: it keeps an index of last messages. To
    find that nothing matches from a sequence on it must look at all that follows: some ms for each
    run, in which it does nothing else for this connection. Raises BusUnavailable, OutcomeUnknown.
    """
    request = orjson.dumps({"last_by_subj": pattern})
    answer = await first_answer(lambda: bus.request(f"$JS.API.DIRECT.GET.{stream}", request))
    headers = answer.headers or {}
    status = headers.get("Status")
    if status == "404":
        return None
    if status is not None:
        raise BusUnavailable(f"{stream}: {status} {headers.get('Description', '')}")
    return Stored(headers["Nats-Subject"], int(headers["Nats-Sequence"]), headers, answer.data)


async def replay(bus: Bus, stream: str, pattern: str, start: int = 1) -> AsyncIterator[Stored]:
    """Every message that matches, from stream sequence `start` to the end as it is now."""
    while True:
        found, pending = await read(bus, stream, pattern, start)
        for stored in found:
            yield stored
        if not found or not pending:
            return
        start = found[-1].sequence + 1


def stored_of(message: dict[str, Any]) -> Stored:
    """The JSON of STREAM.MSG.GET as a message."""
    headers: dict[str, str] = {}
    for line in base64.b64decode(message.get("hdrs", "")).split(b"\r\n")[1:]:
        name, _, value = line.partition(b":")
        if name:
            headers[name.decode()] = value.strip().decode()
    return Stored(
        message["subject"],
        message["seq"],
        headers,
        base64.b64decode(message.get("data", "")),
        stored_at=message["time"],
    )
