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
from penstock_edge.views.encoded_leg import LegForm
from penstock_edge.views.framing import Sse
from penstock_edge.views.items import EventEncoding
from penstock_edge.views.trees import TreeViews
from penstock_edge.views.upstream_frames import INTERRUPTED
from penstock_edge.views.view import ReadFrom, RunEvents, View


def leg_form(timeout_s: float, *, streaming: bool) -> LegForm[AdkEncoder]:
    """Return the form of a leg in ADK's events; error frames name the agent's `timeout_s`.

    `streaming` is the field `streaming` of the client's request.
    """

    def interrupted(encoder: AdkEncoder) -> list[bytes]:
        failure = failure_frame({"error": INTERRUPTED}, timeout_s, time.time())
        return [sse.encode(orjson.dumps(failure))]

    return LegForm(
        (f"streaming={streaming}",),
        "adk",
        partial(AdkEncoder, streaming, timeout_s),
        _without_id,
        interrupted,
    )


def legacy_view(run_id: str, tree: TreeViews | None) -> View:
    """Return the view of a whole run in the three event types of the legacy pattern.

    Each frame has a cursor. None of the three event types is a warning, so a notice is an SSE
    comment. `tree` has the events of a workflow's run.
    """
    if tree is not None:
        return tree.encoded("legacy", LegacyEncoder, Sse(), _comment)
    return View(
        (run_id, "legacy"),
        "legacy",
        RunEvents(run_id),
        lambda: EventEncoding(LegacyEncoder(), Sse().event),
        _comment,
        ReadFrom.START,
    )


def _comment(code: str, message: str) -> bytes:
    return sse.comment(f"{code}: {message}")


def _without_id(frame: Frame, cursor: str) -> bytes:
    """Encode the frame without an id, because frames of adk-streaming.md have no ids."""
    return sse.encode(frame.data)
