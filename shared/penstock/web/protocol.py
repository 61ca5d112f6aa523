"""uvicorn's HTTP protocol with a limit for the head, which httptools reads without one."""

from __future__ import annotations

from typing import Final

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

MAX_HEAD_BYTES: Final = 64 * 1024
_TOO_LARGE: Final = (
    b"HTTP/1.1 431 Request Header Fields Too Large\r\n"
    b"content-length: 0\r\nconnection: close\r\n\r\n"
)


class HttpProtocol(HttpToolsProtocol):
    """Closes a connection whose request line and headers are more than `MAX_HEAD_BYTES`.

    What is read at once (at most 256 KiB) is parsed before it is counted: it may hold a body too.
    """

    _head_bytes = 0
    _in_head = True
    _completed = False  # by what was read last, most of which is then no head

    def data_received(self, data: bytes) -> None:
        """Bytes have come."""
        self._completed = False
        super().data_received(data)
        if self._completed or not self._in_head:
            return
        self._head_bytes += len(data)
        if self._head_bytes > MAX_HEAD_BYTES and not self.transport.is_closing():
            if self.cycle is None or self.cycle.response_complete:
                self.transport.write(_TOO_LARGE)
            self.transport.close()

    def on_headers_complete(self) -> None:
        """The head is whole."""
        self._in_head = False
        super().on_headers_complete()

    def on_message_complete(self) -> None:
        """The body is whole; what follows is the next head."""
        self._in_head = self._completed = True
        self._head_bytes = 0
        super().on_message_complete()
