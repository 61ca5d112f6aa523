"""The progress of a leg's stream, as the leg's holder or a reader of RAW has seen it. Pure."""

from __future__ import annotations

import logging
from dataclasses import dataclass, field
from datetime import datetime
from typing import Protocol

import orjson

from penstock.bus.messages import RawFrame
from penstock.sse import Frame, FrameTooLarge, Parser
from penstock_connector.upstreams.base import ReattachState

log = logging.getLogger(__name__)


class Watcher(Protocol):
    """The adapter's method `Upstream.watch`, which reads facts from a frame."""

    def __call__(self, frame: Frame, seen: ReattachState, /) -> None: ...


@dataclass(slots=True)
class Progress:
    """The facts that a leg needs to reattach, or to end if it cannot reattach."""

    seen: ReattachState = field(default_factory=ReattachState)
    # the number of the present attempt; a reattachment with `produces_again` begins the next
    # attempt
    attempt: int = 1
    # whether the server has begun to answer this connector or an earlier connector
    answered: bool = False
    # whether the newest attempt has begun but no byte of its response has come
    attempt_unanswered: bool = False
    run_id: str = ""  # the id of the run, for the log
    unwatchable: bool = False  # whether the adapter failed on a frame, so that `seen` may be wrong

    @property
    def can_reattach(self) -> bool:
        """Whether a second request would neither run a tool twice nor skip events."""
        return not (self.attempt_unanswered or self.unwatchable)

    def watch(self, watcher: Watcher, frame: Frame) -> None:
        """Let the adapter read the frame.

        If the adapter raises, the run continues, and the frame's bytes are stored unchanged, but
        the leg cannot be reattached any more, because the facts in `seen` may be wrong. If the
        exception were raised here, each connector that takes the leg over would fail on the same
        frame.
        """
        try:
            watcher(frame, self.seen)
        except Exception:
            if not self.unwatchable:
                log.exception(
                    "run %s: a frame cannot be watched; its leg cannot be reattached", self.run_id
                )
            self.unwatchable = True


@dataclass(slots=True)
class LegHistory:
    """Takes a leg's source frames in their order, and reconstructs the progress of the leg.

    After the last frame, `progress` equals the progress that the leg's earlier holder had.
    `watcher` is the method `watch` of the agent's adapter.
    """

    leg: int
    watcher: Watcher
    max_frame_bytes: int
    progress: Progress = field(default_factory=Progress)
    opened: bool = False  # whether the leg's `open` was found
    # whether a frame shows that its writer may have called the agent server
    claimed_to_call: bool = False
    # Two times of NATS, RFC 3339. `_begun_at` is the time of the leg's first byte; before the first
    # byte, it is the time of the leg's first frame. `_taken_at` is the time of the new holder's
    # `claim`.
    _begun_at: str = ""
    _taken_at: str = ""
    _open: bytes = b""  # the parts of the `open` that were found so far
    _connection: str = ""
    _parser: Parser | None = None

    @property
    def may_have_called_server(self) -> bool:
        """Whether the agent server may have been called; also True if the `open` is missing."""
        return self.claimed_to_call or not self.opened

    def feed(self, frame: RawFrame, stored_at: str) -> None:
        """Add a frame that NATS stored at `stored_at`; frames of other legs are ignored."""
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
        self._taken_at = stored_at

    @property
    def spent_s(self) -> float:
        """How much of the agent's `timeout_s` the leg has used before the takeover.

        The time counts from the leg's first byte, or from its `open` if no byte has come. It is 0
        if the agent server was not called.
        """
        if not self.may_have_called_server or not self._begun_at or not self._taken_at:
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
        if facts.get("attempt", 1) > self.progress.attempt:
            self.progress.attempt = facts["attempt"]
            self.progress.attempt_unanswered = True

    def _on_body(self, frame: RawFrame, stored_at: str) -> None:
        if not self.progress.answered:
            self._begun_at = stored_at
        self.claimed_to_call = self.progress.answered = True
        self.progress.attempt_unanswered = False
        if frame.connection != self._connection:
            # The connection may have been cut inside a frame. The first half of this frame must not
            # be joined with the bytes of the next connection.
            self._connection, self._parser = frame.connection, Parser(self.max_frame_bytes)
        if self._parser is None:
            return
        try:
            frames = self._parser.feed(frame.payload)
        except FrameTooLarge as error:
            frames, self._parser = error.frames, None
        for parsed in frames:
            self.progress.watch(self.watcher, parsed)


def may_call(kind: str, facts: dict[str, object]) -> bool:
    """Return whether the connector that wrote this `open` or `claim` may then have called the
    server.

    A connector that opens a leg calls the agent server at once, unless earlier legs of the session
    have not ended: then the `open` has `calls: false`. A connector that takes a leg over writes a
    `claim` with `calls: false`, and another with `calls: true` before it calls the agent server.
    """
    return bool(facts.get("calls", kind == "open"))
