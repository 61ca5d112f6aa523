"""Compare the permissions that NATS reports for a user with the table of permissions. Pure."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any, Final

from penstock.bus.admin.permissions import User, with_shards
from penstock.bus.streams import MAX_SHARDS

SHOWN: Final = 5  # the greatest number of subjects in one sentence
_WAYS: Final = {"publish": "publish to", "subscribe": "subscribe to"}


def differences(user: User, shards: int, info: Mapping[str, Any]) -> list[str]:
    """Return how the permissions of a user differ from the table.

    `info` is the member `data` of the answer to `$SYS.REQ.USER.INFO`. Permissions for additional
    shards do not count as a difference.
    """
    granted = info.get("permissions")
    if not granted:
        return ["NATS lets it do everything, so each service could act as any other"]
    return [*_differences(user, shards, granted)]


def _differences(user: User, shards: int, granted: Mapping[str, Any]) -> Iterator[str]:
    needed, known = with_shards(user, shards), with_shards(user, MAX_SHARDS)
    for way, verb in _WAYS.items():
        rules = granted.get(way) or {}
        allowed: Sequence[str] = rules.get("allow") or (">",)
        yield from _sentence(f"may not {verb}", set(getattr(needed, way)).difference(allowed))
        yield from _sentence(
            f"may {verb}, and should not,", set(allowed).difference(getattr(known, way))
        )
        yield from _sentence(f"is denied to {verb}", set(rules.get("deny") or ()))
    responds = "responses" in granted
    if user.responds and not responds:
        yield "may not answer requests (allow_responses)"
    if responds and not user.responds:
        yield "may answer every request (allow_responses), and should not"


def _sentence(what: str, subjects: Collection[str]) -> Iterator[str]:
    if subjects:
        ordered = sorted(subjects)
        more = len(ordered) - SHOWN
        rest = f" and {more} more" if more > 0 else ""
        yield f"{what} {', '.join(ordered[:SHOWN])}{rest}"
