"""Parses and writes `text/event-stream` (WHATWG HTML, section 9.2).

This module does no I/O. Only CR, LF and CRLF end a line. Agno and ADK servers send the characters
U+2028, U+2029 and U+0085 unescaped inside `data`. Such a character is data, but Python's
`splitlines` would wrongly split the line there.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final

MAX_EVENT_LINES = 500
MAX_FRAME_BYTES = 64 * 1024 * 1024
# The line ends as numbers, because `10 in data` takes 13 ns and `b"\n" in data` takes 75 ns: there
# CPython first raises and drops a TypeError.
LF: Final = 10
CR: Final = 13

_LINE_END = re.compile(rb"\r\n|\n|\r")
_BOM = b"\xef\xbb\xbf"
# The value of a `retry` line, in milliseconds. A number of more than 15 digits is not a useful
# waiting time, and Python converts long numbers slowly.
_RETRY = re.compile(rb"[0-9]{1,15}")


_EVENT_LINES: dict[str, bytes] = {}  # maps names of events to their lines

# The headers of a response that streams. With the last one, nginx passes each frame on at once.
# `no-transform` keeps proxies such as Caddy from compressing the stream, which would hold frames
# back: a browser's page cannot ask for `Accept-Encoding: identity`.
HEADERS: Final = {
    "content-type": "text/event-stream",
    "cache-control": "no-cache, no-transform",
    "connection": "keep-alive",
    "x-accel-buffering": "no",
}
# A comment that keeps an idle connection open.
KEEP_ALIVE: Final = b": keep-alive\n\n"


class FrameTooLarge(ValueError):
    """The error for a frame that exceeded the limit before its blank line arrived.

    `frames` are the complete frames that the same chunk contained before the large frame. The
    caller must use these frames. Otherwise the result would depend on how the bytes are divided
    into chunks.
    """

    def __init__(self, limit_bytes: int, frames: list[Frame]) -> None:
        super().__init__(f"a frame is larger than {limit_bytes} bytes")
        self.limit_bytes = limit_bytes
        self.frames = frames


@dataclass(slots=True)
class Frame:
    """One complete event of the stream. `data` has the contents of its data lines, in UTF-8 and
    joined by LF."""

    data: bytes
    event: str | None = None
    id: str | None = None
    retry_ms: int | None = None


class Parser:
    """Parses bytes in any chunking into frames. The parser discards a frame without a `data` line,
    as the specification demands."""

    __slots__ = (
        "_after_cr",
        "_at_start",
        "_data",
        "_event",
        "_id",
        "_max_frame_bytes",
        "_retry_ms",
        "_size",
        "_tail",
    )

    def __init__(self, max_frame_bytes: int = MAX_FRAME_BYTES) -> None:
        self._max_frame_bytes = max_frame_bytes
        # `_tail` is a bytearray. If the chunks were kept in a list and each had a single byte, the
        # list would take many times the memory of the bytes.
        self._tail = bytearray()  # The current, incomplete line.
        # The last chunk ended in CR, so an LF at the start of the next chunk belongs to this CR.
        self._after_cr = False
        self._at_start = True  # The stream may still begin with a byte order mark.
        self._size = 0  # The number of bytes of the current frame.
        self._data: bytes | bytearray | None = None
        self._event: str | None = None
        self._id: str | None = None
        self._retry_ms: int | None = None

    @property
    def is_at_boundary(self) -> bool:
        """True if the parser has read no byte after the last complete frame."""
        return not self._size

    @property
    def pending_bytes(self) -> int:
        """The number of bytes of the incomplete frame that the parser has read so far."""
        return self._size

    def feed(self, chunk: bytes) -> list[Frame]:
        """Return the frames that the chunk completes.

        Raises:
            FrameTooLarge: The current frame exceeds the limit. The parser is unusable afterwards.
        """
        if self._after_cr and chunk:
            self._after_cr = False
            if chunk[:1] == b"\n":
                chunk = chunk[1:]
        if self._at_start and chunk:
            chunk = self._without_bom(chunk)
        if not chunk:
            return []
        if b"\r" in chunk:
            lines = _LINE_END.split(chunk)
            self._after_cr = chunk.endswith(b"\r")
        else:
            lines = chunk.split(b"\n")
        frames: list[Frame] = []
        if len(lines) == 1:  # the line is incomplete
            self._tail += chunk
            self._grow(len(chunk), frames)
            return frames
        if self._tail:
            self._size -= len(self._tail)  # the complete line is counted again below
            self._tail += lines[0]
            lines[0] = bytes(self._tail)
            self._tail = bytearray()
        unfinished = lines.pop()
        for line in lines:
            if not line:
                self._dispatch(frames)
                continue
            self._grow(len(line) + 1, frames)
            self._field(line)
        if unfinished:
            self._tail += unfinished
            self._grow(len(unfinished), frames)
        return frames

    def _without_bom(self, chunk: bytes) -> bytes:
        head = bytes(self._tail + chunk)
        if len(head) < len(_BOM) and _BOM.startswith(head):
            self._tail[:] = head
            self._size = len(head)
            return b""
        self._at_start = False
        self._tail.clear()
        self._size = 0
        return head.removeprefix(_BOM)

    def _grow(self, n_bytes: int, frames: list[Frame]) -> None:
        self._size += n_bytes
        if self._size > self._max_frame_bytes:
            raise FrameTooLarge(self._max_frame_bytes, frames)

    def _field(self, line: bytes) -> None:
        if self._data is None and line[:6] == b"data: ":
            # a fast path for most lines, because the code below takes twice the time
            self._data = line[6:]
            return
        colon = line.find(b":")
        if not colon:
            return  # a comment line
        if colon < 0:
            name, value = line, b""
        else:
            # This slice copies the value only once. The value may be nearly all of a large frame.
            name, value = line[:colon], line[colon + 1 + (line[colon + 1 : colon + 2] == b" ") :]
        if name == b"data":
            if self._data is None:
                self._data = value
            else:
                if isinstance(self._data, bytes):
                    self._data = bytearray(self._data)
                self._data += b"\n"
                self._data += value
        elif name == b"event":
            self._event = value.decode("utf-8", "replace")
        elif name == b"id":
            if b"\0" not in value:
                self._id = value.decode("utf-8", "replace")
        elif name == b"retry" and _RETRY.fullmatch(value):
            self._retry_ms = int(value)

    def _dispatch(self, frames: list[Frame]) -> None:
        if self._data is not None:
            frames.append(Frame(bytes(self._data), self._event, self._id, self._retry_ms))
        self._data = None
        self._event = self._id = self._retry_ms = None
        self._size = 0


def encode(
    data: bytes, *, event: str | None = None, id: str | None = None, id_first: bool = False
) -> bytes:
    """Write one frame, which has `event`, `data`, `id` and a blank line, with LF as line end.

    Each line of `data` becomes a data line, so a parser reads CR and CRLF in the data as LF. The id
    comes last, because some clients, such as n8n's SSE trigger, store the id as soon as they read
    the id's line. If the id came first and the connection broke within the frame, such a client
    would continue after the frame and lose the frame's data. With `id_first`, the id comes first,
    as agent-runs-sse.md requires.

    Raises:
        ValueError: `event` or `id` contains a line end or a NUL. A line end would begin a new
            field.
    """
    head = b"" if event is None else event_line(event)
    if id is None:
        tail = b"\n\n"
    elif id_first:
        head, tail = b"id: %b\n%b" % (_line(id), head), b"\n\n"
    else:
        tail = b"\nid: %b\n\n" % _line(id)
    if LF in data or CR in data:
        data = b"\ndata: ".join(_LINE_END.split(data))
    # `join` copies a large frame once; `+` would copy it several times
    return b"".join((head, b"data: ", data, tail))


def event_line(event: str) -> bytes:
    """Return the line with an event's name.

    The line is kept for later calls, because the same few names occur again and again.

    Raises:
        ValueError: The name contains a line end or a NUL.
    """
    line = _EVENT_LINES.get(event)
    if line is None:
        line = b"event: %b\n" % _line(event)
        if len(_EVENT_LINES) < MAX_EVENT_LINES:
            _EVENT_LINES[event] = line
    return line


def comment(text: str) -> bytes:
    """Return a comment frame, which clients ignore. Comments keep an idle connection open.

    Raises:
        ValueError: The text contains a line end or a NUL.
    """
    return b": " + _line(text) + b"\n\n"


def at(id: str) -> bytes:
    """Return a frame with only an id line. A client stores the id as its cursor and gets no event.

    Raises:
        ValueError: The id contains a line end or a NUL.
    """
    return b"id: %b\n\n" % _line(id)


def retry(ms: int) -> bytes:
    """Return a frame with only a retry line. The line sets how many milliseconds a client waits
    before it reconnects. The client gets no event."""
    return b"retry: %d\n\n" % ms


def _line(text: str) -> bytes:
    if "\n" in text or "\r" in text or "\0" in text:
        raise ValueError(f"an id, event name or comment must be one line without NUL: {text!r}")
    return text.encode()
