"""`chaos` against real servers: ours has no fault, and the others are counted whole."""

from __future__ import annotations

from pathlib import Path

import pytest

from compare.rivals import RIVALS, Rival
from compare.trials import Extent, kill, lacking

pytestmark = pytest.mark.chaos

OURS = [rival for rival in RIVALS if rival.protocol == "penstock"]
OTHERS = [rival for rival in RIVALS if rival.protocol != "penstock"]
EXTENT = Extent(seed=34, rounds=3, patience_s=15)


@pytest.mark.parametrize("rival", OURS, ids=lambda rival: str(rival.id))
async def test_ours_loses_repeats_and_doubles_nothing(rival: Rival, tmp_path: Path) -> None:
    if (reason := lacking(rival)) is not None:
        pytest.skip(reason)
    report = await kill(rival, EXTENT, tmp_path)
    assert report["faults"] == []
    assert report["met"]


@pytest.mark.parametrize("rival", OTHERS, ids=lambda rival: str(rival.id))
async def test_every_run_and_every_effect_is_counted_once(rival: Rival, tmp_path: Path) -> None:
    if (reason := lacking(rival)) is not None:
        pytest.skip(reason)
    report = await kill(rival, EXTENT, tmp_path)
    ends = [report[name] for name in ("completed", "failed", "unknown", "endless", "unanswered")]
    effects = [report[f"effects_{name}"] for name in ("once", "twice", "never")]
    assert sum(ends) == report["runs"] == EXTENT.rounds * 4
    assert sum(effects) == report["effects_planned"]
    assert report["met"]
