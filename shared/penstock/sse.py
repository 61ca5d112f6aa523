"""`text/event-stream` bytes to frames and back (WHATWG HTML, section 9.2).

Pure: no I/O. A line ends at CR, LF or CRLF and nowhere else: U+2028, U+2029 and U+0085 inside
`data` are data (real Agno and ADK servers send them raw, and line iterators split there).
"""

from __future__ import annotations

import re
from dataclasses import dataclass

MAX_FRAME_BYTES = 64 * 1024 * 1024

_LINE_END = re.compile(rb"\r\n|\n|\r")
_BOM = b"\xef\xbb\xbf"
_NO_LINE = re.compile(r"[\r\n\0]")
_RETRY = re.compile(rb"[0-9]{1,15}")  # more digits are no waiting time, and cost to convert


class FrameTooLarge(ValueError):
    """A frame grew past the limit before its blank line came.

    `frames` are those that the same chunk completed before it: they would be lost otherwise, and
    what a reader gets would depend on the chunking.
    """

    def __init__(self, limit_bytes: int, frames: list[Frame]) -> None:
        super().__init__(f"a frame is larger than {limit_bytes} bytes")
        self.limit_bytes = limit_bytes
        self.frames = frames


@dataclass(slots=True)
class Frame:
    """One dispatched event. `data` holds UTF-8 bytes, its lines joined by LF."""

    data: bytes
    event: str | None = None
    id: str | None = None
    retry_ms: int | None = None


class Parser:
    """Bytes in any chunking to frames.

    Frames without a `data` line are not dispatched, as the specification says.
    """

    def __init__(self, max_frame_bytes: int = MAX_FRAME_BYTES) -> None:
        self._max_frame_bytes = max_frame_bytes
        # arrays: of single bytes a list would take many times what they are
        self._tail = bytearray()  # the line under way
        self._after_cr = False  # the last chunk ended in CR: a leading LF belongs to it
        self._at_start = True  # a byte order mark may come
        self._size = 0  # bytes of the frame under way
        self._data: bytes | bytearray | None = None
        self._event: str | None = None
        self._id: str | None = None
        self._retry_ms: int | None = None

    @property
    def at_boundary(self) -> bool:
        """True when nothing of a further frame has been read."""
        return not self._size

    @property
    def pending_bytes(self) -> int:
        """What is held of the frame under way."""
        return self._size

    def feed(self, chunk: bytes) -> list[Frame]:
        """The frames that the chunk completes.

        Raises `FrameTooLarge` when the frame under way passes the limit; the parser cannot be
        used after that.
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
        if len(lines) == 1:  # the line goes on
            self._tail += chunk
            self._grow(len(chunk), frames)
            return frames
        if self._tail:
            self._size -= len(self._tail)  # it is counted already
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
            return  # a comment
        if colon < 0:
            name, value = line, b""
        else:
            # one copy of the value, which may be all of a large frame
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
    """One frame: `event`, `data`, `id`, blank line; LF only. Lines of `data` become data lines.

    The id comes last, because some clients keep it as soon as they have read its line (n8n's SSE
    trigger does): an id before the data would lose the frame that the connection is cut in.
    `id_first` puts it first, as agent-runs-sse.md fixes the order.

    A line end in `data` reads back as LF, whichever it was. Raises `ValueError` for an `event` or
    `id` with a line end or NUL in it: it would forge a field.
    """
    head = b"event: " + _line(event) + b"\n" if event is not None else b""
    tail = b"\n\n"
    if id is not None and id_first:
        head = b"id: " + _line(id) + b"\n" + head
    elif id is not None:
        tail = b"\nid: " + _line(id) + tail
    if b"\n" in data or b"\r" in data:
        data = b"\ndata: ".join(_LINE_END.split(data))
    return b"".join((head, b"data: ", data, tail))  # one copy of a large frame, not two


def comment(text: str) -> bytes:
    """A comment frame; every client ignores it, and it keeps the connection from idling out."""
    return b": " + _line(text) + b"\n\n"


def at(id: str) -> bytes:
    """An id that a client keeps without being given a frame."""
    return b"id: %b\n\n" % _line(id)


def retry(ms: int) -> bytes:
    """How long a client waits before it comes back; no frame, and nothing is dispatched."""
    return b"retry: %d\n\n" % ms


def _line(text: str) -> bytes:
    if _NO_LINE.search(text):
        raise ValueError(f"not one line: {text!r}")
    return text.encode()
