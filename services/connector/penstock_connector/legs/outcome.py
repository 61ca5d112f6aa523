"""The outcome of a leg, which the leg's last source frame contains. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import Any, Final

from penstock_connector.state.run_state import LastKind

# the most characters of an error response that are kept
MAX_DETAIL_CHARACTERS: Final = 4000


class LegEnd(Enum):
    """The way in which a leg has ended for this connector."""

    EOF = "eof"  # the body ended cleanly
    CANCELLED = "cancelled"
    LOST = "lost"  # the body was cut, or could not begin
    TAKEN_OVER = "taken_over"  # the fence refused a write: another connector holds the leg
    RELEASED = "released"  # this connector released the leg, so that another one can take it over


@dataclass(frozen=True, slots=True)
class Outcome:
    """How a leg has ended, and the payload of the leg's last source frame. `code` is one of the
    codes of lifecycle.failed; only a lost leg has one."""

    end: LegEnd
    facts: dict[str, Any]
    code: str | None = None

    @property
    def is_ours(self) -> bool:
        """Whether this connector writes the last frame, because no other one holds the leg."""
        return self.end not in (LegEnd.TAKEN_OVER, LegEnd.RELEASED)

    @property
    def is_lost(self) -> bool:
        return self.end is LegEnd.LOST

    @property
    def frame_kind(self) -> LastKind:
        return "lost" if self.is_lost else "end"

    @property
    def label(self) -> str:
        return self.code or self.end.value


EOF: Final = Outcome(LegEnd.EOF, {"outcome": "eof"})
TAKEN_OVER: Final = Outcome(LegEnd.TAKEN_OVER, {})
RELEASED: Final = Outcome(LegEnd.RELEASED, {})


def ended_as_cancelled(facts: dict[str, Any], *, confirmed: bool) -> Outcome:
    """Return the outcome of a cancelled leg; `facts` names the caller and the reason, if known."""
    return Outcome(LegEnd.CANCELLED, {"outcome": "cancelled", **facts, "confirmed": confirmed})


def lost(code: str, error: str, **facts: Any) -> Outcome:
    return Outcome(LegEnd.LOST, {"code": code, "error": error, **facts}, code)


def refused(status_code: int, detail: str) -> Outcome:
    detail = detail[:MAX_DETAIL_CHARACTERS]
    return lost(
        "upstream_http",
        f"the agent server answered {status_code}: {detail}",
        status_code=status_code,
        detail=detail,
    )


def unreachable(code: str, url: str, error: str) -> Outcome:
    return lost(code, f"cannot reach the agent server at {url}: {error}", retryable=True)


def broken_off(reason: str, *, was_answered: bool) -> Outcome:
    """Return the outcome of a leg that was sent, and whose stream cannot be continued."""
    if was_answered:
        return lost("upstream_lost", reason)
    return lost("outcome_unknown", f"{reason}; nobody knows whether the upstream has begun")
