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


def depth_of_request(value: str | None, most: int) -> int:
    """Return the number of rules that led to a request with this header; 0 without the header.

    The number in the header does not include the rule that sent the webhook, so the result is the
    number plus one. Raises Problem 422 if the header is no number, or if more than `most` rules
    led to the request.
    """
    if value is None:
        return 0
    if not re.fullmatch("[0-9]{1,3}", value):
        raise Problem(422, f"{HEADER}: must be the number that Penstock's webhook had")
    depth = int(value) + 1
    if depth > most:
        rules = f"{depth} rules led to this request ({HEADER} {value}, and the rule that sent it)"
        # the docs name the one limit, so an error does not name another number for a hook
        hook = ", the rule of the hook among them" if most < MAX_DEPTH else ""
        raise Problem(422, f"{rules}; at most {MAX_DEPTH} may act one after another{hook}")
    return depth
