"""Programs of Node, where it is: a skip that says so elsewhere, a failure in CI."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

from support.drive.repository import ROOT


def packages(name: str) -> Path:
    """The `node_modules` that `make node` made from tests/<name>/node."""
    folder = ROOT / ".penstock/node" / name / "node_modules"
    if shutil.which("node") is None:
        _absent("no Node on the PATH")
    if not folder.exists():
        _absent(f"no npm packages for tests/{name}: run `make node`")
    return folder


def run(*command: str | Path, cwd: Path) -> subprocess.CompletedProcess[str]:
    """Run `node …` to its end; what it says is in the result."""
    return subprocess.run(
        ["node", *command], cwd=cwd, capture_output=True, text=True, check=False, timeout=50
    )


def _absent(reason: str) -> None:
    # A skip that nobody sees would be a hole in what CI says.
    pytest.fail(reason) if os.environ.get("CI") == "true" else pytest.skip(reason)
