"""The upstream's own frames for clients: verbatim for `/run_sse`, with cursors for `raw`. Pure."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

import orjson

from penstock import sse
from penstock.bus import Stored
from penstock.bus.messages import RawFrame, now, raw_frame
from penstock.redaction import redacted_value
from penstock_edge.views.items import Encoding, Item, type_of

# ADK up to 1.22 does not escape the text, so that the frame is no JSON: its beginning tells.
_UPSTREAM_ERROR = re.compile(rb'\s*\{\s*"error"\s*:')

INTERRUPTED = "The stream was interrupted; the run goes on"


def is_raw(stored: Stored) -> bool:
    """True for a source frame, false for the run's terminal event after them."""
    return stored.subject.startswith("rawp.")


@dataclass(slots=True)
class RawEncoding(Encoding):
    """Every leg's frames again, with `id: <RAW sequence>-<n>`; what cut a leg is a comment.

    A frame may span messages, so the reading begins where the run does.
    """

    _parser: sse.Parser = field(default_factory=sse.Parser)
    _connection: str = ""

    def feed(self, stored: Stored) -> Item:
        """An item for each message; raises KeyError or ValueError on one that is not ours."""
        if not is_raw(stored):
            return Item(stored.sequence, [], last=True)
        raw = raw_frame(stored)
        if raw.connection != self._connection:
            # what another connection left unfinished is nobody's frame
            self._parser, self._connection = sse.Parser(), raw.connection
        frames: list[bytes] = []
        if raw.is_body:
            frames = [
                sse.encode(frame.data, event=_name(frame), id=f"{raw.sequence}-{index}")
                for index, frame in enumerate(self._frames(raw.payload))
            ]
        elif raw.kind == "lost":
            self._parser = sse.Parser()
            code = orjson.loads(raw.payload).get("code")
            frames = [sse.comment(f"the upstream was lost: {code}")]
        return Item(raw.sequence, frames)

    def cut(self) -> list[bytes]:
        """Nothing: a client comes back with its cursor."""
        return []

    def _frames(self, payload: bytes) -> list[sse.Frame]:
        try:
            return self._parser.feed(payload)
        except sse.FrameTooLarge as error:
            self._parser = sse.Parser()
            return error.frames


def _name(frame: sse.Frame) -> str | None:
    return frame.event and frame.event.replace("\0", "\ufffd")


@dataclass(slots=True)
class LegEncoding(Encoding):
    """One leg's body as it came, byte for byte; then at most one error frame of ours.

    adk-streaming.md: nothing is added, no ids and no comments. What cut the leg is said in the
    document's error frame, at a frame boundary, unless the upstream has said so itself.
    """

    leg: int
    timeout_s: float
    hosts: tuple[str, ...] = ()  # of the agent's server, which no error of ours names
    _parser: sse.Parser | None = field(default_factory=sse.Parser)
    _connection: str = ""
    _last_frame: bytes = b""

    def feed(self, stored: Stored) -> Item:
        """An item for each message; raises KeyError or ValueError on one that is not ours."""
        if not is_raw(stored):
            return self._ended(stored)
        raw = raw_frame(stored)
        if raw.leg != self.leg:
            return Item(raw.sequence, [])
        if raw.is_body:
            boundary = self._boundary(raw.connection)
            self._follow(raw.payload)
            return Item(raw.sequence, [boundary + raw.payload])
        if raw.kind == "lost":
            lost = orjson.loads(raw.payload)
            return Item(raw.sequence, self._error(self._told(lost), raw.received), last=True)
        if raw.kind == "end":
            return Item(raw.sequence, self._end(raw), last=True)
        return Item(raw.sequence, [])

    def cut(self) -> list[bytes]:
        """An error frame: there is no cursor here, and a clean end would look like success."""
        return self._error(_stream_error(INTERRUPTED), now())

    def _end(self, raw: RawFrame) -> list[bytes]:
        if orjson.loads(raw.payload or b"{}").get("outcome") == "cancelled":
            return self._error(_stream_error("The run was cancelled"), raw.received)
        return []

    def _ended(self, stored: Stored) -> Item:
        """The run is over, and the connector has said nothing of this leg."""
        event = orjson.loads(stored.payload)
        error = {
            "lifecycle.failed": event["data"].get("error", "The run failed"),
            "lifecycle.cancelled": "The run was cancelled",
        }.get(type_of(stored))
        frames = self._error(_stream_error(error), event["timestamp"]) if error else []
        return Item(stored.sequence, frames, last=True)

    def _boundary(self, connection: str) -> bytes:
        """What parts another response of the leg from half a frame of the one that was cut."""
        if connection == self._connection:
            return b""
        is_half = self._connection and self._parser is not None and not self._parser.at_boundary
        self._connection = connection
        if not is_half:
            return b""
        self._parser = sse.Parser()
        return b"\n\n"

    def _follow(self, payload: bytes) -> None:
        """Keep track of where frames end, and of what the last one says."""
        if self._parser is None:
            return
        try:
            frames = self._parser.feed(payload)
        except sse.FrameTooLarge:
            self._parser = None
            return
        if frames:
            self._last_frame = frames[-1].data

    def _told(self, lost: dict[str, Any]) -> dict[str, Any]:
        match lost.get("code"):
            case "timeout":
                text = f"Request timeout after {self.timeout_s:g} seconds"
                return {"error": text, "error_code": "TIMEOUT"}
            case "upstream_http":
                status = lost.get("status_code")
                return {
                    "error": f"ADK upstream error: {status}",
                    "status_code": status,
                    "detail": lost.get("detail", ""),
                }
            case _:
                return _stream_error(str(lost.get("error") or "The upstream was lost"))

    def _error(self, told: dict[str, Any], at: str) -> list[bytes]:
        at_boundary = self._parser is not None and self._parser.at_boundary
        if at_boundary and _UPSTREAM_ERROR.match(self._last_frame):
            return []
        told = redacted_value(told, self.hosts)
        frame = sse.encode(orjson.dumps(told | {"timestamp": _epoch_s(at)}))
        return [frame if at_boundary else b"\n\n" + frame]


def _stream_error(text: str) -> dict[str, Any]:
    return {"error": text, "error_code": "STREAM_ERROR"}


def _epoch_s(timestamp: str) -> float:
    return datetime.fromisoformat(timestamp).timestamp()
