"""Run the cases of a fuzz test: their number, their seed, and how to replay a failure.

`make test` runs a few fixed cases. `make chaos` runs 100,000 in all (`PENSTOCK_FUZZ_CASES`) from a
seed that a failure names; `PENSTOCK_CHAOS_SEED` replays all of them, and `PENSTOCK_FUZZ_CASE` one
of them.
"""

from __future__ import annotations

import os
import random
import secrets
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType

import pytest

CHAOS_CASES = 100_000
QUICK_SEED = "penstock"
CASE_CPU_S = 20.0  # CPU time, so that a busy machine fails no case; a case takes some milliseconds


def how_many(share: float) -> int:
    """Return how many cases a test runs in `make chaos`; `share` is its part of all cases."""
    return max(1, int(int(os.environ.get("PENSTOCK_FUZZ_CASES", CHAOS_CASES)) * share))


def chaos_seed() -> str:
    """Return the seed that `PENSTOCK_CHAOS_SEED` gives, or a new random seed."""
    return os.environ.get("PENSTOCK_CHAOS_SEED") or secrets.token_hex(4)


def run(case: Callable[[random.Random], None], seed: str, count: int, name: str) -> None:
    """Run each case with its own generator; a failure names the variables that replay the case."""
    only = os.environ.get("PENSTOCK_FUZZ_CASE")
    for number in [int(only)] if only else range(count):
        try:
            with no_longer_than(CASE_CPU_S):
                case(random.Random(f"{seed}/{name}/{number}"))
        except BaseException as error:
            where = f"PENSTOCK_CHAOS_SEED={seed} PENSTOCK_FUZZ_CASE={number}"
            error.add_note(f"again: {where} pytest tests/fuzz -m chaos -k {name}")
            raise


class TooLong(AssertionError):
    """A case does not end, or takes far more CPU time than its input needs."""


@contextmanager
def no_longer_than(cpu_s: float) -> Iterator[None]:
    """Raise `TooLong` inside the body if the body takes more CPU time than this."""

    def expire(number: int, frame: FrameType | None) -> None:
        raise TooLong(f"more than {cpu_s:g} s of CPU time")

    before = signal.signal(signal.SIGPROF, expire)
    signal.setitimer(signal.ITIMER_PROF, cpu_s)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.signal(signal.SIGPROF, before)


def smallest(
    parts: list[bytes], fails: Callable[[list[bytes]], bool], tries: int = 300
) -> list[bytes]:
    """Return as few of these parts, in their order, as still fail."""
    size = max(1, len(parts) // 2)
    while size and tries:
        at = 0
        while at < len(parts) and tries:
            tries -= 1
            fewer = parts[:at] + parts[at + size :]
            if fails(fewer):
                parts = fewer
            else:
                at += size
        size //= 2
    return parts


def examples(quick: int) -> pytest.MarkDecorator:
    """Give a stateful test its number of examples, `count`.

    `make test` runs `quick` examples, `make faults` runs more.
    """
    many = pytest.param(how_many(1 / 500), id="chaos", marks=pytest.mark.chaos)
    return pytest.mark.parametrize("count", [pytest.param(quick, id="quick"), many])
