"""Splits the bytes that a NATS server sends into messages and control lines. Pure.

nats-py's own parser tries six regular expressions on each line and is a coroutine. This parser is
synchronous, so a message reaches its listener without a task and without a queue. The parser can
also stop between two messages, so a long burst does not block the event loop.
"""

from __future__ import annotations

import time
from collections.abc import Callable

from nats.errors import ProtocolError

# The most bytes that a line may have. The server's own limit is 4 KiB, except for INFO, which lists
# a cluster's servers.
MAX_LINE_BYTES = 1024 * 1024
CLOCK_EVERY = 16  # the number of messages between two looks at the clock
_END = b"\r\n"
# by kind: how many words of the line give the size of the headers
_HEAD_WORDS = {b"MSG": 0, b"HMSG": 1}

# Called with a message's subscription, subject, reply subject, header block and payload.
OnMessage = Callable[[int, bytes, bytes, bytes, bytes], None]


class Parser:
    """Calls `on_message` with each message, and `on_line` with each other line.

    The callbacks must neither wait nor raise.
    """

    def __init__(self, on_message: OnMessage, on_line: Callable[[bytes], None]) -> None:
        self._on_message = on_message
        self._on_line = on_line
        self._rest = b""  # bytes that were looked at, and are not a whole message yet
        # Pieces that follow `_rest`. The pieces are joined only when a whole message has arrived.
        # If every new piece were joined at once, a large message would be copied again and again.
        self._pieces: list[bytes] = []
        self._held_bytes = 0  # the bytes of `_rest` and `_pieces`
        self._needed_bytes = 1  # how many bytes the next message or line has at least

    def feed(self, data: bytes) -> None:
        """Add bytes as they arrived."""
        self._pieces.append(data)
        self._held_bytes += len(data)

    def parse(self, until: float) -> bool:
        """Call the callbacks for what has arrived, until the monotonic time `until`.

        Returns whether the time was over before everything that has arrived was used.

        Raises:
            ProtocolError: the bytes are not of the NATS protocol.
        """
        if self._held_bytes < self._needed_bytes:
            return False
        data = self._joined()
        at, end, looks = 0, len(data), CLOCK_EVERY
        on_message = self._on_message
        try:
            while at < end:
                stop = data.find(_END, at)
                if stop < 0:
                    self._needed_bytes = _more_than(end - at)
                    return False
                words = data[at:stop].split()
                kind = words[0] if words else b""
                if kind not in _HEAD_WORDS:
                    line, at = data[at:stop], stop + 2
                    self._on_line(line)
                else:
                    # The line is `HMSG subject number [reply] head size` or `MSG subject number
                    # [reply] size`.
                    count = _HEAD_WORDS[kind]
                    size = int(words[-1])
                    head = int(words[-2]) if count else 0
                    body = stop + 2
                    after = body + size + 2
                    if not 0 <= head <= size:
                        raise ProtocolError
                    if after > end:
                        self._needed_bytes = after - at
                        return False
                    at = after
                    reply = words[3] if len(words) == 5 + count else b""
                    block, payload = data[body : body + head], data[body + head : after - 2]
                    on_message(int(words[2]), words[1], reply, block, payload)
                looks -= 1
                if not looks and at < end:
                    if time.monotonic() > until:
                        self._needed_bytes = 1
                        return True
                    looks = CLOCK_EVERY
            self._needed_bytes = 1
            return False
        except (ValueError, IndexError) as error:
            raise ProtocolError from error
        finally:
            self._rest = data[at:] if at < end else b""
            self._held_bytes = end - at

    def _joined(self) -> bytes:
        if not self._pieces:
            return self._rest
        joined = b"".join((self._rest, *self._pieces))
        self._pieces.clear()
        return joined


def _more_than(held_bytes: int) -> int:
    if held_bytes > MAX_LINE_BYTES:
        raise ProtocolError
    return held_bytes + 1
