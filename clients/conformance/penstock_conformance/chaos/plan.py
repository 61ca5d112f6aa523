"""Draws the moments of the kills. Pure: the same seed gives the same moments."""

from __future__ import annotations

import random
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Moment:
    """When the server is killed: `delay_s` after the last start of the round, or, with
    `effect`, after this effect (from 1) since the last start."""

    delay_s: float
    effect: int | None = None

    def __str__(self) -> str:
        after = "the last start" if self.effect is None else f"effect {self.effect} after it"
        return f"{self.delay_s:.3f} s after {after}"


def moments(
    seed: int, rounds: int, *, stagger_s: float, calls: int, answer_after_s: float
) -> list[Moment]:
    """Return a moment for each round.

    Within a round, runs start `stagger_s` apart, so one kill meets them in different places. Every
    second moment is a time: over the rounds, these divide `stagger_s` evenly. The other moments
    follow effects, half of them before the server has the effect's answer.
    """
    chance = random.Random(seed)
    n_times = (rounds + 1) // 2 if calls else rounds
    times = [Moment((n + chance.random()) / n_times * stagger_s) for n in range(n_times)]
    after_effects = [
        Moment(chance.random() * 2 * answer_after_s, effect=1 + chance.randrange(calls))
        for _ in range(rounds - n_times)
    ]
    chance.shuffle(times)
    mixed = [moment for pair in zip(times, after_effects, strict=False) for moment in pair]
    return mixed + times[len(after_effects) :]
