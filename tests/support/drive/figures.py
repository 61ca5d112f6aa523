"""Print the figures of a benchmark, and keep them for the README."""

from __future__ import annotations

import json
import os
from pathlib import Path


def report(what: str, **figures: float) -> None:
    """Print one line; append it as JSON to the file that `PENSTOCK_BENCH_FILE` names, if any."""
    rounded = {name: round(value, 2 if value < 100 else 0) for name, value in figures.items()}
    line = json.dumps({"what": what, **rounded})
    print(f"\n{line}")
    if path := os.environ.get("PENSTOCK_BENCH_FILE"):
        with Path(path).open("a") as file:
            file.write(line + "\n")
