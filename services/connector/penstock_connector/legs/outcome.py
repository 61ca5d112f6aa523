"""The outcome of a leg, as its last source frame gives it. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final, Literal

# The kind of the leg's last source frame. "gone": this connector writes none, because another one
# holds the leg.
Kind = Literal["end", "lost", "gone"]


@dataclass(frozen=True, slots=True)
class Outcome:
    """The kind of a leg's last source frame, and that frame's facts."""

    kind: Kind
    facts: dict[str, Any]

    @property
    def label(self) -> str:
        """For the metric: eof, cancelled, taken_over, released, or the code of a lost leg."""
        return str(self.facts.get("outcome") or self.facts.get("code"))


def ended(outcome: Literal["eof", "cancelled"], **facts: Any) -> Outcome:
    """The outcome of a leg whose body ended cleanly, or that was cancelled."""
    return Outcome("end", {"outcome": outcome, **facts})


def lost(code: str, error: str, **facts: Any) -> Outcome:
    """The outcome of a leg whose body was cut or could not begin.

    `code` is one of the codes of lifecycle.failed.
    """
    return Outcome("lost", {"code": code, "error": error, **facts})


TAKEN_OVER: Final = Outcome("gone", {"outcome": "taken_over"})  # the fence refused a write of ours
RELEASED: Final = Outcome("gone", {"outcome": "released"})  # this connector has handed the leg over
