"""Derives W3C trace contexts, in the form of the header `traceparent`. Pure, except for random ids.

The id of a span is derived from the things that the span is about, such as a run's id. So every
process can compute the ids of parent spans that another process records. And a process that repeats
the work of a killed process records the same span.
"""

from __future__ import annotations

import hashlib
import re
import secrets
from dataclasses import dataclass
from typing import Final

SAMPLED: Final = 1  # the flag that asks all services of the trace to record their spans

_VALID: Final = re.compile(
    r"(?!ff)[0-9a-f]{2}-(?!0{32})([0-9a-f]{32})-(?!0{16})([0-9a-f]{16})-([0-9a-f]{2})"
)


@dataclass(frozen=True, slots=True)
class TraceContext:
    """The ids of a trace and a span, in hexadecimal; the flags say whether the span is sampled."""

    trace_id: str
    span_id: str
    flags: int

    def __str__(self) -> str:
        return f"00-{self.trace_id}-{self.span_id}-{self.flags:02x}"


def parse(traceparent: str | None) -> TraceContext | None:
    """Parse a `traceparent`; return None if the text is missing or invalid."""
    found = _VALID.fullmatch(traceparent) if traceparent is not None else None
    return TraceContext(found[1], found[2], int(found[3], 16)) if found is not None else None


def child(traceparent: str, *about: object) -> str:
    """Return the `traceparent` of the span about these things, in the trace of a valid one."""
    context = parse(traceparent)
    assert context is not None, "the caller has checked the traceparent"
    return str(TraceContext(context.trace_id, _hex(about, 8), context.flags))


def derived_trace_id(*about: object) -> str:
    return _hex(about, 16)


def random_context(flags: int) -> TraceContext:
    return TraceContext(secrets.token_hex(16), secrets.token_hex(8), flags)


def _hex(about: tuple[object, ...], size: int) -> str:
    """Return a digest of `size` bytes in hexadecimal, never all zeros, which are no valid id."""
    digest = hashlib.sha256("\0".join(map(str, about)).encode()).digest()
    return (digest[:size] if any(digest[:size]) else b"\1" * size).hex()
