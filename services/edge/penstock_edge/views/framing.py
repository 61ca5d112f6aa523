"""How what a client is told looks on the wire: frames of SSE, or messages of a WebSocket. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, Protocol

import orjson

from penstock import sse
from penstock.sse import Frame

LIVE: Final = b'{"marker":"live"}'
LIVE_EVENT: Final = "penstock.live"
MESSAGE_END: Final = b"\n"  # JSON has none inside: the messages of one write are split there


class Form(Protocol):
    """The bytes of one kind of stream. `key` tells it from the others."""

    @property
    def key(self) -> str:
        """Among the keys of a view."""
        ...

    @property
    def keep_alive(self) -> bytes:
        """What is written in silence; nothing where the protocol has its own."""
        ...

    @property
    def live_marker(self) -> bytes:
        """That the replay is over, and what follows is live."""
        ...

    @property
    def resumable(self) -> bool:
        """Whether a client knows its cursor."""
        ...

    def come_back(self, retry_ms: int) -> bytes:
        """That the stream ends here, and when the client should come back to it."""
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
        """Among the keys of a view."""
        return f"named={self.named}, id_first={self.id_first}"

    @property
    def live_marker(self) -> bytes:
        """Without an id, so that an EventSource keeps the last one."""
        return self.notice(Frame(LIVE, LIVE_EVENT))

    def come_back(self, retry_ms: int) -> bytes:
        """`retry`."""
        return sse.retry(retry_ms)

    def event(self, frame: Frame, id: str) -> bytes:
        """`event`, `data`, `id`."""
        name = frame.event if self.named else None
        return sse.encode(frame.data, event=name, id=id, id_first=self.id_first)

    def notice(self, frame: Frame) -> bytes:
        """`event`, `data`."""
        return sse.encode(frame.data, event=frame.event if self.named else None)


@dataclass(frozen=True, slots=True)
class Messages:
    """One WebSocket message a frame. `cursors`: each is followed by one with its cursor."""

    cursors: bool = False
    keep_alive: bytes = b""
    live_marker: bytes = LIVE + MESSAGE_END

    @property
    def resumable(self) -> bool:
        """Only with cursors."""
        return self.cursors

    def come_back(self, retry_ms: int) -> bytes:
        """Nothing: the close code says it."""
        return b""

    @property
    def key(self) -> str:
        """Among the keys of a view."""
        return f"messages, cursors={self.cursors}"

    def event(self, frame: Frame, id: str) -> bytes:
        """The frame's data and nothing else; then, as a message of its own, `{"cursor": …}`."""
        message = _message(frame)
        if self.cursors:
            message += orjson.dumps({"cursor": id}) + MESSAGE_END
        return message

    def notice(self, frame: Frame) -> bytes:
        """The frame's data."""
        return _message(frame)


@dataclass(frozen=True, slots=True)
class Page:
    """The frames of a JSON page: their data alone."""

    key: str = "page"
    keep_alive: bytes = b""
    live_marker: bytes = b""
    resumable: bool = False

    def come_back(self, retry_ms: int) -> bytes:
        """Nothing: it is not cut."""
        return b""

    def event(self, frame: Frame, id: str) -> bytes:
        """The frame's data."""
        return frame.data

    def notice(self, frame: Frame) -> bytes:
        """The frame's data."""
        return frame.data


def split(body: bytes) -> Sequence[str]:
    """The messages of one write."""
    return body.decode().split("\n")[:-1]


def _message(frame: Frame) -> bytes:
    data = frame.data
    if MESSAGE_END in data:
        data = orjson.dumps(orjson.loads(data))
    return data + MESSAGE_END
