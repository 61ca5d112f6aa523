"""The fixes that chaos rounds take out still have the names that `without` uses."""

from __future__ import annotations

import subprocess
import sys

import pytest

from support.chaos.without import FIXES
from support.drive.repository import ROOT


@pytest.mark.parametrize("fix", FIXES)
def test_a_fix_can_be_taken_out(fix: str) -> None:
    code = f"from support.chaos.without import FIXES; FIXES[{fix!r}]()"
    subprocess.run([sys.executable, "-c", code], cwd=ROOT / "tests", check=True, timeout=100)
