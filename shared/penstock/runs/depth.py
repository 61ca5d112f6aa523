"""Limits the number of automation rules that may lead to a run, one after another. Pure.

Without a limit, rules that trigger each other would never end. Rules can also trigger each other
through another system. So Penstock's webhooks have a header with the number of rules so far. If the
other system copies this header into its own request to Penstock, the count goes on.
"""

from __future__ import annotations

import re
from typing import Final

from penstock.web.problems import Problem

MAX_DEPTH: Final = 4  # an event to which this many rules have led triggers no rule
HEADER: Final = "penstock-depth"


def depth_of_header(value: str | None) -> int:
    """Return the number of rules that led to a request with this header; 0 without the header.

    The number in the header does not include the rule that sent the webhook, so the result is the
    number plus one.

    Raises:
        Problem: 422 if the header is no number.
    """
    if value is None:
        return 0
    if not re.fullmatch("[0-9]{1,3}", value):
        raise Problem(422, f"{HEADER}: must be the number that Penstock's webhook had")
    return int(value) + 1
