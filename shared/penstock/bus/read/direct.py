"""Reads a stream's history by batched direct gets, without a consumer.

nats-py's direct get returns one message at a time. A replica that lags behind may answer a direct
get, so a caller that needs every message checks that the answer is contiguous.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import AsyncIterator, Sequence
from typing import Any

import orjson
from nats.errors import Error as NatsError

from penstock.bus.connection.incoming import Incoming
from penstock.bus.connection.jetstream import HasJetStream, JetStream
from penstock.bus.connection.retry import first_answer
from penstock.bus.errors import BusUnavailable, OutcomeUnknown
from penstock.bus.messages import Stored
from penstock.bus.read import leader

BATCH = 500  # the most messages in one answer
MAX_BATCH_BYTES = 4 * 1024 * 1024  # the most bytes in one answer
# The most subjects in one request. nats-server 2.15 refuses a request for the last messages of over
# 1,024 subjects.
MAX_SUBJECTS = 1000
# The seconds that a request waits for the first message of its answer. After this time the request
# is sent again, because the server that got the request may be gone. Later waits are longer, since
# the server may only be slow.
SILENCES_S = (0.75, 1.5, 3.0)
LAG_S = 0.05  # seconds before a read is repeated because a lagging replica has answered


async def read(
    bus: HasJetStream,
    stream: str,
    pattern: str,
    start: int = 1,
    limit: int = BATCH,
    max_bytes: int = MAX_BATCH_BYTES,
) -> tuple[list[Stored], int]:
    """Return up to `limit` messages that match, from stream sequence `start` on. Also returns how
    many more matching messages follow. A message over `max_bytes` is returned alone."""
    return await _batch(
        bus,
        stream,
        {"seq": max(start, 1), "next_by_subj": pattern, "batch": limit, "max_bytes": max_bytes},
    )


async def read_raw(
    bus: HasJetStream, stream: str, pattern: str, start: int, limit: int
) -> tuple[list[Incoming], int]:
    """Read as `read` does, and return the messages as they came, with headers that are not parsed.

    Raises:
        BusUnavailable, OutcomeUnknown: as `read` does.
    """
    request = {"seq": start, "next_by_subj": pattern, "batch": limit, "max_bytes": MAX_BATCH_BYTES}
    return await _raw_batch(bus, stream, request)


async def last_of_each(
    bus: HasJetStream,
    stream: str,
    subjects: Sequence[str],
    max_bytes: int = MAX_BATCH_BYTES,
    upto: int | None = None,
) -> list[Stored]:
    """Return the last message of each subject that has one, in the order of stream sequences.

    `subjects` has at most `MAX_SUBJECTS` subjects without wildcards. With `upto`, messages beyond
    that stream sequence do not count. A lagging replica may answer with older messages, or without
    a message that the leader has.
    """
    found: list[Stored] = []
    missing = list(subjects)
    limits: dict[str, Any] = {"max_bytes": max_bytes}
    if upto is not None:
        limits["up_to_seq"] = upto
    while missing:
        request = {"multi_last": missing, "batch": len(missing), **limits}
        some, pending = await _batch(bus, stream, request)
        found += some
        if not some or not pending:
            return found
        # The answer was cut at `max_bytes`.
        seen = {stored.subject for stored in some}
        missing = [subject for subject in missing if subject not in seen]
    return found


async def between(
    bus: HasJetStream, stream: str, subjects: Sequence[str], after: int, upto: int
) -> list[Stored]:
    """Return all messages of the subjects after stream sequence `after` and up to `upto`, in order.

    `upto` is the sequence of a message that is stored under one of the subjects. If a lagging
    replica answers without a message that is known to exist, the request is repeated, so that
    nothing is missing.
    """
    while True:
        lasts = await last_of_each(bus, stream, subjects, upto=upto)
        if lasts and lasts[-1].sequence == upto:
            break
        if await leader.at(bus, stream, upto) is None:
            break  # the message has expired meanwhile, so no replica has it
        await asyncio.sleep(LAG_S)
    reads = [_upto(bus, stream, each, after) for each in lasts if each.sequence > after]
    found = itertools.chain.from_iterable(await asyncio.gather(*reads))
    return sorted(found, key=lambda stored: stored.sequence)


async def _upto(bus: HasJetStream, stream: str, last: Stored, after: int) -> list[Stored]:
    """Return the messages of a subject after stream sequence `after`, up to its message `last`."""
    found: list[Stored] = []
    while after < last.sequence - 1:
        some, _ = await read(bus, stream, last.subject, after + 1)
        found += [stored for stored in some if stored.sequence < last.sequence]
        if some and some[-1].sequence >= last.sequence:
            break
        if some:
            after = some[-1].sequence
        elif await leader.at(bus, stream, last.sequence) is None:
            break
        else:
            await asyncio.sleep(LAG_S)
    return [*found, last]


async def _batch(
    bus: HasJetStream, stream: str, request: dict[str, Any]
) -> tuple[list[Stored], int]:
    """Send a request for several messages; return them, and how many more the server has.

    Raises:
        BusUnavailable, OutcomeUnknown: as `read` does.
    """
    found, pending = await _raw_batch(bus, stream, request)
    messages = [message.stored() for message in found]
    await bus.jetstream.content.open(*messages)
    return messages, pending


async def _raw_batch(
    bus: HasJetStream, stream: str, request: dict[str, Any]
) -> tuple[list[Incoming], int]:
    jetstream = bus.jetstream
    payload = orjson.dumps(request)
    await jetstream.connection.wait_usable(jetstream.timeout_s)
    try:
        async with asyncio.timeout(jetstream.timeout_s):
            for silence_s in itertools.chain(SILENCES_S, itertools.repeat(SILENCES_S[-1])):
                if (answer := await _answer(jetstream, stream, payload, silence_s)) is not None:
                    return answer
            raise AssertionError("the request is repeated until it is answered")
    except TimeoutError as error:
        raise OutcomeUnknown(f"{stream}: the direct get did not end in time") from error
    except NatsError as error:
        raise BusUnavailable(f"{stream}: {error}") from error


async def _answer(
    jetstream: JetStream, stream: str, request: bytes, silence_s: float
) -> tuple[list[Incoming], int] | None:
    """Return the answer's messages and how many follow; None if nothing comes in `silence_s`."""
    connection = jetstream.connection
    loop = asyncio.get_running_loop()
    found: list[Incoming] = []
    done: asyncio.Future[int | None] = loop.create_future()

    def collect(msg: Incoming) -> None:
        if done.done():
            return
        if not msg.has_status:
            found.append(msg)
            return
        headers = msg.headers
        status = headers.get("Status", "")
        if status == "204":
            done.set_result(int(headers.get("Nats-Num-Pending", 0)))
        elif status == "404":
            done.set_result(0)
        else:
            done.set_exception(
                BusUnavailable(f"{stream}: {status} {headers.get('Description', '')}")
            )

    def give_up() -> None:
        if not found and not done.done():
            done.set_result(None)

    timer = loop.call_later(silence_s, give_up)
    reply = connection.expect(collect)
    connection.unanswered.add(done)  # so that a lost connection ends the wait
    try:
        await connection.publish(f"$JS.API.DIRECT.GET.{stream}", request, reply)
        pending = await done
        return None if pending is None else (found, pending)
    finally:
        timer.cancel()
        connection.give_up(done)
        connection.forget(reply)


async def last(bus: HasJetStream, stream: str, pattern: str) -> Stored | None:
    """Return the last message that matches; None when no message matches.

    A lagging replica may answer with an older message. The server has an index of last messages, so
    this request costs the server 0.1 ms, whatever the size of the stream. `read` is slower when no
    message matches: the server then scans all messages from the start sequence on. The scan takes
    some milliseconds, in which the server handles no other request of this connection.
    """
    request = orjson.dumps({"last_by_subj": pattern})
    jetstream = bus.jetstream
    answer = await first_answer(lambda: jetstream.request(f"$JS.API.DIRECT.GET.{stream}", request))
    headers = answer.headers or {}
    status = headers.get("Status")
    if status == "404":
        return None
    if status is not None:
        raise BusUnavailable(f"{stream}: {status} {headers.get('Description', '')}")
    stored = Stored(headers["Nats-Subject"], int(headers["Nats-Sequence"]), headers, answer.data)
    await jetstream.content.open(stored)
    return stored


async def replay(
    bus: HasJetStream, stream: str, pattern: str, start: int = 1
) -> AsyncIterator[Stored]:
    """Yield every message that matches, from `start` to the stream's present end."""
    while True:
        found, pending = await read(bus, stream, pattern, start)
        for stored in found:
            yield stored
        if not found or not pending:
            return
        start = found[-1].sequence + 1
