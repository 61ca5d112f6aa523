"""The busyness of an event loop that computes for a fixed share of the time."""

from __future__ import annotations

from itertools import count

from penstock.busyness import Busyness

LOOK_S = 1000.0  # between two looks, so that an earlier share has no weight


def busy(share: float) -> Busyness:
    clock, used = count(step=LOOK_S), count(step=LOOK_S * share)
    made = Busyness(lambda: next(clock), lambda: next(used))
    assert made.share == 0  # the first look measures nothing yet
    return made
