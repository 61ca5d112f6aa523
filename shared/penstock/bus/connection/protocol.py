"""Speaks the protocol of NATS: splits the bytes that a server sends, and builds commands. Pure."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Mapping
from functools import lru_cache

from nats.errors import BadHeaderError, BadSubjectError, ProtocolError

# The most bytes that a line may have. The server's own limit is 4 KiB, except for INFO, which lists
# a cluster's servers.
MAX_LINE_BYTES = 1024 * 1024
CLOCK_EVERY = 16  # the number of messages between two looks at the clock
_END = b"\r\n"
_MESSAGES = frozenset((b"MSG", b"HMSG"))

# Called with a message's subscription, subject, reply subject, header block and payload.
OnMessage = Callable[[int, bytes, bytes, bytes, bytes], None]


class Parser:
    """Calls `on_message` with each message, and `on_line` with each other line.

    nats-py's own parser tries six regular expressions on each line and is a coroutine. This parser
    is synchronous, so a message reaches its listener without a task and without a queue. It can
    also stop between two messages, so a long burst does not block the event loop.

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
        self._pieces.append(data)
        self._held_bytes += len(data)

    def parse(self, until: float) -> bool:
        """Call the callbacks for what has arrived, until the monotonic time `until`.

        Returns whether the time was over before everything that has arrived was used. Raises
        ProtocolError if the bytes are not of the NATS protocol.
        """
        if self._held_bytes < self._needed_bytes:
            return False
        data = self._joined()
        at, end, looks = 0, len(data), CLOCK_EVERY + 1
        on_message = self._on_message
        try:
            while at < end:
                looks -= 1
                if not looks:
                    if time.monotonic() > until:
                        self._needed_bytes = 1
                        return True
                    looks = CLOCK_EVERY
                stop = data.find(_END, at)
                if stop < 0:
                    self._needed_bytes = _more_than(end - at)
                    return False
                line = data[at:stop]
                words = line.split()
                if len(words) == 5 and words[0] == b"HMSG":  # nearly all messages of a stream
                    _, subject, number, head_bytes, size_bytes = words
                    reply = b""
                elif words and words[0] in _MESSAGES:
                    subject, number, reply, head_bytes, size_bytes = _parts(words)
                else:
                    at = stop + 2
                    self._on_line(line)
                    continue
                block_at = stop + 2
                payload_at = block_at + int(head_bytes)
                after = block_at + int(size_bytes)
                if not block_at <= payload_at <= after:
                    raise ProtocolError
                if after + 2 > end:
                    self._needed_bytes = after + 2 - at
                    return False
                at = after + 2
                block, payload = data[block_at:payload_at], data[payload_at:after]
                on_message(int(number), subject, reply, block, payload)
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


def _parts(words: list[bytes]) -> tuple[bytes, bytes, bytes, bytes, bytes]:
    """Return the subject, the subscription, the reply subject, the size of the headers, and the
    whole size, from `MSG subject number [reply] size` or `HMSG subject number [reply] head size`.
    """
    kind, subject, number, *optional, size_bytes = words
    head_bytes = optional.pop() if kind == b"HMSG" else b"0"
    if len(optional) > 1:
        raise ProtocolError
    return subject, number, optional[0] if optional else b"", head_bytes, size_bytes


def _more_than(held_bytes: int) -> int:
    if held_bytes > MAX_LINE_BYTES:
        raise ProtocolError
    return held_bytes + 1


# The characters that the name of a header may have: printable ASCII without separators (RFC 7230).
_NAME = re.compile(r"[!#$%&'*+\-.^_`|~0-9A-Za-z]+")
_NEWLINES = str.maketrans({"\r": " ", "\n": " "})
_SPACE = re.compile(r"[ \t\r\n]")


def publication(
    subject: str, reply: str, payload: bytes, headers: Mapping[str, str] | bytes | None
) -> bytes:
    """Return the command that publishes a message.

    `headers` may be lines that are encoded already (see `messages.header_lines`). A subject with a
    space or a newline, which the server would take for another command, is a BadSubjectError; a
    header's name with other characters than HTTP allows is a BadHeaderError.
    """
    if not subject or _SPACE.search(subject) or _SPACE.search(reply):
        raise BadSubjectError
    if not headers:
        return b"PUB %b %b %d\r\n%b\r\n" % (subject.encode(), reply.encode(), len(payload), payload)
    block = b"NATS/1.0\r\n%b\r\n" % headers if isinstance(headers, bytes) else header_block(headers)
    size = len(block)
    return b"HPUB %b %b %d %d\r\n%b%b\r\n" % (
        *(subject.encode(), reply.encode(), size, size + len(payload)),
        *(block, payload),
    )


def header_block(headers: Mapping[str, str]) -> bytes:
    """Return the headers as they are sent. A newline in a value becomes a space."""
    lines = [f"{_checked(name)}: {value}" for name, value in headers.items()]
    text = "\r\n".join(("NATS/1.0", *lines, "", ""))
    ends = len(lines) + 2
    if text.count("\n") != ends or text.count("\r") != ends:
        clean = {name: value.translate(_NEWLINES) for name, value in headers.items()}
        return header_block(clean)
    return text.encode()


@lru_cache(1024)
def _checked(name: str) -> str:
    if not _NAME.fullmatch(name):
        raise BadHeaderError(name)
    return name


def subscription(subject: str, queue: str, number: int) -> bytes:
    """Return the command that subscribes; each message of the subscription carries `number`."""
    if not subject or _SPACE.search(subject) or _SPACE.search(queue):
        raise BadSubjectError
    return f"SUB {subject} {queue} {number}\r\n".encode()


def end_of_subscription(number: int) -> bytes:
    return f"UNSUB {number}\r\n".encode()
