"""The roles of callers, which the issuer of a JWT gives. The approvals policy uses them. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


def roles_of(claims: Mapping[str, Any], path: str) -> frozenset[str]:
    """Return the roles in the claim at this path; an empty set if there is no such claim.

    The claim is a list of texts, or one text, which is one role. Anything else gives no roles: the
    claim may belong to another service, and without roles the caller can only do less.
    """
    found = _at(claims, path)
    values = found if isinstance(found, list) else [found]
    return frozenset(each for each in values if isinstance(each, str) and each)


def _at(value: Any, path: str) -> Any:
    """Return the value at the path; None if there is none.

    The name of a claim may itself contain dots, as `https://example.com/roles`. So at each level
    the longest name that the claims contain is taken.
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
