"""`python -m support.chaos.hurt_at penstock_connector`: a service that kills itself at a write.

At which one PENSTOCK_TEST_HURT says: `<Step> <before|after> <n>`, the n-th write of that kind that
this process does. Empty: at none. No setting of the product does this.
"""

from __future__ import annotations

import itertools
import os
import random
import runpy
import signal
import sys
from collections.abc import Iterator

from support.drive.steps import Step
from support.real.dies_at import hurt_at

HURT = "PENSTOCK_TEST_HURT"


def everywhere(seed: int) -> Iterator[str]:
    """Before and after every write by which connectors divide runs, in an order of the seed."""
    chance = random.Random(f"hurt {seed}")
    places = list(itertools.product(Step, ("before", "after")))
    chance.shuffle(places)
    return (f"{step.name} {when} {chance.randint(1, 3)}" for step, when in places)


def told() -> None:
    """From now on this process kills itself where it was told to."""
    if where := os.environ.get(HURT):
        step, when, times = where.split()
        hurt_at(Step[step], when, int(times), signal.SIGKILL)


def main() -> None:
    """Run the service, and end it where it was told."""
    told()
    runpy.run_module(sys.argv[1], run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main()
