"""Makes the stream of Agno's `/resume`: a run's events after one of them, as AgentOS 3 sends them
(decision 0411). Pure.

Agno's clients count with `event_index`, the number of an event in its run. The events of an Agno
server in the background have it already. Those of other agents, and those of an Agno server that
does not number them, are numbered by their place.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Final

import orjson

from penstock import sse
from penstock.bus.messages import RawFrame
from penstock.settings import AgentConfig
from penstock_edge.surfaces.agno.views import (
    EdgeFrames,
    NumberedEncoder,
    UpstreamLeg,
    numbered,
    stream_form,
)
from penstock_edge.views.encoded_leg import LegForm
from penstock_edge.views.framing import Sse
from penstock_edge.views.items import Item
from penstock_edge.views.upstream_frames import INTERRUPTED, event_name, relayed_leg_view
from penstock_edge.views.view import View

# What an Agno server says of a stream that the connector has resumed.
NOTES: Final = frozenset({"replay", "catch_up", "subscribed"})
_PAUSES: Final = frozenset({"RunPaused", "TeamRunPaused", "WorkflowPaused", "WorkflowRunOutput"})


def preface(run_id: str, status: str | None, after: int) -> bytes:
    """Return what comes before the events. `status` is that of a run that has ended or waits. How
    many events follow is left out, because they are not read before."""
    if status is None:
        return _note("catch_up", run_id, "running", f"Catching up on the events after {after}.")
    text = f"Run {status}. Replaying the events after {after}."
    return _note("replay", run_id, status, text, last_event_index_requested=after)


def _note(name: str, run_id: str, status: str, message: str, **more: int) -> bytes:
    note = {"event": name, "run_id": run_id, "status": status, "message": message, **more}
    return sse.encode(orjson.dumps(note), event=name)


def _interrupted() -> bytes:
    """AgentOS ends a stream that it cannot continue with such a frame."""
    return sse.encode(orjson.dumps({"event": "error", "error": INTERRUPTED}), event="error")


@dataclass(frozen=True, slots=True)
class _Resumed(Sse):
    """Marks the end of the stored events as AgentOS does."""

    run_id: str = ""

    @property
    def live_marker(self) -> bytes:
        return _note("subscribed", self.run_id, "running", "Subscribed. Receiving live events.")


def encoded_form(edge: EdgeFrames, after: int) -> LegForm[NumberedEncoder]:
    def render(frame: sse.Frame, cursor: str) -> bytes:
        return sse.encode(frame.data, event=frame.event) if int(frame.id or 0) > after else b""

    return replace(
        stream_form(edge),
        key=("events", f"after {after}"),
        render=render,
        interrupted=lambda encoder: [_interrupted()],
        framing=_Resumed(run_id=edge.run_id),
    )


@dataclass(slots=True)
class UpstreamRun(UpstreamLeg):
    """Writes the events of an Agno server after the number `after`, of all legs up to this one."""

    after: int = -1
    _index: int = -1  # of the last event, whether or not it was written

    def has_leg(self, leg: int) -> bool:
        return leg <= self.leg

    def run_ended(self, event: dict[str, Any]) -> list[bytes]:
        # A run may end while it waits: the event of its pause is then not that of its end.
        return [] if self._end and self._end not in _PAUSES else self.edge.of(event)

    def relayed(self, raw: RawFrame) -> list[bytes]:
        frames = sse.Parser().feed(self._complete_frames(raw))
        return [body for frame in frames for body in self._written(frame)]

    def marked(self, raw: RawFrame) -> Item:
        item = UpstreamLeg.marked(self, raw)  # `super()` fails, since `slots=True` makes a class
        item.last = item.last and raw.leg == self.leg
        if raw.kind == "open":
            self._end = ""
        return item

    def interruption(self) -> list[bytes]:
        return [_interrupted()]

    def _written(self, frame: sse.Frame) -> Iterator[bytes]:
        if frame.event in NOTES:
            return
        try:
            event = orjson.loads(frame.data)
        except orjson.JSONDecodeError:
            event = None
        data = frame.data
        if isinstance(event, dict) and event:
            own, self._index = event.get("event_index"), self._index + 1
            if isinstance(own, int):
                # A server that was restarted may count anew, but no client may miss an event.
                self._index = max(own, self._index)
            if "event_index" not in event:
                data = numbered(data, self._index)
            elif own != self._index:
                data = orjson.dumps({**event, "event_index": self._index})
        if self._index > self.after:
            yield sse.encode(data, event=event_name(frame))


def upstream_run_view(agent: AgentConfig, run_id: str, leg: int, after: int) -> View:
    """Return the view of the legs up to this one."""
    encoding = partial(UpstreamRun, leg, EdgeFrames(agent, run_id), after=after)
    view = relayed_leg_view("agno", run_id, leg, encoding)
    return replace(view, key=(*view.key, f"after {after}"), framing=_Resumed(run_id=run_id))
