"""An idle process does everything at once, a busy one lets work wait, and no load makes it swing.

`Loop` imitates the event loop of a process: frames come at random, and each wake-up costs CPU time
besides the work on the frames.
"""

from __future__ import annotations

import random
import time
from collections import deque
from itertools import accumulate
from statistics import fmean

import pytest

from penstock.busyness import LOOK_S, Busyness, Pace, until_tick_s
from support.fakes.busyness import busy

LONGEST_S = 0.005
WAKE_S, WORK_S = 0.000_21, 0.000_14  # of a connector, for one frame


class Loop:
    """An event loop whose wake-ups wait for further frames for as long as `Busyness` says.

    `per_core` such loops share a core, and all of them have something to do at the same time.
    `waits` has the time of each wake-up, and how long it waited.
    """

    def __init__(self, per_core: int = 1) -> None:
        self.now_s = self.end_s = self.used_s = 0.0
        self.frames = 0
        self.waits: list[tuple[float, float]] = []
        self._per_core = per_core
        self._busyness = Busyness(lambda: self.now_s, lambda: self.used_s)
        self._random = random.Random(32)

    def run(self, per_s: float, seconds: float) -> None:
        begin_s, self.end_s = self.end_s, self.end_s + seconds
        gaps = (self._random.expovariate(per_s) for _ in range(int(per_s * seconds)))
        frames = deque(accumulate(gaps, initial=begin_s))
        while frames:
            self.now_s = max(self.now_s, frames[0])
            wait_s = self._busyness.wait_s(LONGEST_S)
            self.waits.append((self.now_s, wait_s))
            self.now_s += wait_s
            joined = 0
            while frames and frames[0] <= self.now_s:
                frames.popleft()
                joined += 1
            used_s = WAKE_S + joined * WORK_S
            self.frames += joined
            self.used_s += used_s
            self.now_s += used_s * self._per_core

    def between(self, begin_s: float, end_s: float) -> list[float]:
        return [wait_s for at_s, wait_s in self.waits if begin_s <= at_s < end_s]

    def means(self, begin_s: float, end_s: float) -> list[float]:
        """Return the mean wait of each half second."""
        halves = [begin_s + n / 2 for n in range(int((end_s - begin_s) * 2))]
        return [fmean(self.between(at_s, at_s + 0.5)) for at_s in halves]


def is_steady(means: list[float]) -> bool:
    return max(means) - min(means) <= 0.1 * LONGEST_S


def test_a_step_from_10_to_2000_frames_a_second_and_back_neither_swings_nor_overshoots() -> None:
    loop = Loop()
    loop.run(10, 5)
    loop.run(2000, 10)
    loop.run(10, 5)
    assert max(loop.between(0, 5)) < 0.01 * LONGEST_S
    steady = loop.means(8, 15)
    assert is_steady(steady)
    assert 0.15 * LONGEST_S < fmean(steady) < 0.4 * LONGEST_S
    assert max(loop.between(5, 8)) < fmean(steady) + 0.1 * LONGEST_S
    assert max(loop.between(17, 20)) < 0.01 * LONGEST_S


def test_a_burst_of_a_tenth_of_a_second_makes_nothing_wait() -> None:
    loop = Loop()
    loop.run(10, 5)
    loop.run(2000, 0.1)
    loop.run(10, 5)
    assert max(wait_s for _, wait_s in loop.waits) < 0.05 * LONGEST_S


def test_eight_processes_on_two_cores_join_what_comes_while_they_wait_for_a_core() -> None:
    loop = Loop(per_core=4)
    loop.run(10, 2)
    loop.run(1700, 10)
    assert is_steady(loop.means(4, 12))
    assert max(loop.between(2, 12)) < 0.1 * LONGEST_S
    assert loop.frames / len(loop.waits) > 5


@pytest.mark.parametrize("share", [0.0, 0.3, 1.0])
def test_the_share_is_that_of_the_time_in_which_the_loop_computes(share: float) -> None:
    now_s = 0.0
    busyness = Busyness(lambda: now_s, lambda: now_s * share)
    for _ in range(100):
        now_s += LOOK_S
        found = busyness.share
    assert found == pytest.approx(share)
    assert busyness.wait_s(LONGEST_S) == pytest.approx(share**2 * LONGEST_S)


def test_nothing_waits_before_anything_was_measured() -> None:
    assert Busyness(lambda: 1000.0, lambda: 900.0).wait_s(LONGEST_S) == 0


def test_nothing_waits_after_the_cpu_time_has_begun_again_as_that_of_a_forked_process() -> None:
    now_s, used_s = 100.0, 60.0
    busyness = Busyness(lambda: now_s, lambda: used_s)
    assert busyness.share == 0
    now_s, used_s = now_s + 1.0, 0.0
    assert busyness.wait_s(LONGEST_S) == 0


@pytest.mark.parametrize("every_s", [0.2, 0.5, 1.0])
def test_a_timer_that_ends_a_millisecond_early_or_late_is_not_set_for_the_same_tick(
    every_s: float,
) -> None:
    for number in range(300_000, 302_000):
        for off_s in (-0.001, 0.0, 0.001):
            now_s = round(number * every_s + off_s, 3)  # the clock of uvloop
            after_s = until_tick_s(every_s, now_s)
            assert after_s > 0.99 * every_s
            assert now_s + after_s == pytest.approx((number + 1) * every_s)


def test_a_thread_that_computes_is_busy_and_one_that_waits_is_not() -> None:
    busyness = Busyness()
    assert busyness.share == 0
    used_s = time.thread_time()
    while time.thread_time() < used_s + LOOK_S:
        pass
    computed = busyness.share
    assert computed > 0
    time.sleep(LOOK_S)
    assert busyness.share < computed


def pace_after(share: float, per_s: float) -> Pace:
    """Return the pace of a process that is busy for this share, after that rate of messages."""
    now_s = 100.0
    made = Pace(LONGEST_S, busy(share), lambda: now_s)
    made.messages += int(per_s)
    now_s += 1.0
    return made


@pytest.mark.parametrize(
    ("share", "per_s", "wait_s"),
    [
        (0.0, 90_000, 0.0),
        (0.1, 90_000, 0.0),  # it would be shorter than a timer can be
        (0.5, 10_000, 0.00125),
        (1.0, 10_000, 0.005),
        # at these rates, less than two messages come in the wait
        (0.5, 1_000, 0.0),
        (1.0, 300, 0.0),
    ],
)
def test_messages_wait_in_a_busy_process_if_several_come(
    share: float, per_s: float, wait_s: float
) -> None:
    assert pace_after(share, per_s).wait_s == pytest.approx(wait_s)


def test_the_first_messages_after_a_silence_do_not_wait() -> None:
    now_s = 100.0
    made = Pace(LONGEST_S, busy(1.0), lambda: now_s)
    made.messages += 1000
    now_s += 1.0
    assert made.wait_s == LONGEST_S
    made.messages += 10
    now_s += 1.0
    assert made.wait_s == 0
