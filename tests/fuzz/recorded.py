"""What real servers sent: the stuff that hostile streams are made of."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import orjson

from penstock.sse import Parser

GOLDEN = Path(__file__).parent.parent / "golden"

Named = tuple[str | None, Any]


@dataclass(frozen=True)
class Recorded:
    """One protocol's recordings. `kinds`: their frames, those that have the same keys together.

    A frame is its name and its JSON.
    """

    bodies: Sequence[bytes]
    kinds: Sequence[Sequence[Named]]


@cache
def recorded(protocol: str) -> Recorded:
    """Every stream in `tests/golden/<protocol>`."""
    paths = sorted((GOLDEN / protocol).rglob("*.sse"))
    assert paths, f"no recordings in tests/golden/{protocol}: a decoder needs some"
    bodies = [path.read_bytes() for path in paths]
    kinds: dict[tuple[str | None, str, tuple[str, ...]], list[Named]] = {}
    for body in bodies:
        for frame in Parser().feed(body):
            try:
                value = orjson.loads(frame.data)
            except ValueError:
                continue  # the whole body has it
            kind = frame.event, str(value.get("type")), tuple(sorted(value))
            kinds.setdefault(kind, []).append((frame.event, value))
    return Recorded(bodies, list(kinds.values()))
