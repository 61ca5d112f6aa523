"""Reads the roles of a caller from the claims of a JWT.

The approvals policy uses these roles. Pure.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


def roles_of(claims: Mapping[str, Any], path: str) -> frozenset[str]:
    """Return the roles in the claim at this path; an empty set if there is no such claim.

    The claim is a list of texts, or one text, which is one role. Any other claim gives no roles,
    because it may belong to another service. Ignoring such a claim is safe, because a caller
    without roles may do less, not more.
    """
    found = _at(claims, path)
    values = found if isinstance(found, list) else [found]
    return frozenset(each for each in values if isinstance(each, str) and each)


def _at(value: Any, path: str) -> Any:
    """Return the value at the path; None if there is none.

    The name of a claim may itself contain dots, for example `https://example.com/roles`. So at each
    level, the function takes the longest part of the path that is the name of a claim.
    """
    if not path:
        return value
    if not isinstance(value, Mapping):
        return None
    steps = path.split(".")
    for count in range(len(steps), 0, -1):
        name = ".".join(steps[:count])
        if name in value:
            return _at(value[name], ".".join(steps[count:]))
    return None
