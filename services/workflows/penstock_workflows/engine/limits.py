"""The limits of a workflow's run."""

from __future__ import annotations

from typing import Final

MAX_BEGUN: Final = 1000  # steps, items of loops and further attempts that may begin in a run
MAX_DEPTH: Final = 8  # workflows that a run may be inside of
# The runs below a run that no workflow has started that may be under way at once.
MAX_PLACES: Final = 2000
STOP_MS: Final = 30_000  # how long a run that stops waits for the ends of its children
# The approvals service itself ends an approval at its deadline. The step's own timer comes later,
# for an approval of which nothing is heard.
APPROVAL_GRACE_MS: Final = 60_000
