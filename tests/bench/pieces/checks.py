"""The tests of this folder that measure and can fail: each module `test_<name>.py` is a piece.

They measure the code of this checkout only. The table has the figures that they `report`.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
from pathlib import Path
from typing import Final

from bench.session import OURS, Session
from support.drive.repository import ROOT

HERE: Final = Path(__file__).parents[1]
TIMEOUT_S: Final = 900
# Pieces of 20 minutes and more, which run only if they are named, or with --long.
LONG: Final = frozenset({"soak"})


def names() -> list[str]:
    """Return the names of the modules that measure, without `test_`."""
    measuring = (path for path in HERE.glob("test_*.py") if "mark.bench" in path.read_text())
    return sorted(path.stem.removeprefix("test_") for path in measuring)


async def run(name: str, session: Session) -> None:
    """Run the tests of one module once, and keep their figures."""
    file = session.new_folder(name) / "figures.json"
    command = [sys.executable, "-m", "pytest", f"tests/bench/test_{name}.py", "-m", "bench"]
    command += ["-p", "no:xdist", "--timeout", f"{TIMEOUT_S}", "-s", "-q"]
    process = await asyncio.create_subprocess_exec(
        *command, cwd=ROOT, env={**os.environ, "PENSTOCK_BENCH_FILE": str(file)}
    )
    if await process.wait():
        session.results.skipped[name] = "its test failed"
    for line in file.read_text().splitlines() if file.exists() else ():
        figures = json.loads(line)
        session.add(name, str(figures.pop("what")), OURS, **figures)
