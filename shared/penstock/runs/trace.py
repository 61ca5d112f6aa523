"""Keeps the W3C trace context: a run gets the `traceparent` of its request, or a new value."""

from __future__ import annotations

import re
import secrets
from contextvars import ContextVar
from typing import Final

_VALID: Final = re.compile(
    r"(?!ff)[0-9a-f]{2}-(?!0{32})[0-9a-f]{32}-(?!0{16})[0-9a-f]{16}-[0-9a-f]{2}"
)
_current: ContextVar[str | None] = ContextVar("traceparent", default=None)


def enter(header: str | None) -> None:
    """Remember the `traceparent` of this task's request; ignore an invalid header."""
    _current.set(header if header is not None and _VALID.fullmatch(header) else None)


def traceparent() -> str:
    """Return the `traceparent` of the request, else a new `traceparent` that is not sampled."""
    return _current.get() or f"00-{secrets.token_hex(16)}-{secrets.token_hex(8)}-00"
