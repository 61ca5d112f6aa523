"""The limits of a workflow's run."""

from __future__ import annotations

from typing import Final

# the greatest number of steps, loop items and further attempts that one run may begin
MAX_BEGUN: Final = 1000
# A step takes about a microsecond. The steps are those of expressions, and RECORD_STEPS for each
# record. A decision that has used DECISION_STEPS, or whose outputs have DECISION_BYTES, begins
# nothing more. The next decision begins the rest.
RECORD_STEPS: Final = 30
DECISION_STEPS: Final = 100_000
DECISION_BYTES: Final = 4 * 1024 * 1024
# A decision with fewer steps does not count towards the limit of its run. So the journals of most
# runs have no `Spent`.
UNCOUNTED_STEPS: Final = 10_000
RUN_STEPS: Final = 10_000_000  # the default limit of the steps of all decisions about one run
MAX_CALL_CHARACTERS: Final = 4096  # the greatest length of a parameter or a header of a call
MAX_DEPTH: Final = 8  # the greatest number of workflows that may be nested in each other
# The greatest number of runs that may be under way at the same time below the run of an outermost
# workflow.
MAX_PLACES: Final = 2000
# The longest time, in milliseconds, that a stopped run waits for the ends of its cancelled
# children.
STOP_MS: Final = 30_000
# The longest time, in milliseconds, that the `always` steps of a stopped run may take.
ALWAYS_MS: Final = 600_000
# The time between an approval's deadline and the timer of the approval's step, in milliseconds. The
# approvals service itself ends an approval at the deadline. The timer ends the step if the service
# sends nothing.
APPROVAL_GRACE_MS: Final = 60_000
