"""Runs as Agno's clients read them: one leg as a stream, or the run so far as one object."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Final, NamedTuple

import orjson

from penstock import sse
from penstock.bus import Stored
from penstock.bus.messages import RawFrame, now, raw_frame
from penstock.dialects.agno.encode import AgnoEncoder
from penstock.dialects.agno.encode.complete import run_output
from penstock.settings import AgentConfig
from penstock_edge.views.encoded_leg import EncodedLeg, ends_leg, is_before
from penstock_edge.views.framing import NAMED_SSE, VERBATIM_SSE, Framing
from penstock_edge.views.items import Encoding, Item
from penstock_edge.views.upstream_frames import INTERRUPTED, is_raw
from penstock_edge.views.view import Delivery, ReadFrom, RunEvents, RunFrames, View

# The events that say how a leg has ended, by the kind of the agent.
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
    """The frames that the edge itself writes into an Agno stream, in the name of the agent."""

    agent: AgentConfig
    run_id: str

    def encoder(self) -> AgnoEncoder:
        """A new encoder for a run of this agent."""
        return AgnoEncoder(self.agent.kind, self.agent.name or "")

    def of(self, event: dict[str, Any]) -> list[bytes]:
        """The frames of one event alone."""
        encoder = self.encoder()
        started = {"category": "lifecycle", "action": "started"}
        encoder.feed({**event, "event": started, "data": {"agent": self.agent.id}})
        return [sse.encode(frame.data, event=frame.event) for frame in encoder.feed(event)]

    def interrupted(self) -> list[bytes]:
        """A RunError: these clients have no cursor, and take an end without one for success."""
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
    """The id of a session in JSON: the server's, which differs from the client's."""

    of_server: bytes
    of_client: bytes


@dataclass(slots=True)
class UpstreamLeg(Encoding):
    """One leg of an Agno upstream, byte for byte.

    Where the upstream has not said how the leg ended, the edge adds the end of the run. The rest of
    a frame that a broken connection left is dropped, because the upstream repeats that frame.
    """

    edge: EdgeFrames
    leg: int
    _parser: sse.Parser = field(default_factory=sse.Parser)
    _unfinished: bytes = b""  # the beginning of the next frame
    _connection: str = ""
    _end_seen: bool = False  # the upstream has said how the leg ended
    _session_id: SessionId | None = None

    def feed(self, stored: Stored) -> Item:
        """The bytes of one message.

        Raises:
            KeyError, ValueError: the message is not one of Penstock's.
        """
        if not is_raw(stored):
            frames = [] if self._end_seen else self.edge.of(orjson.loads(stored.payload))
            return Item(stored.sequence, frames, last=True)
        raw = raw_frame(stored)
        if raw.leg != self.leg:
            return Item(raw.sequence, [])
        if raw.is_body:
            complete = self._complete_frames(raw)
            return Item(raw.sequence, [complete] if complete else [])
        if raw.kind == "open":
            self._read_session_id(orjson.loads(raw.payload))
        # Where the connection broke before the end of the leg, the end of the run follows.
        return Item(raw.sequence, [], last=raw.kind in ("end", "lost") and self._end_seen)

    def interruption(self) -> list[bytes]:
        """A RunError."""
        return self.edge.interrupted()

    def _complete_frames(self, raw: RawFrame) -> bytes:
        """The bytes up to the end of the last complete frame."""
        if raw.connection != self._connection:
            self._parser, self._unfinished, self._connection = sse.Parser(), b"", raw.connection
        self._look_for_end(raw.payload)
        body = self._unfinished + raw.payload
        at = body.rfind(_FRAME_END)
        end = at + len(_FRAME_END) if at >= 0 else 0
        self._unfinished = body[end:]
        return body[:end].replace(*self._session_id) if self._session_id else body[:end]

    def _read_session_id(self, opened: dict[str, Any]) -> None:
        """A client continues the session by the id in these frames, so it must be the client's."""
        if "thread_id" in opened:
            of_client = orjson.dumps(opened["session_id"])[1:-1]
            self._session_id = SessionId(opened["thread_id"].encode(), of_client)

    def _look_for_end(self, payload: bytes) -> None:
        try:
            frames = self._parser.feed(payload)
        except sse.FrameTooLarge as error:
            self._parser, frames = sse.Parser(), error.frames
        names = ENDS[self.edge.agent.kind]
        # the stream also has the events of nested teams, which end with the same names
        self._end_seen = self._end_seen or any(
            frame.event in names and not _is_inner(frame.data) for frame in frames
        )


@dataclass(slots=True)
class Output(Encoding):
    """The whole run as one object, when the leg has ended."""

    edge: EdgeFrames
    leg: int
    _events: list[dict[str, Any]] = field(default_factory=list)

    def feed(self, stored: Stored) -> Item:
        """Nothing until the leg ends, then the object.

        Raises:
            ValueError, KeyError, TypeError: the body is not an event.
        """
        event = orjson.loads(stored.payload)
        self._events.append(event)
        if is_before(event, stored, self.leg) or not ends_leg(stored):
            return Item(stored.sequence, [])
        return Item(stored.sequence, self.interruption(), last=True)

    def interruption(self) -> list[bytes]:
        """The run so far; its status says that it has not ended."""
        return [orjson.dumps(run_output(self._events, self.edge.encoder()))]


def leg_view(agent: AgentConfig, run_id: str, leg: int) -> View:
    """One leg as a stream: an Agno upstream's own bytes, any other's events encoded."""
    edge = EdgeFrames(agent, run_id)
    if is_native(agent):
        return View(
            (run_id, "agno", "bytes", str(leg)),
            "agno",
            RunFrames(run_id),
            partial(UpstreamLeg, edge, leg),
            _no_notice,
            ReadFrom.START,
            VERBATIM_SSE,
            Delivery.ONCE,
        )
    return _encoded(run_id, leg, "events", partial(encoded_leg, edge, leg), NAMED_SSE)


def encoded_leg(edge: EdgeFrames, leg: int) -> EncodedLeg:
    """The encoding of one leg of an agent that is no Agno agent."""
    return EncodedLeg(edge.encoder(), leg, _without_id, edge.interrupted)


def output_view(agent: AgentConfig, run_id: str, leg: int) -> View:
    """The run as one object, when this leg is over."""
    encoding = partial(Output, EdgeFrames(agent, run_id), leg)
    return _encoded(run_id, leg, "output", encoding, VERBATIM_SSE)


def is_native(agent: AgentConfig) -> bool:
    """Whether the agent's server speaks Agno, so that its bytes are relayed."""
    return agent.protocol == "agno"


def _encoded(
    run_id: str, leg: int, form: str, encoding: Callable[[], Encoding], framing: Framing
) -> View:
    return View(
        (run_id, "agno", form, str(leg)),
        "agno",
        RunEvents(run_id),
        encoding,
        _no_notice,
        ReadFrom.START,
        framing,
        Delivery.ONCE,
    )


def _without_id(frame: sse.Frame, id: str) -> bytes:
    return sse.encode(frame.data, event=frame.event)


def _no_notice(code: str, message: str) -> bytes:
    return b""


def _is_inner(data: bytes) -> bool:
    """Whether the event belongs to a member of a team, or to a nested run."""
    try:
        body = orjson.loads(data)
    except orjson.JSONDecodeError:
        return True
    return not isinstance(body, dict) or bool(body.get("parent_run_id") or body.get("nested_depth"))
