"""The ids that a workflow's run gives to its steps, approvals, calls, sessions and timers. Pure."""

from __future__ import annotations

import uuid
from dataclasses import dataclass
from typing import Final, Literal, get_args

TimerKind = Literal["timeout", "retry", "wait", "run", "stop", "always", "turn"]
_KINDS: Final = frozenset(get_args(TimerKind))


def step_id(step: str, index: int | None) -> str:
    """Return the id that events use for a step, or for an item of a step with `for_each`."""
    return f"step_{step}" if index is None else f"step_{step}.{index}"


def call_id(step: str, index: int | None, attempt: int) -> str:
    return f"{step_id(step, index)}-{attempt}"


def approval_id(run_id: str, step: str, index: int | None, attempt: int) -> str:
    name = step_id(step, index) if attempt == 1 else call_id(step, index, attempt)
    return str(uuid.uuid5(uuid.UUID(run_id), f"approval/{name}"))


def session_id(run_id: str, step: str, index: int | None) -> str:
    """Return the id of a child's own session. All attempts of a step have the same session."""
    return str(uuid.uuid5(uuid.UUID(run_id), f"session/{step_id(step, index)}"))


@dataclass(frozen=True, slots=True)
class Timer:
    """A timer of a run. `step` is empty for a timer of the whole run."""

    kind: TimerKind
    step: str = ""
    index: int | None = None
    attempt: int = 0

    def __str__(self) -> str:
        if not self.step:
            return self.kind
        index = "" if self.index is None else self.index
        return f"{self.kind}-{self.step}-{index}-{self.attempt}"

    @classmethod
    def parse(cls, text: str) -> Timer | None:
        kind, *rest = text.split("-")
        if kind not in _KINDS:
            return None
        if not rest:
            return cls(kind)  # type: ignore[arg-type]
        try:
            step, index, attempt = rest
            return cls(kind, step, int(index) if index else None, int(attempt))  # type: ignore[arg-type]
        except ValueError:
            return None
