"""How many rules of automations led to a run, which must end at some number. Pure.

Rules that set each other off would otherwise never end, also where the way from one to the next
leads through another system: Penstock's webhooks say their depth, and who passes the header on lets
Penstock see the circle.
"""

from __future__ import annotations

import re
from typing import Final

from penstock.web.problems import Problem

MAX_DEPTH: Final = 4  # an event to which so many rules led triggers nothing
HEADER: Final = "penstock-depth"


def depth_of_header(value: str | None) -> int:
    """Return how many rules led to a request with this header; 0 without the header.

    The header of a webhook counts the rules that led to its event. The rule of the webhook is one
    more.

    Raises:
        Problem: 422 if the header is no number.
    """
    if value is None:
        return 0
    if not re.fullmatch("[0-9]{1,3}", value):
        raise Problem(422, f"{HEADER}: must be the number that Penstock's webhook had")
    return int(value) + 1
