"""Writes canonical events as frames.

A frame has `event: category.action` and the envelope as `data`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from penstock.dialects.base import ClientDialect, JsonObject, frame, type_of
from penstock.sse import Frame


@dataclass(slots=True)
class CanonicalEncoder:
    """Encodes each event into one frame with the complete envelope. Keeps no state."""

    def feed(self, event: JsonObject) -> Sequence[Frame]:
        return (frame(event, type_of(event)),)


DIALECT: Final = ClientDialect(CanonicalEncoder, unchanged=True)
