"""The limits of a workflow's run."""

from __future__ import annotations

from typing import Final

MAX_BEGUN: Final = 1000  # steps, items of loops and further attempts that may begin in a run
MAX_DEPTH: Final = 8  # how many workflows may be nested in each other
# How many runs may be under way at the same time below an outermost workflow's run.
MAX_PLACES: Final = 2000
STOP_MS: Final = 30_000  # how long a run that stops waits for the ends of its children
# How long after an approval's deadline the timer of its step fires. The approvals service itself
# ends an approval at the deadline. The timer ends the step if the service sends nothing.
APPROVAL_GRACE_MS: Final = 60_000
