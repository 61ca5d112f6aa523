"""Detects a response with a 2xx status that is no event stream, for example JSON or HTML. Pure.

The beginning of such a response is kept, so that the run's error can show it and give advice.
"""

from __future__ import annotations

from typing import Final

# The most bytes that are read and stored if a response is no event stream.
MAX_BYTES: Final = 256 * 1024
# The number of characters of such a response that the run's error shows.
MAX_SHOWN_CHARACTERS: Final = 1000

_STREAM: Final = "text/event-stream"
_FIELDS: Final = (b"data:", b"event:", b"retry:", b"id:", b":")
_LONGEST_FIELD: Final = max(map(len, _FIELDS))
# the bytes that may come before the content: a byte order mark, and white space
_BLANK: Final = b"\xef\xbb\xbf \t\r\n"


class StreamDetector:
    """Decides by the content type and the first bytes whether a body is an event stream.

    A body with the content type of event streams, or without a content type, is a stream unless it
    begins like JSON or HTML. A body with another content type is a stream only if it begins like an
    event stream.
    """

    def __init__(self, content_type: str) -> None:
        self.media_type = content_type.partition(";")[0].strip().lower()
        self._claims = self.media_type in (_STREAM, "")
        self._is_stream: bool | None = None
        self._kept = b""

    @property
    def is_other(self) -> bool:
        """Whether the body is certainly no event stream."""
        return self._is_stream is False

    def feed(self, chunk: bytes) -> None:
        """Add the next bytes of the body."""
        if self._is_stream:
            return
        self._kept += chunk[: MAX_BYTES - len(self._kept)]
        if self._is_stream is None:
            self._is_stream = self._decide(self._kept.lstrip(_BLANK))
            if self._is_stream:
                self._kept = b""

    def end(self) -> None:
        """Record the end of the body; if the body was too short for a decision, the content type
        decides."""
        if self._is_stream is None:
            self._is_stream = self._claims

    def error(self, status_code: int, protocol: str, url: str) -> str:
        """Return the error text: a description of the response, and advice on what to check."""
        detail = self.detail
        called = f"with {self.media_type}" if self.media_type else "without a content type"
        if self.media_type == _STREAM:
            called = f"with what it calls {_STREAM} and is none"
        text = (
            f"the agent server answered {status_code} {called} where an event stream "
            f"({_STREAM}) was expected: {self._advice(detail.lstrip()[:1], protocol, url)}"
        )
        return f"{text}. It said: {detail}" if detail else f"{text}. The answer was empty"

    @property
    def detail(self) -> str:
        """The beginning of the body as text."""
        return self._kept.decode("utf-8", "replace")[:MAX_SHOWN_CHARACTERS]

    def _decide(self, first: bytes) -> bool | None:
        if not first:
            return None
        if self._claims:
            return first[:1] not in (b"{", b"[", b"<")
        if first.startswith(_FIELDS):
            return True
        return None if len(first) < _LONGEST_FIELD and _may_become_a_field(first) else False

    @staticmethod
    def _advice(first: str, protocol: str, url: str) -> str:
        if first == "[":
            return (
                f"it looks like a list of events, as ADK's /run gives it; is {protocol!r} the "
                f"right protocol, and is {url} the address that streams?"
            )
        if first == "<":
            return f"it looks like a page for people; is {url} the agent server itself?"
        return f"is {protocol!r} the right protocol for the agent, and {url} its address?"


def _may_become_a_field(first: bytes) -> bool:
    return any(field.startswith(first) for field in _FIELDS)
