"""Defines stored messages, messages to publish, and the headers of RAW and EVENTS. Pure.

Kinds of messages in RAW: `open` (a leg is claimed; JSON), `claim` (another connector continues the
leg; JSON), `bytes` (a piece of the upstream's response body, verbatim), `part` (a piece of a source
frame that is too large for one message), `end` (the body ended cleanly; JSON), `lost` (the body
broke off, or never began; JSON), `event` (a source event of Penstock itself; JSON), `checked` (what
a checker has found in texts; JSON).
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Literal, NamedTuple

from penstock.bus.errors import ContentErased, ContentRefused

KIND = "Penstock-Kind"
LEG = "Penstock-Leg"
CONNECTION = "Penstock-Connection"
INDEX = "Penstock-Index"
RECEIVED = "Penstock-Received"
PART = "Penstock-Part"
WHOLE = "Penstock-Whole"

SEQUENCE = "Penstock-Sequence"
RAW_POSITION = "Penstock-Raw"
FIRST = "Penstock-First"
RAW_FIRST = "Penstock-Raw-First"
COST = "Penstock-Cost"  # of an `llm.tool_result` that has a cost
# The header with which a write names the sequence of the last message of its subject.
EXPECTED_SEQUENCE = "Nats-Expected-Last-Subject-Sequence"
STORED_AT = "Nats-Time-Stamp"  # header of a direct get: when the message was stored, RFC 3339
LIVE = "live"  # as `Stored.stored_at`, of a message that comes as it is stored
# A header of an edge's answer to a subscriber's request for a large event.
LARGE_PARTS = "Penstock-Parts"
# The header of an edge's answer that says why a subscriber does not get what it asks for: a large
# event (erased, gone, invalid, unavailable) or the key of a run (see `KeyRefusal`).
REFUSAL = "Penstock-Error"
KeyRefusal = Literal["no_grant", "other_tenant", "erased", "unknown", "busy", "unavailable"]

# How a payload begins that refers to an object of the object store (see `write.objects`).
REFERENCE = b'{"penstock_object":"'

_NAME = re.compile(r"[!-9;-~]+")  # printable ASCII without blanks and without the colon
_LINE_ENDS = str.maketrans("\r\n", "  ")


class Unreadable(bytes):
    """Stands for the payload of a message that is `sealed` and cannot be opened, for the reason
    `error`. It looks like a reference to an object, so `objects.unwrap` raises the error."""

    error: ContentErased | ContentRefused
    sealed: bytes


@dataclass(slots=True)
class Stored:
    """A message that a stream holds."""

    subject: str
    sequence: int
    headers: Mapping[str, str]
    payload: bytes
    delivered: int = 1  # how often a consumer has delivered this message
    # RFC 3339, or LIVE; a direct get has this time in the header STORED_AT
    stored_at: str = ""
    is_open: bool = False  # whether `Content` has looked at the payload
    # the payload with both forms of the data, of an event whose payload is masked (see `masking`)
    unmasked: bytes | None = None


class Message(NamedTuple):
    """A message to publish. Its headers are sent unchanged.

    `headers` may be the bytes that `header_lines` returns. A caller that publishes many messages
    with the same headers encodes these headers only once.
    """

    subject: str
    payload: bytes
    headers: Mapping[str, str] | bytes

    def with_headers(self, headers: Mapping[str, str]) -> Message:
        """Return the same message with further headers. A header must not be there already."""
        if isinstance(self.headers, bytes):
            return Message(self.subject, self.payload, self.headers + header_lines(headers))
        return Message(self.subject, self.payload, {**self.headers, **headers})


def header_lines(headers: Mapping[str, str]) -> bytes:
    """Return headers as complete lines of the NATS protocol (`Name: value` and CRLF).

    As in nats-py, a line end in a value becomes a blank. Otherwise a value could add another
    header, such as a fence. A name that is empty, or has a blank, a colon or a character outside
    ASCII, is a ValueError.
    """
    for name in headers:
        if not _NAME.fullmatch(name):
            raise ValueError(f"{name!r} cannot be the name of a header")
    return "".join(
        [f"{name}: {value.strip().translate(_LINE_ENDS)}\r\n" for name, value in headers.items()]
    ).encode()


@dataclass(slots=True)
class RawFrame:
    """A source frame in the form that the normalizer and the raw dialect use."""

    run_id: str
    writer: str
    sequence: int  # the stream sequence in RAW
    kind: str
    leg: int
    connection: str
    received: str
    payload: bytes
    # for a part: the part's number, from 1, and the number of all parts
    part: tuple[int, int] | None = None
    whole: str = "bytes"  # for a part: the kind of the complete message

    @property
    def opens_run(self) -> bool:
        """True for the `open` of the first leg, and for a part of this `open`."""
        return self.leg == 1 and "open" in (self.kind, self.whole)

    @property
    def is_body(self) -> bool:
        """True when the payload belongs to the upstream's response body."""
        return self.kind == "bytes" or (self.kind == "part" and self.whole == "bytes")


def raw_frame(stored: Stored) -> RawFrame:
    """Return the source frame that a message of RAW carries. Raises KeyError or ValueError if a
    header of Penstock is missing or malformed, ContentErased and ContentRefused."""
    headers = stored.headers
    if isinstance(stored.payload, Unreadable):
        raise stored.payload.error
    _, _, run_id, writer = stored.subject.split(".")
    part = headers.get(PART)
    number, _, count = part.partition("/") if part else ("", "", "")
    return RawFrame(
        run_id,
        writer,
        stored.sequence,
        headers[KIND],
        int(headers[LEG]),
        headers[CONNECTION],
        headers[RECEIVED],
        stored.payload,
        (int(number), int(count)) if part else None,
        headers.get(WHOLE, "bytes"),
    )


def stored_s(stored: Stored) -> float:
    """Return when a message was stored, in seconds since 1970; infinity for one that comes live.
    Whoever publishes a live message chooses its headers."""
    at = stored.stored_at or stored.headers.get(STORED_AT, "")
    return float("inf") if at in ("", LIVE) else datetime.fromisoformat(at).timestamp()


def now() -> str:
    """Return this machine's time as RFC 3339, in UTC, with milliseconds."""
    return datetime.now(UTC).isoformat(timespec="milliseconds").removesuffix("+00:00") + "Z"
