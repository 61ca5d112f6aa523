"""The headers of RAW and EVENTS, and the messages that carry them.

RAW kinds: `open` (a leg is claimed; JSON), `claim` (a connector goes on with it; JSON), `bytes`
(of the upstream's body, verbatim), `part` (of a message too large for one), `end` (the body ended
cleanly; JSON), `lost` (it did not, or could not begin; JSON), `event` (a source event of ours;
JSON).
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime

from penstock.bus.read.direct import Stored

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


@dataclass(slots=True)
class RawFrame:
    """A source frame as the normalizer and the raw dialect see it."""

    run_id: str
    writer: str
    sequence: int  # in RAW
    kind: str
    leg: int
    connection: str
    received: str
    payload: bytes
    part: tuple[int, int] | None = None  # number and count, from 1
    whole: str = "bytes"  # of a part: the kind of what it is a part of

    @property
    def opens_run(self) -> bool:
        """True for the `open` of the first leg, or a part of it."""
        return self.leg == 1 and "open" in (self.kind, self.whole)

    @property
    def is_body(self) -> bool:
        """True when the payload is some of the upstream's body."""
        return self.kind == "bytes" or (self.kind == "part" and self.whole == "bytes")


def raw_frame(stored: Stored) -> RawFrame:
    """The message with its headers read. Raises KeyError or ValueError on one that is not ours."""
    headers = stored.headers
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


def now() -> str:
    """RFC 3339, UTC, milliseconds."""
    return datetime.now(UTC).isoformat(timespec="milliseconds").removesuffix("+00:00") + "Z"
