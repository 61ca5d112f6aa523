"""Makes the views for ADK's clients, of agents of any protocol: one leg, or a whole run in the
events of the "Legacy Pattern" of adk-streaming.md."""

from __future__ import annotations

import re
import time
from dataclasses import dataclass, field, replace
from datetime import datetime
from functools import partial
from typing import Any, Final

import orjson

from penstock import sse
from penstock.bus.messages import RawFrame, now
from penstock.dialects.adk.encode import AdkEncoder
from penstock.dialects.adk.encode.legacy import LegacyEncoder
from penstock.dialects.adk.encode.shapes import failure_frame
from penstock.dialects.base import type_of
from penstock.redaction import redacted_value
from penstock.sse import Frame
from penstock_edge.views.encoded_leg import LegForm
from penstock_edge.views.framing import Sse
from penstock_edge.views.items import EventEncoding, Item
from penstock_edge.views.trees import TreeViews
from penstock_edge.views.upstream_frames import INTERRUPTED, RelayedLeg, relayed_leg_view
from penstock_edge.views.view import ReadFrom, RunEvents, View

HEADERS: Final = {"cache-control": "no-cache"}  # adk-streaming.md has exactly this value
# Matches the beginning of an ADK error frame. ADK up to 1.22 does not escape the text of an error
# frame, so the whole frame may not be valid JSON. Therefore only the beginning is compared.
_UPSTREAM_ERROR = re.compile(rb'\s*\{\s*"error"\s*:')


@dataclass(slots=True)
class UpstreamLeg(RelayedLeg):
    """Relays the body of one leg byte for byte.

    adk-streaming.md allows no additions, such as ids or comments, but one error frame at the end,
    which tells why the leg was interrupted, and begins at a frame boundary. If the agent server's
    last frame is an error frame, the edge adds none.
    """

    timeout_s: float
    hosts: tuple[str, ...] = ()  # the agent server's hosts, which the error frame must not name
    _parser: sse.Parser | None = field(default_factory=sse.Parser)
    _connection: str = ""
    _last_frame: bytes = b""

    def run_ended(self, event: dict[str, Any]) -> list[bytes]:
        error = {
            "lifecycle.failed": event["data"].get("error", "The run failed"),
            "lifecycle.cancelled": "The run was cancelled",
        }.get(type_of(event))
        return self._error({"error": error}, event["timestamp"]) if error else []

    def relayed(self, raw: RawFrame) -> list[bytes]:
        boundary = self._boundary(raw.connection)
        self._follow(raw.payload)
        return [boundary + raw.payload]

    def marked(self, raw: RawFrame) -> Item:
        frames: list[bytes] = []
        if raw.kind == "lost":
            frames = self._error(orjson.loads(raw.payload), raw.received)
        elif raw.kind == "end" and orjson.loads(raw.payload or b"{}").get("outcome") == "cancelled":
            frames = self._error({"error": "The run was cancelled"}, raw.received)
        return Item(raw.sequence, frames, last=raw.kind in ("lost", "end"))

    def interruption(self) -> list[bytes]:
        # A client has no cursor, and would conclude without an error that the run has succeeded.
        return self._error({"error": INTERRUPTED}, now())

    def _boundary(self, connection: str) -> bytes:
        """Return an empty line if an earlier connection broke inside a frame."""
        if connection == self._connection:
            return b""
        is_half = self._connection and self._parser is not None and not self._parser.is_at_boundary
        self._connection = connection
        if not is_half:
            return b""
        self._parser = sse.Parser()
        return b"\n\n"

    def _follow(self, payload: bytes) -> None:
        if self._parser is None:
            return
        try:
            frames = self._parser.feed(payload)
        except sse.FrameTooLarge:
            self._parser = None
            return
        if frames:
            self._last_frame = frames[-1].data

    def _error(self, failure: dict[str, Any], at: str) -> list[bytes]:
        at_boundary = self._parser is not None and self._parser.is_at_boundary
        if at_boundary and _UPSTREAM_ERROR.match(self._last_frame):
            return []
        at_s = datetime.fromisoformat(at).timestamp()
        body = redacted_value(failure_frame(failure, self.timeout_s, at_s), self.hosts)
        frame = sse.encode(orjson.dumps(body))
        return [frame if at_boundary else b"\n\n" + frame]


def upstream_leg_view(run_id: str, leg: int, timeout_s: float, hosts: tuple[str, ...] = ()) -> View:
    """Return the view of an ADK server's bytes. If the leg fails, it adds an error frame, which
    names `timeout_s` after a timeout, and never the agent server's `hosts`."""
    encoding = partial(UpstreamLeg, leg, timeout_s, hosts)
    return replace(relayed_leg_view("adk", run_id, leg, encoding), headers=HEADERS)


def leg_form(timeout_s: float, *, streaming: bool) -> LegForm[AdkEncoder]:
    """Return the form of a leg in ADK's events. `streaming` is the field of the client's
    request."""

    def interrupted(encoder: AdkEncoder) -> list[bytes]:
        failure = failure_frame({"error": INTERRUPTED}, timeout_s, time.time())
        return [sse.encode(orjson.dumps(failure))]

    return LegForm(
        (f"streaming={streaming}",),
        "adk",
        partial(AdkEncoder, streaming, timeout_s),
        _without_id,
        interrupted,
        headers=HEADERS,
    )


def legacy_view(run_id: str, tree: TreeViews | None) -> View:
    """Return the view of a whole run, with cursors. None of the three event types is a warning, so
    a notice is an SSE comment. `tree` has the events of a workflow's run."""
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
    return sse.encode(frame.data)
