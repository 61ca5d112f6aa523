"""Builds the commands that a client sends to a NATS server. Pure."""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import lru_cache

from nats.errors import BadHeaderError, BadSubjectError

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
