"""Encode a hostile run in every dialect, and check the frames."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable
from typing import Any

import orjson

from penstock import sse
from penstock.dialects.base import Encoder
from penstock.dialects.encoders import CLIENT_DIALECTS
from penstock.sse import Frame, Parser
from penstock_conformance.protocols import agui_rules
from support.drive import agui_out

AUDIENCES = {str(audience): audience for audience in agui_out.AUDIENCES}
SPOKEN: dict[str, Callable[[], Encoder]] = {
    **{name: dialect.encoder for name, dialect in CLIENT_DIALECTS.items()},
    **{name: audience.encoder for name, audience in AUDIENCES.items()},
}


def speak(rng: random.Random, events: list[dict[str, Any]]) -> None:
    """Encode these envelopes in one dialect, drawn at random, and check the frames."""
    name = rng.choice(sorted(SPOKEN))
    frames = tell(name, events)
    if name in AUDIENCES:
        told = [orjson.loads(frame.data) for frame in frames]
        faults = agui_rules.faults(told, old=AUDIENCES[name].client == "0.0.59")
        assert not faults, f"{name}: {faults[:3]}"


def tell(name: str, events: Iterable[dict[str, Any]]) -> list[Frame]:
    """Encode the events, check the frames, and return them.

    Each frame must read back unchanged and hold a JSON object on one line.
    """
    encoder = SPOKEN[name]()
    frames: list[Frame] = []
    for event in events:
        before = orjson.dumps(event)
        frames += encoder.feed(event)
        assert orjson.dumps(event) == before, f"{name} changes what it is given"
    wire = b"".join(sse.encode(frame.data, event=frame.event) for frame in frames)
    read = Parser().feed(wire)
    assert [(f.event, f.data) for f in read] == [(f.event, f.data) for f in frames], name
    assert all(isinstance(orjson.loads(frame.data), dict) for frame in frames), name
    return frames
