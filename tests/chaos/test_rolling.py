"""All pods of all services are replaced under load, as the chart says how."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from helm.charts import committed
from support.chaos.report import Report
from support.chaos.stage import Round
from support.kube.chart import read
from support.kube.rolling import Rollout, doubled, roll, shape_of
from support.real.upstreams import Upstream
from support.recorded.earlier_commit import former

pytestmark = [pytest.mark.real, pytest.mark.chaos, pytest.mark.timeout(1800)]

EARLIER = "22e9a77d"  # a version with all services of today
SEED = int(os.environ.get("PENSTOCK_CHAOS_SEED") or 1)


def settle(report: Report, rollout: Rollout) -> None:
    print(f"{report}\n  {rollout}")
    assert not report.faults
    lost = [name for name in report.outcomes if name.startswith("failed")]
    assert not lost, report.outcomes
    assert rollout.held
    assert rollout.resumed
    if report.excused:
        pytest.skip(f"starved, play it again on a machine with more time: {report.load}")


@pytest.mark.parametrize("seed", range(SEED, SEED + 3))
async def test_nothing_is_lost_or_refused_while_every_pod_of_the_small_values_is_replaced(
    tmp_path: Path, patient_agno: Upstream, own_adk: Upstream, seed: int
) -> None:
    """The small values have one pod of each service; this round has two."""
    chart = doubled(read(committed("small")))
    servers = {"agno": patient_agno, "adk": own_adk}
    round_ = Round(seed, 0, shape_of(chart, 1, 2), runs=40, runs_per_s=1)
    settle(*await roll(round_, chart, tmp_path, servers))


async def test_nothing_is_lost_or_refused_while_every_pod_of_the_usual_values_is_replaced(
    tmp_path: Path, patient_agno: Upstream, own_adk: Upstream
) -> None:
    chart = read(committed("usual"))
    servers = {"agno": patient_agno, "adk": own_adk}
    round_ = Round(SEED, 0, shape_of(chart, 3, 2), runs=40, runs_per_s=0.7)
    settle(*await roll(round_, chart, tmp_path, servers))


async def test_nothing_is_lost_or_refused_while_an_earlier_version_is_upgraded(
    tmp_path: Path, patient_agno: Upstream, own_adk: Upstream
) -> None:
    """The Job of the chart runs first, and then pods of both versions work side by side."""
    before = former(EARLIER, tmp_path / "earlier")
    chart = doubled(read(committed("small")))
    servers = {"agno": patient_agno, "adk": own_adk}
    round_ = Round(SEED, 0, shape_of(chart, 1, 2), runs=40, runs_per_s=1)
    settle(*await roll(round_, chart, tmp_path, servers, before=before))


async def test_where_nodes_hear_of_an_end_after_the_pre_stop_hook_the_checks_find_refusals(
    tmp_path: Path, patient_agno: Upstream, own_adk: Upstream
) -> None:
    chart = doubled(read(committed("small")))
    servers = {"agno": patient_agno, "adk": own_adk}
    round_ = Round(SEED, 0, shape_of(chart, 1, 2), runs=20, runs_per_s=1)
    report, rollout = await roll(round_, chart, tmp_path, servers, late_s=(14.0, 16.0))
    print(f"{report}\n  {rollout}")
    found = {each.check for each in report.faults}
    assert {"refused", "pulse"} <= found
    assert found <= {"refused", "pulse", "client"}, "runs are whole nevertheless"
