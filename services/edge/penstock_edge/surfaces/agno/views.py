"""Makes the views for Agno's clients: one leg as a stream, or the run so far as one JSON object
(decision 0107)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Final, NamedTuple

import orjson

from penstock import sse
from penstock.bus.messages import RawFrame, now
from penstock.dialects.agno.encode import AgnoEncoder
from penstock.dialects.agno.encode.complete import run_output
from penstock.dialects.base import Encoder
from penstock.settings import AgentConfig
from penstock_edge.views.encoded_leg import LegForm, WholeLeg
from penstock_edge.views.framing import NAMED_SSE
from penstock_edge.views.items import Item
from penstock_edge.views.upstream_frames import INTERRUPTED, RelayedLeg, relayed_leg_view
from penstock_edge.views.view import View

# Maps the agent's kind to the names of the events that end a leg.
ENDS: Final = {
    "agent": frozenset({"RunCompleted", "RunPaused", "RunError", "RunCancelled"}),
    "team": frozenset({"TeamRunCompleted", "TeamRunPaused", "TeamRunError", "TeamRunCancelled"}),
    "workflow": frozenset(
        {
            "WorkflowCompleted",
            "WorkflowPaused",
            "WorkflowRunOutput",
            "WorkflowError",
            "WorkflowCancelled",
        }
    ),
}
_FRAME_END: Final = b"\n\n"


@dataclass(slots=True)
class EdgeFrames:
    """Makes the frames that the edge itself adds to an Agno stream."""

    agent: AgentConfig
    run_id: str

    def encoder(self) -> AgnoEncoder:
        return AgnoEncoder(self.agent.kind, self.agent.name or "")

    def of(self, event: dict[str, Any]) -> list[bytes]:
        """Know nothing of the run's earlier events."""
        encoder = self.encoder()
        started = {"category": "lifecycle", "action": "started"}
        encoder.feed({**event, "event": started, "data": {"agent": self.agent.id}})
        return [sse.encode(frame.data, event=frame.event) for frame in encoder.feed(event)]

    def interrupted(self) -> list[bytes]:
        """Agno's clients have no cursor: without a RunError, the run would seem to have
        succeeded."""
        return self.of(
            {
                "run_id": self.run_id,
                "timestamp": now(),
                "source": None,
                "event": {"category": "lifecycle", "action": "failed"},
                "data": {"error": INTERRUPTED, "error_type": "stream_interrupted"},
            }
        )


class SessionId(NamedTuple):
    """The two ids of one session as JSON."""

    of_server: bytes
    of_client: bytes


@dataclass(slots=True)
class UpstreamLeg(RelayedLeg):
    """Relays one leg of an Agno server byte for byte; adds the event that ends the run if the
    server sends none. If a connection breaks within a frame, the Agno server sends the whole frame
    again on the next one, so the beginning of such a frame is dropped."""

    edge: EdgeFrames
    _parser: sse.Parser = field(default_factory=sse.Parser)
    _unfinished: bytes = b""  # the beginning of a frame whose end has not come yet
    _connection: str = ""
    _end: str = ""  # the name of the event of the Agno server that has ended the leg
    _session_id: SessionId | None = None

    def run_ended(self, event: dict[str, Any]) -> list[bytes]:
        return [] if self._end else self.edge.of(event)

    def relayed(self, raw: RawFrame) -> list[bytes]:
        complete = self._complete_frames(raw)
        return [complete] if complete else []

    def marked(self, raw: RawFrame) -> Item:
        if raw.kind == "open":
            self._read_session_id(orjson.loads(raw.payload))
        # If no event has ended the leg, the run's terminal event still follows. So this item is
        # then not the last item of the stream.
        return Item(raw.sequence, [], last=raw.kind in ("end", "lost") and self._end != "")

    def interruption(self) -> list[bytes]:
        return self.edge.interrupted()

    def _complete_frames(self, raw: RawFrame) -> bytes:
        if raw.connection != self._connection:
            self._parser, self._unfinished, self._connection = sse.Parser(), b"", raw.connection
        self._look_for_end(raw.payload)
        body = self._unfinished + raw.payload
        at = body.rfind(_FRAME_END)
        end = at + len(_FRAME_END) if at >= 0 else 0
        self._unfinished = body[end:]
        return body[:end].replace(*self._session_id) if self._session_id else body[:end]

    def _read_session_id(self, opened: dict[str, Any]) -> None:
        # The client continues the session with the id in the frames, so they must have its own id.
        if "thread_id" in opened:
            of_client = orjson.dumps(opened["session_id"])[1:-1]
            self._session_id = SessionId(opened["thread_id"].encode(), of_client)

    def _look_for_end(self, payload: bytes) -> None:
        try:
            frames = self._parser.feed(payload)
        except sse.FrameTooLarge as error:
            self._parser, frames = sse.Parser(), error.frames
        names = ENDS[self.edge.agent.kind]
        # The stream also has the events of nested teams. The last event of a nested team has one of
        # these names, too, but it does not end the leg.
        for frame in frames:
            if frame.event in names and not _is_inner(frame.data):
                self._end = frame.event


@dataclass(slots=True)
class RunObject(Encoder):
    """Keeps the events of a run, which are written as one object."""

    edge: EdgeFrames
    _events: list[dict[str, Any]] = field(default_factory=list)

    def feed(self, event: dict[str, Any]) -> Sequence[sse.Frame]:
        self._events.append(event)
        return ()

    def so_far(self) -> bytes:
        return orjson.dumps(run_output(self._events, self.edge.encoder()))


def upstream_leg_view(agent: AgentConfig, run_id: str, leg: int) -> View:
    encoding = partial(UpstreamLeg, leg, EdgeFrames(agent, run_id))
    return relayed_leg_view("agno", run_id, leg, encoding)


@dataclass(slots=True)
class NumberedEncoder(Encoder):
    """Gives each event of a run its number, as Agno 3 does: a client asks for those after it."""

    encoder: AgnoEncoder
    _count: int = 0

    def feed(self, event: dict[str, Any]) -> Sequence[sse.Frame]:
        frames = self.encoder.feed(event)
        for frame in frames:
            frame.id, frame.data = f"{self._count}", numbered(frame.data, self._count)
            self._count += 1
        return frames


def numbered(data: bytes, index: int) -> bytes:
    return b'%b,"event_index":%d}' % (data.rstrip()[:-1], index)


def stream_form(edge: EdgeFrames) -> LegForm[NumberedEncoder]:
    return LegForm(
        ("events",),
        "agno",
        lambda: NumberedEncoder(edge.encoder()),
        lambda frame, cursor: sse.encode(frame.data, event=frame.event),
        lambda encoder: edge.interrupted(),
        NAMED_SSE,
    )


def object_form(edge: EdgeFrames) -> LegForm[WholeLeg[RunObject]]:
    return LegForm.of_object(("output",), "agno", partial(RunObject, edge), RunObject.so_far)


def is_native(agent: AgentConfig) -> bool:
    return agent.protocol == "agno"


def _is_inner(data: bytes) -> bool:
    try:
        body = orjson.loads(data)
    except orjson.JSONDecodeError:
        return True
    return not isinstance(body, dict) or bool(body.get("parent_run_id") or body.get("nested_depth"))
