"""`python -m support.chaos.hurt_at penstock_connector`: a service that kills itself at a write.

PENSTOCK_TEST_HURT names the write: `<Step> <before|after> <n>`, for the n-th write of that kind in
this process. If the variable is empty, the process does not kill itself. No setting of the product
does this.
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
    """Yield the points before and after every write of `Step`, in an order that the seed gives."""
    chance = random.Random(f"hurt {seed}")
    places = list(itertools.product(Step, ("before", "after")))
    chance.shuffle(places)
    return (f"{step.name} {when} {chance.randint(1, 3)}" for step, when in places)


def told() -> None:
    """Let this process kill itself at the write that PENSTOCK_TEST_HURT names."""
    if where := os.environ.get(HURT):
        step, when, times = where.split()
        hurt_at(Step[step], when, int(times), signal.SIGKILL)


def main() -> None:
    """Run the service, with the kill in place."""
    told()
    runpy.run_module(sys.argv.pop(1), run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main()
