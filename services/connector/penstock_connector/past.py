"""What RAW tells of a leg that another connector held: what it did, and what had come. Pure."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import datetime

import orjson

from penstock.bus.messages import RawFrame
from penstock.sse import Frame, FrameTooLarge, Parser
from penstock_connector.upstreams.base import Attachment


@dataclass(slots=True)
class Past:
    """Fed with the leg's source frames in their order; `seen` is as its holder had it."""

    leg: int
    watch: Callable[[Frame, Attachment], None]
    max_frame_bytes: int
    seen: Attachment = field(default_factory=Attachment)
    called: bool = False  # the upstream may have been called
    answered: bool = False  # some of its body came
    attempt: int = 1
    unanswered_attempt: bool = False  # a later attempt was begun, and nothing came of it
    _begun_at: str = ""
    _connection: str = ""
    _parser: Parser | None = None

    def feed(self, frame: RawFrame) -> None:
        """One frame; those of other legs tell nothing."""
        if frame.leg != self.leg:
            return
        if frame.kind in ("open", "claim"):
            self._on_claim(frame)
        elif frame.is_body:
            self._on_body(frame)

    def spent_s(self, now: datetime) -> float:
        """How much of its time the leg has had: since its first byte, else since its `open`."""
        if not self.called:
            return 0.0
        return max(0.0, (now - datetime.fromisoformat(self._begun_at)).total_seconds())

    def _on_claim(self, frame: RawFrame) -> None:
        facts = orjson.loads(frame.payload)
        self._begun_at = self._begun_at or frame.received
        self.called = self.called or may_call(frame.kind, facts)
        if facts.get("attempt", 1) > self.attempt:
            self.attempt = facts["attempt"]
            self.unanswered_attempt = True

    def _on_body(self, frame: RawFrame) -> None:
        if not self.answered:
            self._begun_at = frame.received
        self.called = self.answered = True
        self.unanswered_attempt = False
        if frame.connection != self._connection:
            # half a frame that a cut connection has left is nobody's
            self._connection, self._parser = frame.connection, Parser(self.max_frame_bytes)
        if self._parser is None:
            return
        try:
            frames = self._parser.feed(frame.payload)
        except FrameTooLarge as error:
            frames, self._parser = error.frames, None
        for parsed in frames:
            self.watch(parsed, self.seen)


def may_call(kind: str, facts: dict[str, object]) -> bool:
    """Whether the writer of this `open` or `claim` may have called the upstream after it.

    Who opens a leg calls at once, unless it stands in a queue; who goes on with one says so.
    """
    return bool(facts.get("calls", kind == "open"))
