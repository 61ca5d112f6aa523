"""What was sent to a server, and what came back. Pure."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from enum import Enum
from typing import Any

_LINE_END = re.compile(r"\r\n|\n|\r")


class User(Enum):
    """Who sends a request."""

    OWNER = "the owner"
    OTHER = "another user"
    NOBODY = "nobody"


class End(Enum):
    """How the body of an answer ended."""

    WHOLE = "whole"
    CUT = "cut"  # the connection broke within the body
    LATE = "late"  # the body had no end within the time limit
    LEFT = "left"  # the client left on purpose


@dataclass(frozen=True, slots=True)
class Request:
    """A request. `path` is below the server's address.

    The body is one of `body` (sent as JSON), `form` and `content` (sent as they are).
    """

    method: str
    path: str
    body: Any = None
    form: Mapping[str, str] | None = None
    content: bytes | None = None
    headers: Mapping[str, str] = field(default_factory=dict)
    user: User = User.OWNER

    def __str__(self) -> str:
        return f"{self.method} {self.path}"


def with_fields(request: Request, **fields: Any) -> Request:
    """Return the request with these fields of its body."""
    return replace(request, body={**request.body, **fields})


def without(request: Request, name: str) -> Request:
    """Return the request without this field of its body or form."""
    if request.form is not None:
        return replace(request, form={k: each for k, each in request.form.items() if k != name})
    return replace(request, body={k: each for k, each in request.body.items() if k != name})


@dataclass(frozen=True, slots=True)
class Frame:
    """One event of a stream. `value` is its data as JSON, None if the data is no JSON."""

    data: str
    event: str | None = None
    id: str | None = None
    at_s: float = 0.0  # seconds after the request
    value: Any = None

    @property
    def fields(self) -> Mapping[str, Any]:
        """The data as an object, empty if it is none."""
        return self.value if isinstance(self.value, dict) else {}


@dataclass(frozen=True, slots=True)
class Exchange:
    """A request and its answer. `headers` have names in lower case."""

    request: Request
    status: int
    headers: Mapping[str, str] = field(default_factory=dict)
    content: bytes = b""
    frames: tuple[Frame, ...] = ()
    end: End = End.WHOLE
    took_s: float = 0.0

    @property
    def value(self) -> Any:
        """The whole body as JSON, None if it is no JSON."""
        return parsed(self.content.decode(errors="replace"))

    @property
    def is_stream(self) -> bool:
        return self.headers.get("content-type", "").startswith("text/event-stream")

    def __str__(self) -> str:
        return f"{self.request} ({self.status}, {len(self.frames)} frames, {self.end.value})"


def parsed(text: str) -> Any:
    """Return the text as JSON, None if it is no JSON."""
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return None


class Frames:
    """Reads `text/event-stream` from pieces of text (WHATWG HTML, section 9.2)."""

    def __init__(self) -> None:
        self._rest = ""
        self._is_new = True
        self._fields: dict[str, Any] = {}

    def feed(self, text: str, at_s: float = 0.0) -> Iterator[Frame]:
        """Yield the frames that this piece completes."""
        text = self._rest + text
        if self._is_new and text:
            text, self._is_new = text.removeprefix("\ufeff"), False
        # A CR at the end may be the first half of a CRLF.
        held = text.endswith("\r")
        lines = _LINE_END.split(text[:-1] if held else text)
        self._rest = lines.pop() + "\r" * held
        for line in lines:
            if line:
                self._line(line)
            elif fields := self._take():
                data = "\n".join(fields["data"])
                yield Frame(data, fields.get("event"), fields.get("id"), at_s, parsed(data))

    def _line(self, line: str) -> None:
        name, _, value = line.partition(":")
        value = value.removeprefix(" ")
        if name == "data":
            self._fields.setdefault("data", []).append(value)
        elif name in ("event", "id"):
            self._fields[name] = value

    def _take(self) -> dict[str, Any]:
        fields, self._fields = self._fields, {}
        return fields if "data" in fields else {}
