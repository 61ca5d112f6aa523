"""Encodes one leg of a run in a dialect, for the ADK, Agno and AG-UI surfaces. Pure."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import orjson

from penstock.bus import Stored
from penstock.dialects.base import Encoder
from penstock.events.catalogue import TERMINAL
from penstock_edge.views.items import Encoding, Item, Render, rendered, type_of

PAUSED = "lifecycle.paused"


@dataclass(slots=True)
class EncodedLeg(Encoding):
    """Encodes the canonical events of one leg, up to the leg's pause or the run's end.

    Events of earlier legs change only the encoder's state; their frames are not written. If a
    policy decides an approval at once, the run does not pause. The stream then continues with the
    events of the next leg.

    `interrupted` returns the frames for a stream that ends before its leg does. The clients of such
    streams do not reconnect. If these frames were missing, a client would conclude that the run has
    succeeded.
    """

    encoder: Encoder
    leg: int
    render: Render
    interrupted: Callable[[], list[bytes]]

    def feed(self, stored: Stored) -> Item:
        event = orjson.loads(stored.payload)
        frames = self.encoder.feed(event)
        if is_before(event, stored, self.leg):
            return Item(stored.sequence, [])
        body = rendered(frames, stored.sequence, self.render)
        return Item(stored.sequence, body, last=ends_leg(stored))

    def interruption(self) -> list[bytes]:
        return self.interrupted()


def is_before(event: dict[str, Any], stored: Stored, leg: int) -> bool:
    """Return whether the event belongs to an earlier leg.

    The result is False for the run's terminal event, because a run may end before this leg begins.
    """
    return type_of(stored) not in TERMINAL and bool(event["leg"] < leg)


def ends_leg(stored: Stored) -> bool:
    """Return whether the event is the pause after a leg, or the run's terminal event."""
    event_type = type_of(stored)
    return event_type in TERMINAL or event_type == PAUSED
