"""The ids of responses, which say all that is needed to open the response again. Pure."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Final, Self

from penstock_edge.surfaces.legs import LegId

_FORM: Final = re.compile(
    r"resp_([0-9a-fA-F-]{36})(?:\.([0-9]{1,6}))?(?:\.([0-9]{1,18}))?((?:\.[0-9a-f-]{36})*)"
)


@dataclass(frozen=True, slots=True)
class ResponseId:
    """`resp_<run>`, with `.<leg>` from the second leg on. The later legs of a workflow's run also
    have the stream sequence of the pause before them, and the approvals that the client has
    answered."""

    run_id: str
    leg: LegId = field(default_factory=LegId)

    @classmethod
    def parse(cls, text: str) -> Self | None:
        match = _FORM.fullmatch(text)
        if match is None:
            return None
        run_id, leg, after, answered = match.groups()
        known = LegId(int(leg or 1), int(after or 0), tuple(answered.split(".")[1:]))
        return cls(run_id.lower(), known)

    def __str__(self) -> str:
        leg = self.leg
        later = [f"{leg.number}"] if leg.number > 1 else []
        later += [f"{leg.after}", *leg.answered] if leg.after else []
        return ".".join([f"resp_{self.run_id}", *later])
