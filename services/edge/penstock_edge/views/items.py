"""Messages of the bus, encoded for clients: once, however many read them. Pure."""

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
    """The messages that are followed, in order, to items. Lives as long as the reading."""

    async def meet(self, stored: Stored) -> None:
        """Learn what must be known from elsewhere before this message. Waits for the bus."""
        return

    def lacks(self, stored: Stored) -> int | None:
        """The stream sequence from which this message's run must be folded before it."""
        return None

    def fold(self, stored: Stored) -> None:
        """A message that its readers have, or need not be given. Raises as `feed` does."""
        return

    def feed(self, stored: Stored) -> Item:
        """One message. Raises ValueError, KeyError or TypeError where it cannot be read."""
        ...

    def cut(self) -> list[bytes]:
        """What says that the stream ends before its time; nothing where clients can come back."""
        ...


# A frame, and its cursor, as what is written to a client; nothing where it is not to be told.
Render = Callable[[Frame, str], bytes]


def selected(frame: Frame, id: str, *, render: Render, types: frozenset[str]) -> bytes:
    """Only the frames of these types. The others keep their index, so that cursors are the same."""
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
        """Raises ValueError, KeyError or TypeError on a body that is no event."""
        frames = self.encoder.feed(orjson.loads(stored.payload))
        told = rendered(frames, stored.sequence, self.render)
        return Item(stored.sequence, told, type_of(stored) in TERMINAL)

    def cut(self) -> list[bytes]:
        """Nothing: a client comes back with its cursor."""
        return []


def type_of(stored: Stored) -> str:
    """The `category.action` of a canonical event."""
    return stored.subject.rpartition(".")[0]


def notice(encoder: Encoder, run_id: str, code: str, message: str, session_id: str = "") -> Frame:
    """A `system.warning` of the edge's own: it is not on the bus, so it has no sequence.

    A dialect that has no warnings is given an error.
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
