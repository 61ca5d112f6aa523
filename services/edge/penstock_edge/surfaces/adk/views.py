"""Makes the views for ADK's clients: one leg in ADK's events, or a whole run in the legacy events.

The legacy events are those of the "Legacy Pattern" of adk-streaming.md. The agent may have any
protocol.
"""

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
from penstock_edge.views.trees import TreeViews
from penstock_edge.views.upstream_frames import INTERRUPTED
from penstock_edge.views.view import Delivery, ReadFrom, RunEvents, View


def encoded_leg(leg: int, timeout_s: float, *, streaming: bool) -> EncodedLeg:
    """Return the encoding of one leg.

    `timeout_s` is the agent's timeout, which the text of an error frame names.
    """
    return EncodedLeg(
        AdkEncoder(streaming, timeout_s), leg, _without_id, partial(_interrupted, timeout_s)
    )


def encoded_leg_view(run_id: str, leg: int, timeout_s: float, *, streaming: bool) -> View:
    """Return the view of one leg of an agent that is not an ADK agent.

    `streaming` is the field `streaming` of the client's request.
    """
    return View(
        (run_id, "adk", str(leg), f"streaming={streaming}"),
        "adk",
        RunEvents(run_id),
        partial(encoded_leg, leg, timeout_s, streaming=streaming),
        lambda code, message: b"",
        ReadFrom.START,  # the ids and the state in the frames depend on earlier events
        VERBATIM_SSE,
        Delivery.ONCE,
    )


def tree_leg_view(trees: TreeViews, timeout_s: float, after: int, *, streaming: bool) -> View:
    """Return the view of a leg of a workflow's run; see `TreeViews.leg` and `encoded_leg_view`."""
    return trees.leg(
        (f"streaming={streaming}",),
        "adk",
        partial(AdkEncoder, streaming, timeout_s),
        VERBATIM_SSE,
        _without_id,
        partial(_interrupted, timeout_s),
        after,
    )


def legacy_tree_view(trees: TreeViews) -> View:
    """Return the view of a workflow's run in the legacy events; see `legacy_view`."""
    return trees.encoded(
        "legacy", LegacyEncoder, Sse(), lambda code, message: sse.comment(f"{code}: {message}")
    )


def legacy_view(run_id: str) -> View:
    """Return the view of a whole run in the three event types of the legacy pattern.

    Each frame has a cursor.
    """
    return View(
        (run_id, "legacy"),
        "legacy",
        RunEvents(run_id),
        lambda: EventEncoding(LegacyEncoder(), Sse().event),
        # None of the three event types is a warning, so a notice is an SSE comment.
        lambda code, message: sse.comment(f"{code}: {message}"),
        ReadFrom.START,
    )


def _without_id(frame: Frame, cursor: str) -> bytes:
    """Encode the frame without an id, because frames of adk-streaming.md have no ids."""
    return sse.encode(frame.data)


def _interrupted(timeout_s: float) -> list[bytes]:
    failure = failure_frame({"error": INTERRUPTED}, timeout_s, time.time())
    return [sse.encode(orjson.dumps(failure))]
