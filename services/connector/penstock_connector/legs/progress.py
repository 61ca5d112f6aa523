"""The progress of a leg's stream, as the leg's holder or a reader of RAW has seen it. Pure."""

from __future__ import annotations

import logging
from dataclasses import dataclass, field
from typing import Protocol

from penstock.sse import Frame
from penstock_connector.upstreams.base import ReattachState

log = logging.getLogger(__name__)


class Watcher(Protocol):
    """The adapter's method `Upstream.watch`, which reads facts from a frame."""

    def __call__(self, frame: Frame, seen: ReattachState, /) -> None:
        """Store in `seen` the facts of this frame that a reattachment needs."""
        ...


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
        """Whether a second request is safe: the request would neither run a tool twice nor skip
        events."""
        return not (self.attempt_unanswered or self.unwatchable)

    def watch(self, watcher: Watcher, frame: Frame) -> None:
        """Let the adapter read the frame.

        If the adapter raises an exception, the run continues, and the frame's bytes are stored
        unchanged. The leg cannot be reattached any more, because the facts in `seen` may be wrong.
        If the exception were raised here, each connector that takes the leg over would fail on the
        same frame, and the leg would never end.
        """
        try:
            watcher(frame, self.seen)
        except Exception:
            if not self.unwatchable:
                log.exception(
                    "run %s: a frame cannot be watched; its leg cannot be reattached", self.run_id
                )
            self.unwatchable = True
