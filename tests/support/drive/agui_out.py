"""Helpers to encode for AG-UI clients: profiles by client, and a run made by hand."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

from penstock import sse
from penstock.dialects.agui.encode import RUNS, STRICT, AguiEncoder, Profile
from penstock.sse import Frame
from support.fakes.raw import RUN_ID
from support.recorded.canonical import every_recorded_run

Event = dict[str, Any]
THREAD = "thread-1"


def _run_id(leg: int) -> str:
    return f"run-{leg}"


@dataclass(frozen=True)
class Audience:
    """A profile, the version that the client declares, and the version of the real client."""

    profile: Profile
    declares: str | None
    client: str

    def encoder(self) -> AguiEncoder:
        """Return a new encoder for a run of this audience."""
        return AguiEncoder(self.profile, THREAD, _run_id, self.declares)

    def __str__(self) -> str:
        return f"{self.profile.name}-for-{self.client}"


STRICT_1 = Audience(STRICT, "1.0", "1.0.0")
STRICT_059 = Audience(STRICT, None, "0.0.59")
RUNS_1 = Audience(RUNS, None, "1.0.0")
RUNS_059 = Audience(RUNS, None, "0.0.59")
AUDIENCES = (STRICT_1, STRICT_059, RUNS_1, RUNS_059)


@cache
def recorded() -> dict[str, list[Event]]:
    """Return the canonical events of every golden recording of all upstreams, by its name."""
    return {each.name: each.events for each in every_recorded_run()}


class Run:
    """The canonical events of a run in order, numbered as the fold numbers them."""

    def __init__(self) -> None:
        self.events: list[Event] = []
        self.leg = 1

    def say(self, type: str, /, subrun: str | None = None, **data: Any) -> Run:
        """Add an event."""
        category, action = type.split(".")
        number = len(self.events) + 1
        if type == "lifecycle.resumed":
            self.leg += 1
        event: Event = {
            "run_id": RUN_ID,
            "timestamp": f"2026-11-20T10:00:00.{number:03d}Z",
            "sequence": number,
            "source": None,
            "event": {"category": category, "action": action},
            "data": data,
            "session_id": THREAD,
            "leg": self.leg,
        }
        if subrun is not None:
            event["subrun"] = {"id": subrun}
        self.events.append(event)
        return self

    def start(self) -> Run:
        """Add lifecycle.started."""
        return self.say("lifecycle.started", agent="assistant", user_id="u-1", message="hello")

    def text(self, *pieces: str, id: str = "m1", **data: Any) -> Run:
        """Add a whole message in these pieces."""
        self.say("llm.message_started", message_id=id, role="assistant")
        for piece in pieces:
            self.say("llm.stream", message_id=id, content=piece)
        content = "".join(pieces)
        data = {"message_id": id, "role": "assistant", "content": content, **data}
        return self.say("llm.message_completed", **data)

    def call(self, id: str = "c1", tool: str = "search", **args: Any) -> Run:
        """Add a tool call."""
        return self.say("llm.tool_call", tool_call_id=id, tool=tool, args=args)

    def result(self, value: Any = "found", id: str = "c1", **data: Any) -> Run:
        """Add the call's result."""
        data = {"tool_call_id": id, "tool": "search", "result": value, "outcome": "ok", **data}
        return self.say("llm.tool_result", **data)

    def pause(self, *items: Event, approval_id: str = "a1", **data: Any) -> Run:
        """Add a request for a decision, and the pause for it."""
        asked = [
            {"item_id": "i1", "kind": "confirmation", "digest": "d", "editable": False} | item
            for item in items or ({},)
        ]
        data = {"approval_id": approval_id, "digest": "d", "deciders_required": 1, **data}
        self.say("approval.requested", items=asked, **data)
        return self.say("lifecycle.paused", reason="approval_required", approval_id=approval_id)

    def resume(self, approval_id: str = "a1") -> Run:
        """Add the decision and the next leg."""
        decided = {"approval_id": approval_id, "outcome": "approved", "by": "ann"}
        self.say("approval.decided", **decided, automatic=False, items=[])
        return self.say("lifecycle.resumed", approval_id=approval_id)

    def complete(self, **data: Any) -> Run:
        """Add lifecycle.completed."""
        return self.say("lifecycle.completed", **{"summary": "done", **data})


def encoded(audience: Audience, events: Iterable[Event]) -> list[Event]:
    """Return the AG-UI events of canonical events."""
    return decoded(frames(audience, events))


def frames(audience: Audience, events: Iterable[Event]) -> list[Frame]:
    """Return the AG-UI frames of canonical events."""
    encoder = audience.encoder()
    return [frame for event in events for frame in encoder.feed(event)]


def decoded(frames: Sequence[Frame]) -> list[Event]:
    """Return the events in the frames; each event's type must equal its frame's name."""
    events = [json.loads(frame.data) for frame in frames]
    assert [event["type"] for event in events] == [frame.event for frame in frames]
    return events


def wire(frames: Iterable[Frame]) -> bytes:
    """Return the bytes of a stream of these frames."""
    return b"".join(sse.encode(frame.data, event=frame.event) for frame in frames)


def types(events: Iterable[Event]) -> list[str]:
    """Return the events' types."""
    return [event["type"] for event in events]


def of_type(events: Iterable[Event], type: str) -> list[Event]:
    """Return the events of one type."""
    return [event for event in events if event["type"] == type]
