"""Parses and writes `text/event-stream` (WHATWG HTML, section 9.2).

Pure: no I/O. Only CR, LF and CRLF end a line. U+2028, U+2029 and U+0085 inside `data` are data:
Agno and ADK servers send them unescaped, and Python's line iterators would split there.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

MAX_FRAME_BYTES = 64 * 1024 * 1024

_LINE_END = re.compile(rb"\r\n|\n|\r")
_BOM = b"\xef\xbb\xbf"
_NO_LINE = re.compile(r"[\r\n\0]")
# a larger number is no useful waiting time and is slow to convert
_RETRY = re.compile(rb"[0-9]{1,15}")


class FrameTooLarge(ValueError):
    """A frame grew past the limit before its blank line arrived.

    `frames` are the frames that the same chunk completed before it. Without them the result would
    depend on the chunking.
    """

    def __init__(self, limit_bytes: int, frames: list[Frame]) -> None:
        super().__init__(f"a frame is larger than {limit_bytes} bytes")
        self.limit_bytes = limit_bytes
        self.frames = frames


@dataclass(slots=True)
class Frame:
    """One dispatched event. `data` is UTF-8, with its lines joined by LF."""

    data: bytes
    event: str | None = None
    id: str | None = None
    retry_ms: int | None = None


class Parser:
    """Parses bytes in any chunking into frames.

    A frame without a `data` line is not dispatched, as the specification demands.
    """

    def __init__(self, max_frame_bytes: int = MAX_FRAME_BYTES) -> None:
        self._max_frame_bytes = max_frame_bytes
        # bytearrays, since a list of single-byte chunks would take many times their size
        self._tail = bytearray()  # the current, incomplete line
        self._after_cr = False  # the last chunk ended in CR, so a leading LF belongs to it
        self._at_start = True  # a byte order mark may still follow
        self._size = 0  # bytes of the current frame
        self._data: bytes | bytearray | None = None
        self._event: str | None = None
        self._id: str | None = None
        self._retry_ms: int | None = None

    @property
    def at_boundary(self) -> bool:
        """Whether no byte of a further frame has been read."""
        return not self._size

    @property
    def pending_bytes(self) -> int:
        """The number of bytes held for the incomplete frame."""
        return self._size

    def feed(self, chunk: bytes) -> list[Frame]:
        """The frames that the chunk completes.

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
            self._size -= len(self._tail)  # these bytes are counted already
            self._tail += lines[0]
            lines[0] = bytes(self._tail)
            self._tail = bytearray()
        unfinished = lines.pop()
        for line in lines:
            if line:
                self._grow(len(line) + 1, frames)
                self._field(line)
            else:
                self._dispatch(frames)
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
        colon = line.find(b":")
        if not colon:
            return  # a comment line
        if colon < 0:
            name, value = line, b""
        else:
            # one copy of the value, which may be nearly all of a large frame
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
    """Writes one frame: `event`, `data`, `id`, blank line, with LF as line end.

    Each line of `data` becomes a data line, so any line end in it reads back as LF. The id comes
    last, since some clients store it as soon as they read its line (n8n's SSE trigger does): an id
    before the data would lose a frame in which the connection breaks. `id_first` puts the id first,
    the order that agent-runs-sse.md prescribes.

    Raises:
        ValueError: `event` or `id` has a line end or a NUL, which would forge a field.
    """
    head = b"event: " + _line(event) + b"\n" if event is not None else b""
    tail = b"\n\n"
    if id is not None and id_first:
        head = b"id: " + _line(id) + b"\n" + head
    elif id is not None:
        tail = b"\nid: " + _line(id) + tail
    if b"\n" in data or b"\r" in data:
        data = b"\ndata: ".join(_LINE_END.split(data))
    return b"".join((head, b"data: ", data, tail))  # one copy of a large frame instead of two


def comment(text: str) -> bytes:
    """A comment frame. Clients ignore it; it keeps an idle connection open.

    Raises:
        ValueError: The text has a line end or a NUL.
    """
    return b": " + _line(text) + b"\n\n"


def at(id: str) -> bytes:
    """An id without a frame, which a client stores as its cursor.

    Raises:
        ValueError: The id has a line end or a NUL.
    """
    return b"id: %b\n\n" % _line(id)


def retry(ms: int) -> bytes:
    """Tells a client how many milliseconds to wait before it reconnects. It dispatches no event."""
    return b"retry: %d\n\n" % ms


def _line(text: str) -> bytes:
    if _NO_LINE.search(text):
        raise ValueError(f"an id, event name or comment must be one line without NUL: {text!r}")
    return text.encode()
