"""The limits of a workflow's run."""

from __future__ import annotations

from typing import Final

# the greatest number of steps, loop items and further attempts that one run may begin
MAX_BEGUN: Final = 1000
MAX_DEPTH: Final = 8  # the greatest number of workflows that may be nested in each other
# The greatest number of runs that may be under way at the same time below the run of an outermost
# workflow.
MAX_PLACES: Final = 2000
# The longest time, in milliseconds, that a stopped run waits for the ends of its cancelled
# children.
STOP_MS: Final = 30_000
# The time between an approval's deadline and the timer of the approval's step, in milliseconds. The
# approvals service itself ends an approval at the deadline. The timer ends the step if the service
# sends nothing.
APPROVAL_GRACE_MS: Final = 60_000
