"""Messages of the bus, encoded for clients: once, however many read them. Pure."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Protocol

import orjson

from penstock import sse
from penstock.bus import Stored
from penstock.bus.messages import now
from penstock.dialects.base import Encoder
from penstock.events.catalogue import TERMINAL
from penstock.sse import Frame
from penstock_edge.cursor import Cursor


@dataclass(slots=True)
class Item:
    """One message, encoded. `frames` are ready to be written; a frame's index is its place here.

    `last`: the stream ends with it. `offset`: bytes of its hub's stream up to its end.
    """

    sequence: int
    frames: list[bytes]
    last: bool = False
    offset: int = 0
    body: bytes = field(init=False)

    def __post_init__(self) -> None:
        self.body = self.frames[0] if len(self.frames) == 1 else b"".join(self.frames)

    def after(self, cursor: Cursor) -> bytes:
        """What a client that stands there does not have yet."""
        if self.sequence != cursor.sequence:
            return self.body if self.sequence > cursor.sequence else b""
        return b"".join(self.frames[cursor.frame + 1 :])


class Encoding(Protocol):
    """The messages of a followed run, in order, to items. Lives as long as the reading."""

    def feed(self, stored: Stored) -> Item:
        """One message. Raises ValueError, KeyError or TypeError where it cannot be read."""
        ...

    def cut(self) -> list[bytes]:
        """What says that the stream ends before its time; nothing where clients can come back."""
        ...


@dataclass(slots=True)
class EventEncoding:
    """Canonical events in a dialect, each frame with its cursor. `named`: with `event:` lines."""

    encoder: Encoder
    named: bool = True

    def feed(self, stored: Stored) -> Item:
        """Raises ValueError, KeyError or TypeError on a body that is no event."""
        frames = [
            sse.encode(
                frame.data,
                event=frame.event if self.named else None,
                id=f"{stored.sequence}-{index}",
            )
            for index, frame in enumerate(self.encoder.feed(orjson.loads(stored.payload)))
        ]
        return Item(stored.sequence, frames, type_of(stored) in TERMINAL)

    def cut(self) -> list[bytes]:
        """Nothing: a client comes back with its cursor."""
        return []


def type_of(stored: Stored) -> str:
    """The `category.action` of a canonical event."""
    return stored.subject.rpartition(".")[0]


def notice(encoder: Encoder, run_id: str, code: str, message: str) -> Frame:
    """A `system.warning` of the edge's own: it is not on the bus, so it has no sequence."""
    event = {
        "run_id": run_id,
        "timestamp": now(),
        "sequence": 0,
        "source": None,
        "event": {"category": "system", "action": "warning"},
        "data": {"message": message, "code": code},
    }
    frame = encoder.feed(event)[0]
    body = orjson.loads(frame.data)
    del body["sequence"]
    return Frame(orjson.dumps(body), frame.event)
