"""Reads and deletes single messages of a stream at its leader, which has the newest state."""

from __future__ import annotations

import base64
from datetime import UTC, datetime
from typing import Any

from penstock.bus.connection.jetstream import HasJetStream
from penstock.bus.connection.retry import first_answer
from penstock.bus.errors import MESSAGE_NOT_FOUND, ApiError
from penstock.bus.messages import Stored

# The earliest and the latest time that a request may contain. The server counts nanoseconds since
# 1970 in 64 bits, which does not suffice for times long after 2200.
_FIRST_TIME, _LAST_TIME = datetime(1970, 1, 1, tzinfo=UTC), datetime(2200, 1, 1, tzinfo=UTC)


async def tail(bus: HasJetStream, stream: str, pattern: str) -> Stored | None:
    """Return the last message that matches; None when no message matches."""
    return await _message(bus, stream, {"last_by_subj": pattern})


async def at(bus: HasJetStream, stream: str, sequence: int) -> Stored | None:
    """Return the message of this stream sequence; None when the stream has no such message."""
    return await _message(bus, stream, {"seq": sequence})


async def since(bus: HasJetStream, stream: str, time: datetime) -> Stored | None:
    """Return the first message that was stored at `time` or later; None without such a message."""
    within = min(max(time, _FIRST_TIME), _LAST_TIME).astimezone(UTC)
    return await _message(bus, stream, {"start_time": within.isoformat()})


async def first(bus: HasJetStream, stream: str, pattern: str, start: int = 1) -> Stored | None:
    """Return the first message that matches, from stream sequence `start` on; None without one."""
    return await _message(bus, stream, {"seq": max(start, 1), "next_by_subj": pattern})


async def delete(bus: HasJetStream, stream: str, sequence: int, *, overwrite: bool = False) -> bool:
    """Delete the message of this stream sequence; return False when there is no such message. With
    `overwrite`, the server also overwrites its bytes in the file."""
    try:
        which = {"seq": sequence, "no_erase": not overwrite}
        await bus.jetstream.api(f"STREAM.MSG.DELETE.{stream}", which)
    except ApiError:
        # The server returns one of two error codes for a missing message, depending on the other
        # messages of the stream. So the error code does not suffice, and a read of the message
        # shows whether the message is missing.
        if await at(bus, stream, sequence) is not None:
            raise
        return False
    return True


async def _message(bus: HasJetStream, stream: str, which: dict[str, Any]) -> Stored | None:
    api = bus.jetstream.api
    try:
        answer = await first_answer(lambda: api(f"STREAM.MSG.GET.{stream}", which))
    except ApiError as error:
        if error.code == MESSAGE_NOT_FOUND:
            return None
        raise
    stored = stored_of(answer["message"])
    await bus.jetstream.content.open(stored)
    return stored


def stored_of(message: dict[str, Any]) -> Stored:
    """Return the message in an answer's JSON (subject, seq, time; base64 in hdrs and data)."""
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
