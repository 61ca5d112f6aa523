"""Runs as the clients of ADK read them, whatever the upstream speaks: one leg, or legacy events."""

from __future__ import annotations

import time
from functools import partial

import orjson

from penstock import sse
from penstock.dialects.adk.encode import AdkEncoder
from penstock.dialects.adk.encode.legacy import LegacyEncoder
from penstock.dialects.adk.encode.shapes import failure_frame
from penstock.sse import Frame
from penstock_edge.views.encoded_leg import EncodedLeg
from penstock_edge.views.framing import VERBATIM_SSE, Sse
from penstock_edge.views.items import EventEncoding
from penstock_edge.views.upstream_frames import INTERRUPTED
from penstock_edge.views.view import Delivery, ReadFrom, RunEvents, View


def encoded_leg(leg: int, timeout_s: float, *, streaming: bool) -> EncodedLeg:
    """The encoding of one leg; `timeout_s` is the agent's, for the text of an error frame."""
    return EncodedLeg(
        AdkEncoder(streaming, timeout_s), leg, _without_id, partial(_interrupted, timeout_s)
    )


def encoded_leg_view(run_id: str, leg: int, timeout_s: float, *, streaming: bool) -> View:
    """One leg of an agent that is no ADK agent; `streaming` is the request's."""
    return View(
        (run_id, "adk", str(leg), f"streaming={streaming}"),
        "adk",
        RunEvents(run_id),
        partial(encoded_leg, leg, timeout_s, streaming=streaming),
        lambda code, message: b"",
        ReadFrom.START,  # ids and state depend on the earlier events
        VERBATIM_SSE,
        Delivery.ONCE,
    )


def legacy_view(run_id: str) -> View:
    """A whole run in the legacy pair's three event types, each frame with its cursor."""
    return View(
        (run_id, "legacy"),
        "legacy",
        RunEvents(run_id),
        lambda: EventEncoding(LegacyEncoder(), Sse().event),
        # none of the three event types is a warning
        lambda code, message: sse.comment(f"{code}: {message}"),
        ReadFrom.START,
    )


def _without_id(frame: Frame, id: str) -> bytes:
    """adk-streaming.md: frames have no ids."""
    return sse.encode(frame.data)


def _interrupted(timeout_s: float) -> list[bytes]:
    failure = failure_frame({"error": INTERRUPTED}, timeout_s, time.time())
    return [sse.encode(orjson.dumps(failure))]
