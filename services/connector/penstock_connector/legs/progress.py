"""The progress of a leg's stream, as the leg's holder saw it, or as RAW shows it. Pure."""

from __future__ import annotations

import logging
from dataclasses import dataclass, field
from typing import Protocol

from penstock.sse import Frame
from penstock_connector.upstreams.base import Attachment

log = logging.getLogger(__name__)


class Watcher(Protocol):
    """An adapter's method that notes what a frame tells: `Upstream.watch`."""

    def __call__(self, frame: Frame, seen: Attachment, /) -> None:
        """Note in `seen` what the frame tells about how to reattach."""
        ...


@dataclass(slots=True)
class Progress:
    """What a leg needs to reattach to the upstream, and to end when it cannot."""

    seen: Attachment = field(default_factory=Attachment)
    attempt: int = 1  # a reattachment that makes the server produce again begins another attempt
    answered: bool = False  # the server has begun to answer, to this connector or an earlier one
    attempt_unanswered: bool = False  # a later attempt was begun, and no byte of it has come
    run_id: str = ""  # for the log
    unwatchable: bool = False  # the adapter failed on a frame, so `seen` may be wrong

    @property
    def can_reattach(self) -> bool:
        """Whether a second request can neither run a tool twice nor skip events."""
        return not (self.attempt_unanswered or self.unwatchable)

    def watch(self, watcher: Watcher, frame: Frame) -> None:
        """Let the adapter note the frame.

        If the adapter raises an exception, the run continues, and the frame's bytes are stored as
        they came. The leg cannot be reattached any more, since the adapter's notes may be wrong. If
        the exception were raised, each connector that takes the leg over would fail on the same
        frame, and the leg would never end.
        """
        try:
            watcher(frame, self.seen)
        except Exception:
            if not self.unwatchable:
                log.exception(
                    "run %s: a frame cannot be watched; its leg cannot be reattached", self.run_id
                )
            self.unwatchable = True
