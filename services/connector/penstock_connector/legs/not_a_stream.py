"""An answer with a 2xx status that is no event stream: JSON, a page, a text. Pure.

Its beginning is kept, so that the run's failure can say what came and what to look at.
"""

from __future__ import annotations

from typing import Final

# Of an answer that is no stream no more than this is read, and stored as it came.
MAX_BYTES: Final = 256 * 1024
MAX_SHOWN_CHARACTERS: Final = 1000

_STREAM: Final = "text/event-stream"
_FIELDS: Final = (b"data:", b"event:", b"retry:", b"id:", b":")
_LONGEST_FIELD: Final = max(map(len, _FIELDS))
_BLANK: Final = b"\xef\xbb\xbf \t\r\n"  # a byte order mark, and white space


class Beginning:
    """Tells by its type and its first bytes whether a body is an event stream.

    One that says that it is, or says nothing, is taken for one unless it begins as JSON or as a
    page does. One that says that it is something else is a stream only if it begins like one.
    """

    def __init__(self, content_type: str) -> None:
        self.media_type = content_type.partition(";")[0].strip().lower()
        self._claims = self.media_type in (_STREAM, "")
        self._is_stream: bool | None = None
        self._kept = b""

    @property
    def is_other(self) -> bool:
        """Whether it is known by now to be no stream."""
        return self._is_stream is False

    def feed(self, chunk: bytes) -> None:
        """Some more of the body."""
        if self._is_stream:
            return
        self._kept += chunk[: MAX_BYTES - len(self._kept)]
        if self._is_stream is None:
            self._is_stream = self._judged(self._kept.lstrip(_BLANK))
            if self._is_stream:
                self._kept = b""

    def end(self) -> None:
        """The body is over: what says that it is no stream, and is too short to tell, is none."""
        if self._is_stream is None:
            self._is_stream = self._claims

    def error(self, status_code: int, protocol: str, url: str) -> str:
        """What came, and what to look at."""
        said = self.detail
        called = f"with {self.media_type}" if self.media_type else "without a content type"
        if self.media_type == _STREAM:
            called = f"with what it calls {_STREAM} and is none"
        text = (
            f"the agent server answered {status_code} {called} where an event stream "
            f"({_STREAM}) was expected: {self._advice(said.lstrip()[:1], protocol, url)}"
        )
        return f"{text}. It said: {said}" if said else f"{text}. The answer was empty"

    @property
    def detail(self) -> str:
        """The beginning of it."""
        return self._kept.decode("utf-8", "replace")[:MAX_SHOWN_CHARACTERS]

    def _judged(self, first: bytes) -> bool | None:
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
