"""The outcome of a leg, which the leg's last source frame contains. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final, Literal

# The kind of the leg's last source frame. "gone" means that this connector writes no last frame,
# because another connector holds the leg.
Kind = Literal["end", "lost", "gone"]


@dataclass(frozen=True, slots=True)
class Outcome:
    """The kind of a leg's last source frame, and the facts in this frame."""

    kind: Kind
    facts: dict[str, Any]

    @property
    def label(self) -> str:
        """The outcome for the metric: eof, cancelled, taken_over, released, or the code of a
        lost leg."""
        return str(self.facts.get("outcome") or self.facts.get("code"))


def ended(outcome: Literal["eof", "cancelled"], **facts: Any) -> Outcome:
    """Return the outcome of a leg whose body ended cleanly, or that was cancelled."""
    return Outcome("end", {"outcome": outcome, **facts})


def lost(code: str, error: str, **facts: Any) -> Outcome:
    """Return the outcome of a leg whose body was cut, or could not begin.

    `code` is one of the codes of lifecycle.failed.
    """
    return Outcome("lost", {"code": code, "error": error, **facts})


# the outcome if the fence refused a write of this connector
TAKEN_OVER: Final = Outcome("gone", {"outcome": "taken_over"})
# the outcome if this connector released the leg, so that another connector can take the leg over
RELEASED: Final = Outcome("gone", {"outcome": "released"})
