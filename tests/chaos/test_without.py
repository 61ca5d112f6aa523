"""The fixes that chaos rounds take out still have the names that `without` uses."""

from __future__ import annotations

import pytest

from support.chaos.without import FIXES
from support.drive.repository import ROOT
from support.real.forked import finished


@pytest.mark.parametrize("fix", FIXES)
def test_a_fix_can_be_taken_out(fix: str) -> None:
    code = f"from support.chaos.without import FIXES; FIXES[{fix!r}]()"
    done = finished(["-c", code], {"PYTHONPATH": str(ROOT / "tests")})
    assert done.returncode == 0, done.stderr
