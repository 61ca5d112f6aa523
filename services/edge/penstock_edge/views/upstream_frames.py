"""Encodes an agent server's own frames: one leg byte for byte, or a run with cursors for `raw`
(decision 0104). Pure."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import orjson

from penstock import sse
from penstock.bus import Stored
from penstock.bus.messages import RawFrame, raw_frame
from penstock_edge.views.encoded_leg import no_notice
from penstock_edge.views.framing import VERBATIM_SSE
from penstock_edge.views.items import Encoding, Item
from penstock_edge.views.view import Delivery, ReadFrom, RunFrames, View

INTERRUPTED = "The stream was interrupted; the run goes on"


def is_raw(stored: Stored) -> bool:
    # The run's terminal event, which follows all source frames, is not.
    return stored.subject.startswith("rawp.")


@dataclass(slots=True)
class RawEncoding(Encoding):
    """Encodes the frames of all legs, each with `id: <RAW sequence>-<n>`, and a lost connection as
    a comment. A frame may be split over several messages, so they must be read from the run's
    start."""

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
                sse.encode(frame.data, event=event_name(frame), id=f"{raw.sequence}-{index}")
                for index, frame in enumerate(self._frames(raw.payload))
            ]
        elif raw.kind == "lost":
            self._parser = sse.Parser()
            code = orjson.loads(raw.payload).get("code")
            frames = [sse.comment(f"the upstream was lost: {code}")]
        return Item(raw.sequence, frames)

    def _frames(self, payload: bytes) -> list[sse.Frame]:
        try:
            return self._parser.feed(payload)
        except sse.FrameTooLarge as error:
            self._parser = sse.Parser()
            return error.frames


def event_name(frame: sse.Frame) -> str | None:
    return frame.event and frame.event.replace("\0", "\ufffd")


@dataclass(slots=True)
class RelayedLeg(Encoding):
    """Relays the body of one leg byte for byte. A subclass says what it adds at the leg's end."""

    leg: int

    def feed(self, stored: Stored) -> Item:
        if not is_raw(stored):
            return Item(stored.sequence, self.run_ended(orjson.loads(stored.payload)), last=True)
        raw = raw_frame(stored)
        if not self.has_leg(raw.leg):
            return Item(raw.sequence, [])
        return Item(raw.sequence, self.relayed(raw)) if raw.is_body else self.marked(raw)

    def has_leg(self, leg: int) -> bool:
        return leg == self.leg

    @abstractmethod
    def run_ended(self, event: dict[str, Any]) -> list[bytes]: ...

    @abstractmethod
    def relayed(self, raw: RawFrame) -> list[bytes]: ...

    @abstractmethod
    def marked(self, raw: RawFrame) -> Item:
        """Return the item of a frame that the connector wrote itself, such as `open` or `lost`."""


def relayed_leg_view(
    dialect: str, run_id: str, leg: int, encoding: Callable[[], RelayedLeg]
) -> View:
    return View(
        (run_id, dialect, "bytes", str(leg)),
        dialect,
        RunFrames(run_id),
        encoding,
        no_notice,
        ReadFrom.START,
        VERBATIM_SSE,
        Delivery.ONCE,
    )
