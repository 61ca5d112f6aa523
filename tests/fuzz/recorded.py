"""Recorded streams of real servers, from which hostile streams are made."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import orjson

from penstock.dialects import workflow
from penstock.dialects.decoders import DECODERS
from penstock.sse import Parser

# The protocols of agent servers. The runs of workflows have no server, and nothing to decode.
PROTOCOLS = DECODERS.keys() - {workflow.PROTOCOL}
GOLDEN = Path(__file__).parent.parent / "golden"

Named = tuple[str | None, Any]


@dataclass(frozen=True)
class Recorded:
    """The recordings of one protocol.

    `kinds` groups the frames by their keys. A frame is its name and its JSON.
    """

    bodies: Sequence[bytes]
    kinds: Sequence[Sequence[Named]]


@cache
def recorded(protocol: str) -> Recorded:
    """Read every stream in `tests/golden/<protocol>`."""
    paths = sorted((GOLDEN / protocol).rglob("*.sse"))
    assert paths, f"no recordings in tests/golden/{protocol}: a decoder needs some"
    bodies = [path.read_bytes() for path in paths]
    kinds: dict[tuple[str | None, str, tuple[str, ...]], list[Named]] = {}
    for body in bodies:
        for frame in Parser().feed(body):
            try:
                value = orjson.loads(frame.data)
            except ValueError:
                continue  # `bodies` still has this frame
            kind = frame.event, str(value.get("type")), tuple(sorted(value))
            kinds.setdefault(kind, []).append((frame.event, value))
    return Recorded(bodies, list(kinds.values()))
