"""Defines a message as it comes from the server, with headers that are parsed only where read."""

from __future__ import annotations

from penstock.bus.messages import Stored

_PREFIX_BYTES = len(b"NATS/1.0")


class Incoming:
    """A message that a listener gets."""

    __slots__ = ("_headers", "block", "data", "reply", "subject")

    def __init__(self, subject: str, reply: str, block: bytes, data: bytes) -> None:
        self.subject = subject
        self.reply = reply
        self.data = data
        self.block = block
        self._headers: dict[str, str] | None = None

    @property
    def headers(self) -> dict[str, str]:
        """The headers; empty without any. A status line is in `Status` and `Description`."""
        if self._headers is None:
            self._headers = fields(self.block) if self.block else {}
        return self._headers

    @property
    def has_status(self) -> bool:
        """True for a message of the server itself, with a status instead of headers."""
        return self.block[_PREFIX_BYTES : _PREFIX_BYTES + 1] == b" "

    def field(self, name: str) -> str:
        """Return one header; empty if it is not there. The other headers are not parsed."""
        begin = self.block.find(b"\r\n%b:" % name.encode())
        if begin < 0:
            return ""
        begin += len(name) + 3
        return self.block[begin : self.block.find(b"\r\n", begin)].strip().decode()

    def stored(self) -> Stored:
        """Return the stored message that this answer to a direct get contains.

        Raises:
            KeyError, ValueError: the message is no such answer.
        """
        headers = fields(self.block)
        return Stored(headers["Nats-Subject"], int(headers["Nats-Sequence"]), headers, self.data)


def fields(block: bytes) -> dict[str, str]:
    """Return the headers of a header block, which begins with `NATS/1.0` and a status or nothing.

    Splitting lines takes 2 µs for an event; nats-py's own function takes 16 µs.
    """
    text = block.decode("utf-8", "replace")
    first, _, rest = text.partition("\r\n")
    found: dict[str, str] = {}
    if len(first) > _PREFIX_BYTES:
        status, _, description = first[_PREFIX_BYTES:].strip().partition(" ")
        if status.isdigit():
            found["Status"] = status
        if description:
            found["Description"] = description.strip()
    for line in rest.split("\r\n"):
        name, colon, value = line.partition(":")
        if colon:
            found[name.strip()] = value.strip()
    return found
