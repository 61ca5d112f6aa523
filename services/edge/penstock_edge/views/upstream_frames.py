"""Encodes an agent server's own frames: unchanged for `/run_sse`, or with cursors for `raw`
(decision 0104). Pure."""

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

# Matches the beginning of an ADK error frame. ADK up to 1.22 does not escape the text of an error
# frame, so the whole frame may not be valid JSON. Therefore only the beginning is compared.
_UPSTREAM_ERROR = re.compile(rb'\s*\{\s*"error"\s*:')

INTERRUPTED = "The stream was interrupted; the run goes on"


def is_raw(stored: Stored) -> bool:
    """Return False for the run's terminal event, which follows all source frames."""
    return stored.subject.startswith("rawp.")


@dataclass(slots=True)
class RawEncoding(Encoding):
    """Encodes the frames of all legs, each with `id: <RAW sequence>-<n>`.

    If the connection to the agent server was lost, a comment gives the reason. A frame may be split
    over several messages, so the messages must be read from the run's start.
    """

    _parser: sse.Parser = field(default_factory=sse.Parser)
    _connection: str = ""

    def feed(self, stored: Stored) -> Item:
        if not is_raw(stored):
            return Item(stored.sequence, [], last=True)
        raw = raw_frame(stored)
        if raw.connection != self._connection:
            # The earlier connection may have ended inside a frame. The incomplete frame is dropped.
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

    def interruption(self) -> list[bytes]:
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
    """Relays the body of one leg byte for byte, and adds at most one error frame at the end.

    adk-streaming.md allows no other additions, such as ids or comments. The error frame tells why
    the leg was interrupted, and begins at a frame boundary. If the agent server's last frame is an
    error frame already, the edge adds no error frame.
    """

    leg: int
    timeout_s: float
    hosts: tuple[str, ...] = ()  # the agent server's hosts, which the error frame must not name
    _parser: sse.Parser | None = field(default_factory=sse.Parser)
    _connection: str = ""
    _last_frame: bytes = b""

    def feed(self, stored: Stored) -> Item:
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
            return Item(
                raw.sequence, self._error(_error_of(lost, self.timeout_s), raw.received), last=True
            )
        if raw.kind == "end":
            return Item(raw.sequence, self._end(raw), last=True)
        return Item(raw.sequence, [])

    def interruption(self) -> list[bytes]:
        """Return an error frame.

        The client has no cursor to continue with. If there were no error frame, the client would
        conclude that the run has succeeded.
        """
        return self._error(_stream_error(INTERRUPTED), now())

    def _end(self, raw: RawFrame) -> list[bytes]:
        if orjson.loads(raw.payload or b"{}").get("outcome") == "cancelled":
            return self._error(_stream_error("The run was cancelled"), raw.received)
        return []

    def _ended(self, stored: Stored) -> Item:
        """Return the last item of a leg that has no closing frame, for the run's terminal event."""
        event = orjson.loads(stored.payload)
        error = {
            "lifecycle.failed": event["data"].get("error", "The run failed"),
            "lifecycle.cancelled": "The run was cancelled",
        }.get(type_of(stored))
        frames = self._error(_stream_error(error), event["timestamp"]) if error else []
        return Item(stored.sequence, frames, last=True)

    def _boundary(self, connection: str) -> bytes:
        """Return an empty line if an earlier connection of the leg broke inside a frame."""
        if connection == self._connection:
            return b""
        is_half = self._connection and self._parser is not None and not self._parser.is_at_boundary
        self._connection = connection
        if not is_half:
            return b""
        self._parser = sse.Parser()
        return b"\n\n"

    def _follow(self, payload: bytes) -> None:
        if self._parser is None:
            return
        try:
            frames = self._parser.feed(payload)
        except sse.FrameTooLarge:
            self._parser = None
            return
        if frames:
            self._last_frame = frames[-1].data

    def _error(self, body: dict[str, Any], at: str) -> list[bytes]:
        at_boundary = self._parser is not None and self._parser.is_at_boundary
        if at_boundary and _UPSTREAM_ERROR.match(self._last_frame):
            return []
        redacted = redacted_value(body, self.hosts)
        frame = sse.encode(orjson.dumps(redacted | {"timestamp": _epoch_s(at)}))
        return [frame if at_boundary else b"\n\n" + frame]


def _error_of(lost: dict[str, Any], timeout_s: float) -> dict[str, Any]:
    """Return the error that adk-streaming.md defines for this reason of a lost connection."""
    match lost.get("code"):
        case "timeout":
            text = f"Request timeout after {timeout_s:g} seconds"
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


def _stream_error(text: str) -> dict[str, Any]:
    return {"error": text, "error_code": "STREAM_ERROR"}


def _epoch_s(timestamp: str) -> float:
    return datetime.fromisoformat(timestamp).timestamp()
