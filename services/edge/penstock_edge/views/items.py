"""Items: messages of the bus, each encoded once for all clients that read it. Pure."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Protocol

import orjson

from penstock.bus import Stored
from penstock.bus.messages import now
from penstock.dialects.base import Encoder
from penstock.events.catalogue import TERMINAL
from penstock.sse import Frame
from penstock_edge.views.cursor import Cursor
from penstock_edge.views.positions import StreamSequence


@dataclass(slots=True)
class Item:
    """One encoded message. `frames` are bytes as they are written; an index counts in its cursor.

    `last`: the stream ends with this item. `offset`: the bytes of its hub's items up to its end.
    """

    sequence: int
    frames: list[bytes]
    last: bool = False
    offset: int = 0
    body: bytes = field(init=False)

    def __post_init__(self) -> None:
        self.body = self.frames[0] if len(self.frames) == 1 else b"".join(self.frames)

    def after(self, cursor: Cursor) -> bytes:
        """The bytes that a client with this cursor does not have yet."""
        if self.sequence != cursor.sequence:
            return self.body if self.sequence > cursor.sequence else b""
        return b"".join(self.frames[cursor.frame + 1 :])


class Encoding(Protocol):
    """Encodes the messages of one reading, in order."""

    async def prepare(self, stored: Stored) -> None:
        """Look up what this message does not contain but its frames need. Waits for the bus."""
        return

    def missing_from(self, stored: Stored) -> StreamSequence | None:
        """The first message that must be folded before this one; None if none is missing."""
        return None

    def fold(self, stored: Stored) -> None:
        """Encode a message whose frames no client is given. Raises as `feed` does."""
        return

    def feed(self, stored: Stored) -> Item:
        """One message as an item.

        Raises:
            ValueError, KeyError, TypeError: the message cannot be read.
        """
        ...

    def interruption(self) -> list[bytes]:
        """Says that the stream is incomplete; nothing where clients can reconnect."""
        ...


# Makes the bytes of a frame and its cursor; empty for a frame that the client has not asked for.
Render = Callable[[Frame, str], bytes]


def selected(frame: Frame, id: str, *, render: Render, types: frozenset[str]) -> bytes:
    """Only frames of these types. The others are counted, so that cursors are the same."""
    return render(frame, id) if frame.event in types else b""


def rendered(frames: Sequence[Frame], sequence: int, render: Render) -> list[bytes]:
    """The frames of one message, each with its cursor."""
    return [render(frame, f"{sequence}-{index}") for index, frame in enumerate(frames)]


@dataclass(slots=True)
class EventEncoding(Encoding):
    """Canonical events of one run in a dialect."""

    encoder: Encoder
    render: Render

    def feed(self, stored: Stored) -> Item:
        """One event as an item.

        Raises:
            ValueError, KeyError, TypeError: the body is no event.
        """
        frames = self.encoder.feed(orjson.loads(stored.payload))
        written = rendered(frames, stored.sequence, self.render)
        return Item(stored.sequence, written, type_of(stored) in TERMINAL)

    def interruption(self) -> list[bytes]:
        """Nothing: a client reconnects with its cursor."""
        return []


def type_of(stored: Stored) -> str:
    """The `category.action` of a canonical event."""
    return stored.subject.rpartition(".")[0]


def notice(encoder: Encoder, run_id: str, code: str, message: str, session_id: str = "") -> Frame:
    """A `system.warning` that only this client gets; it is not on the bus and has no sequence.

    A dialect that has no frame for a warning gets a `system.error`.
    """
    event = {
        "run_id": run_id,
        "timestamp": now(),
        "sequence": 0,
        "source": None,
        "event": {"category": "system", "action": "warning"},
        "data": {"message": message, "code": code},
    }
    if session_id:
        event["session_id"] = session_id
    frames = encoder.feed(event)
    if not frames:
        frames = encoder.feed(event | {"event": {"category": "system", "action": "error"}})
    body = orjson.loads(frames[0].data)
    body.pop("sequence", None)
    return Frame(orjson.dumps(body), frames[0].event)
