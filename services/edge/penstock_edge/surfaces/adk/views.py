"""Runs as ADK's clients see them, whatever their upstream speaks: one leg, or the legacy events."""

from __future__ import annotations

import time
from dataclasses import dataclass

import orjson

from penstock import sse
from penstock.bus import Stored
from penstock.bus.read.follow import events
from penstock.dialects.adk.encode import AdkEncoder
from penstock.dialects.adk.encode.legacy import LegacyEncoder
from penstock.dialects.adk.encode.shapes import failure_frame
from penstock.events.catalogue import TERMINAL
from penstock_edge.views.dialects import View
from penstock_edge.views.framing import Sse
from penstock_edge.views.items import Encoding, EventEncoding, Item, type_of
from penstock_edge.views.upstream_frames import INTERRUPTED


@dataclass(slots=True)
class EncodedLeg(Encoding):
    """Canonical events as ADK's: one leg of them, to its pause or the run's end.

    adk-streaming.md: no ids and no comments. A leg that a policy goes on from by itself was never
    paused, so the next one follows.
    """

    encoder: AdkEncoder
    leg: int

    def feed(self, stored: Stored) -> Item:
        """Raises ValueError, KeyError or TypeError on a body that is no event."""
        event = orjson.loads(stored.payload)
        frames = self.encoder.feed(event)
        type = type_of(stored)
        # a run may end before its leg was opened
        if type not in TERMINAL and event["leg"] < self.leg:
            return Item(stored.sequence, [])
        told = [sse.encode(frame.data) for frame in frames]
        return Item(stored.sequence, told, type in TERMINAL or type == "lifecycle.paused")

    def cut(self) -> list[bytes]:
        """An error frame: there is no cursor here, and a clean end would look like success."""
        told = failure_frame({"error": INTERRUPTED}, self.encoder.timeout_s, time.time())
        return [sse.encode(orjson.dumps(told))]


def encoded_leg_view(run_id: str, leg: int, timeout_s: float, *, streaming: bool) -> View:
    """One leg of an agent that is no ADK agent; `streaming` is the request's."""
    return View(
        (run_id, "adk", str(leg), f"streaming={streaming}"),
        run_id,
        "adk",
        events(run_id),
        lambda: EncodedLeg(AdkEncoder(streaming, timeout_s), leg),
        lambda code, message: b"",
        # ids and state depend on what was said before
        stateful=True,
        droppable=False,
    )


def legacy_view(run_id: str) -> View:
    """A whole run in the legacy pair's three event types, each frame with its cursor."""
    return View(
        (run_id, "legacy"),
        run_id,
        "legacy",
        events(run_id),
        lambda: EventEncoding(LegacyEncoder(), Sse().event),
        # none of the three types is for this
        lambda code, message: sse.comment(f"{code}: {message}"),
        stateful=True,
    )
