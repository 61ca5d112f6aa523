"""Computes when a delivery is tried again, and how long it is put off without an attempt. Pure."""

from __future__ import annotations

from collections.abc import Sequence

MAX_RETRY_AFTER_S = 24 * 3600.0
_SPREAD = 0.1


def delay_s(
    attempt: int, delays_s: Sequence[float], retry_after_s: float | None, random: float
) -> float | None:
    """Return the seconds to wait after this attempt has failed; None after the last attempt.

    `attempt` counts from 1. `random` is between 0 and 1 and varies the delay by up to a tenth, so
    that deliveries that failed together are not repeated together. The receiver's `Retry-After`
    replaces the delay.
    """
    if attempt > len(delays_s):
        return None
    if retry_after_s is not None:
        return min(max(retry_after_s, 0.0), MAX_RETRY_AFTER_S)
    return delays_s[attempt - 1] * (1 + _SPREAD * (2 * random - 1))


def deferral_delay_s(first_and_longest_s: tuple[float, float], deferrals: int) -> float:
    """Return the seconds to wait, which double with each deferral up to the longest wait."""
    first_s, longest_s = first_and_longest_s
    return min(first_s * 2.0 ** min(deferrals, 20), longest_s)
