"""One leg of a run in a client's dialect; the ADK, Agno and AG-UI surfaces stream it. Pure."""

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
    """Canonical events as frames of one leg: from its first event to its pause or the run's end.

    Events of earlier legs are folded into the encoder, and nothing is written for them. Where a
    policy decides at once, the run is not paused, so the stream continues with the next leg.

    `interrupted` returns the frames that end a stream too early. These clients have no cursor, and
    take an end without such a frame for success.
    """

    encoder: Encoder
    leg: int
    render: Render
    interrupted: Callable[[], list[bytes]]

    def feed(self, stored: Stored) -> Item:
        """The frames of one event.

        Raises:
            ValueError, KeyError, TypeError: the body is not an event.
        """
        event = orjson.loads(stored.payload)
        frames = self.encoder.feed(event)
        if is_before(event, stored, self.leg):
            return Item(stored.sequence, [])
        body = rendered(frames, stored.sequence, self.render)
        return Item(stored.sequence, body, last=ends_leg(stored))

    def interruption(self) -> list[bytes]:
        """The frames that say that the stream ends before the leg."""
        return self.interrupted()


def is_before(event: dict[str, Any], stored: Stored, leg: int) -> bool:
    """Whether the event belongs to an earlier leg.

    The end of the run belongs to every leg, because a run may end before this leg is opened.
    """
    return type_of(stored) not in TERMINAL and bool(event["leg"] < leg)


def ends_leg(stored: Stored) -> bool:
    """Whether the event is the pause after a leg, or the end of the run."""
    type = type_of(stored)
    return type in TERMINAL or type == PAUSED
