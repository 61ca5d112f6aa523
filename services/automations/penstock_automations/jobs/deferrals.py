"""Computes how long a job is put off when no attempt can be made. Pure."""

from __future__ import annotations


def deferral_delay_s(first_and_longest_s: tuple[float, float], deferrals: int) -> float:
    """Return the seconds to wait, which double with each deferral up to the longest wait."""
    first_s, longest_s = first_and_longest_s
    return min(first_s * 2.0 ** min(deferrals, 20), longest_s)
