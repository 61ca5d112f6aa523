"""How frames look on the wire: lines of SSE, messages of a WebSocket, or items of a page. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, Protocol

import orjson

from penstock import sse
from penstock.sse import Frame

LIVE: Final = b'{"marker":"live"}'
LIVE_EVENT: Final = "penstock.live"
MESSAGE_END: Final = b"\n"  # separates the messages of one write; JSON bodies have no newline


class Framing(Protocol):
    """Makes the bytes of one kind of stream."""

    @property
    def key(self) -> str:
        """A text that differs from the keys of all other framings; part of a view's key."""
        ...

    @property
    def keep_alive(self) -> bytes:
        """The bytes for a silent stream; empty where the stream gets no keep-alives."""
        ...

    @property
    def live_marker(self) -> bytes:
        """Says that the replay is over, and that all that follows is live."""
        ...

    @property
    def resumable(self) -> bool:
        """Whether frames have their cursors, so that a client can continue after a cut."""
        ...

    def reconnect(self, retry_ms: int) -> bytes:
        """Says after how long the client should reconnect."""
        ...

    def event(self, frame: Frame, id: str) -> bytes:
        """A frame with its cursor."""
        ...

    def notice(self, frame: Frame) -> bytes:
        """A frame of the edge's own, which has no cursor."""
        ...


@dataclass(frozen=True, slots=True)
class Sse:
    """`text/event-stream`. `named`: with `event:` lines. `id_first`: see `sse.encode`."""

    named: bool = True
    id_first: bool = False
    keep_alive: bytes = sse.comment("keep-alive")
    resumable: bool = True

    @property
    def key(self) -> str:
        """Part of a view's key."""
        return f"named={self.named}, id_first={self.id_first}"

    @property
    def live_marker(self) -> bytes:
        """Has no id, so that an EventSource keeps its last one."""
        return self.notice(Frame(LIVE, LIVE_EVENT))

    def reconnect(self, retry_ms: int) -> bytes:
        """A `retry:` line."""
        return sse.retry(retry_ms)

    def event(self, frame: Frame, id: str) -> bytes:
        """`event`, `data`, `id`."""
        name = frame.event if self.named else None
        return sse.encode(frame.data, event=name, id=id, id_first=self.id_first)

    def notice(self, frame: Frame) -> bytes:
        """`event`, `data`."""
        return sse.encode(frame.data, event=frame.event if self.named else None)


NAMED_SSE: Final = Sse()
# For a body that belongs to another protocol: the edge adds nothing to it, not even keep-alives.
VERBATIM_SSE: Final = Sse(keep_alive=b"")


@dataclass(frozen=True, slots=True)
class WebSocketMessages:
    """A WebSocket message for each frame. `cursors`: another one follows with its cursor."""

    cursors: bool = False
    keep_alive: bytes = b""  # the protocol has pings
    live_marker: bytes = LIVE + MESSAGE_END

    @property
    def resumable(self) -> bool:
        """Only with cursors."""
        return self.cursors

    def reconnect(self, retry_ms: int) -> bytes:
        """Nothing: the close code says it."""
        return b""

    @property
    def key(self) -> str:
        """Part of a view's key."""
        return f"messages, cursors={self.cursors}"

    def event(self, frame: Frame, id: str) -> bytes:
        """The frame's data and nothing else; then `{"cursor": …}` as a message of its own."""
        message = _message(frame)
        if self.cursors:
            message += orjson.dumps({"cursor": id}) + MESSAGE_END
        return message

    def notice(self, frame: Frame) -> bytes:
        """The frame's data."""
        return _message(frame)


@dataclass(frozen=True, slots=True)
class PageItems:
    """The items of a JSON page: the frames' data alone."""

    key: str = "page"
    keep_alive: bytes = b""
    live_marker: bytes = b""
    resumable: bool = False

    def reconnect(self, retry_ms: int) -> bytes:
        """Nothing: a page is never cut."""
        return b""

    def event(self, frame: Frame, id: str) -> bytes:
        """The frame's data."""
        return frame.data

    def notice(self, frame: Frame) -> bytes:
        """The frame's data."""
        return frame.data


def split(body: bytes) -> Sequence[str]:
    """The WebSocket messages of one write."""
    return body.decode().split("\n")[:-1]


def _message(frame: Frame) -> bytes:
    data = frame.data
    if MESSAGE_END in data:
        data = orjson.dumps(orjson.loads(data))
    return data + MESSAGE_END
