"""Run programs of Node. Without node, a test is skipped with a reason; in CI it fails."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

from support.drive.repository import ROOT


def packages(name: str) -> Path:
    """Return the `node_modules` that `make node` made from tests/<name>/node."""
    folder = ROOT / ".penstock/node" / name / "node_modules"
    if shutil.which("node") is None:
        absent("no Node on the PATH")
    if not folder.exists():
        absent(f"no npm packages for tests/{name}: run `make node`")
    return folder


def run(*command: str | Path, cwd: Path) -> subprocess.CompletedProcess[str]:
    """Run `node …` to its end; the result has its output."""
    return subprocess.run(
        ["node", *command], cwd=cwd, capture_output=True, text=True, check=False, timeout=100
    )


def project(folder: Path, program: Path) -> Path:
    """Make a folder with this program in `tests`, and with @penstock/client and the TypeScript
    compiler installed; return the folder."""
    compilers = packages("contract")
    shutil.copytree(ROOT / "clients/javascript", folder / "node_modules/@penstock/client")
    for name in ("typescript", "@types"):
        (folder / "node_modules" / name).symlink_to(compilers / name)
    (folder / "package.json").write_text('{"type": "module"}')
    (folder / "tests").mkdir()
    shutil.copy(program, folder / "tests")
    return folder


def absent(reason: str) -> None:
    """Skip the test for want of something that is installed; fail it in CI."""
    # In CI, a skip would be a test less: nobody would notice a skip there.
    pytest.fail(reason) if os.environ.get("CI") == "true" else pytest.skip(reason)
