"""Cuts payloads into messages of JOURNAL, and joins them. Pure.

The records of one decision form one payload, which is called a commit. A commit of at most 512 KiB
is one message, so the server stores all its records or none. A larger commit is cut into several
messages, its parts, which are stored as one atomic batch.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from penstock.bus import Message, Stored
from penstock.bus.messages import PART
from penstock.bus.write.fence import MAX_MESSAGE_BYTES
from penstock.bus.write.publisher import MAX_BATCH

# The name of a header of JOURNAL's messages. The header has the number of the commit's first
# record. The records of a run are numbered from 1.
RECORD: Final = "Penstock-Record"
MAX_BYTES: Final = MAX_MESSAGE_BYTES * MAX_BATCH


class TooLarge(ValueError):
    """A payload is larger than one atomic batch can be."""


class Incomplete(ValueError):
    """Commits of a journal, or parts of a payload, are missing."""


def messages_of(subject: str, payload: bytes, headers: Mapping[str, str]) -> list[Message]:
    """Return the messages that carry a payload. They must be stored as one batch.

    Raises:
        TooLarge: the payload is larger than an atomic batch can be.
    """
    if len(payload) <= MAX_MESSAGE_BYTES:
        return [Message(subject, payload, headers)]
    if len(payload) > MAX_BYTES:
        raise TooLarge(f"{len(payload)} bytes for {subject}; at most {MAX_BYTES} fit")
    pieces = [
        payload[start : start + MAX_MESSAGE_BYTES]
        for start in range(0, len(payload), MAX_MESSAGE_BYTES)
    ]
    return [
        Message(subject, piece, {**headers, PART: f"{n}/{len(pieces)}"})
        for n, piece in enumerate(pieces, 1)
    ]


def joined_payloads(stored: Sequence[Stored]) -> list[tuple[Mapping[str, str], bytes]]:
    """Return each payload that these messages of one subject carry, with its headers.

    Raises:
        Incomplete: a part is missing, as in the answer of a replica that lags behind.
    """
    found: list[tuple[Mapping[str, str], bytes]] = []
    parts: list[bytes] = []
    for message in stored:
        part = message.headers.get(PART)
        number, _, count = part.partition("/") if part else ("1", "", "1")
        if int(number) != len(parts) + 1:
            raise Incomplete(f"{message.subject}: part {len(parts) + 1} is missing")
        parts.append(message.payload)
        if number == count:
            found.append((message.headers, parts[0] if len(parts) == 1 else b"".join(parts)))
            parts = []
    if parts:
        raise Incomplete(f"{stored[-1].subject}: part {len(parts) + 1} is missing")
    return found
