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
    opened: bool = False  # its `open` was found
    claimed_to_call: bool = False
    answered: bool = False  # some of its body came
    attempt: int = 1
    unanswered_attempt: bool = False  # a later attempt was begun, and nothing came of it
    _begun_at: str = ""  # by the server's clock
    _taken_at: str = ""  # the same
    _open: bytes = b""  # the parts of it, as far as they came
    _connection: str = ""
    _parser: Parser | None = None

    @property
    def called(self) -> bool:
        """Whether the upstream may have been called; so it may where no `open` was found."""
        return self.claimed_to_call or not self.opened

    def feed(self, frame: RawFrame, stored_at: str) -> None:
        """One frame, and when the server stored it; those of other legs tell nothing."""
        if frame.leg != self.leg:
            return
        self._begun_at = self._begun_at or stored_at
        if frame.is_body:
            self._on_body(frame, stored_at)
        elif frame.kind == "part" and frame.whole == "open":
            self._on_part(frame)
        elif frame.kind in ("open", "claim"):
            self._on_claim(frame.kind, frame.payload)

    def taken(self, stored_at: str) -> None:
        """When the server stored the `claim` of who goes on with it."""
        self._taken_at = stored_at

    @property
    def spent_s(self) -> float:
        """How much of its time the leg has had: since its first byte, else since its `open`."""
        if not self.called or not self._begun_at or not self._taken_at:
            return 0.0
        begun, taken = (datetime.fromisoformat(at) for at in (self._begun_at, self._taken_at))
        return max(0.0, (taken - begun).total_seconds())

    def _on_part(self, frame: RawFrame) -> None:
        self._open += frame.payload
        if frame.part is not None and frame.part[0] == frame.part[1]:
            self._on_claim("open", self._open)

    def _on_claim(self, kind: str, payload: bytes) -> None:
        facts = orjson.loads(payload)
        self.opened = self.opened or kind == "open"
        self.claimed_to_call = self.claimed_to_call or may_call(kind, facts)
        if facts.get("attempt", 1) > self.attempt:
            self.attempt = facts["attempt"]
            self.unanswered_attempt = True

    def _on_body(self, frame: RawFrame, stored_at: str) -> None:
        if not self.answered:
            self._begun_at = stored_at
        self.claimed_to_call = self.answered = True
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
