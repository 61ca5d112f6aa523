"""Alerts and dashboards ask for metrics that exist, and each alert is explained."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import pytest
import yaml

from alerts.queries import DASHBOARDS, OF_TARGET, RULES, grouped, queries, rules, selected
from readmes.metrics_table import series
from support.drive.repository import ROOT

CASES = Path(__file__).with_name("penstock.test.yaml")
QUERIES = queries()
RUNBOOK = ROOT / "docs/operate/alerts.md"


def promtool() -> str | None:
    """Return promtool's path: the one that `make kubernetes` has built, or one of this machine."""
    built = ROOT / ".penstock/kubernetes/bin/promtool"
    return str(built) if built.exists() else shutil.which("promtool")


@pytest.mark.parametrize("name", QUERIES)
def test_a_query_names_metrics_and_labels_that_exist(name: str) -> None:
    known, labels = series(), set(OF_TARGET) | {"alertname", "alertstate"}
    found = selected(QUERIES[name])
    assert found or "ALERTS" in QUERIES[name]
    for metric, by in found.items():
        assert metric in known, f"there is no {metric}"
        assert by <= known[metric] | OF_TARGET, f"{metric} has no label {by - known[metric]}"
        labels |= known[metric]
    assert grouped(QUERIES[name]) <= labels


def test_a_query_with_an_unknown_metric_or_label_is_found() -> None:
    query = 'sum by (agent, le) (rate(penstock_runs_total{outcome="failed",who!="x"}[5m])) > 0'
    assert selected(query) == {"penstock_runs_total": {"outcome", "who"}}
    assert grouped(query) == {"agent", "le"}


@pytest.mark.parametrize("rule", rules(), ids=lambda rule: str(rule["alert"]))
def test_an_alert_has_a_summary_a_severity_and_a_runbook_that_says_what_to_do(
    rule: dict[str, dict[str, str]],
) -> None:
    name = str(rule["alert"])
    assert rule["labels"]["severity"] in ("critical", "warning")
    assert rule["annotations"]["summary"]
    where = f"{RUNBOOK.relative_to(ROOT)}#{name.lower()}"
    assert rule["annotations"]["runbook"] == f"In Penstock's repository, {where}"
    [entry] = re.findall(rf"^## {name}\n(.*?)(?=^## |\Z)", RUNBOOK.read_text("utf-8"), re.M | re.S)
    assert "**Do:**" in entry


def test_the_runbook_has_no_alert_that_is_gone() -> None:
    headings = re.findall(r"^## (\w+)$", RUNBOOK.read_text("utf-8"), re.M)
    assert sorted(headings) == sorted(rule["alert"] for rule in rules())


def test_each_alert_has_a_case_in_which_it_fires() -> None:
    cases = {case["name"] for case in yaml.safe_load(CASES.read_text("utf-8"))["tests"]}
    assert {rule["alert"] for rule in rules()} <= cases


def test_dashboards_have_ids_of_their_own() -> None:
    names = [path.stem for path in DASHBOARDS]
    assert len(names) == 4
    for path in DASHBOARDS:
        assert f'"uid": "{path.stem}"' in path.read_text("utf-8")


@pytest.mark.skipif(
    promtool() is None, reason="there is no promtool: `make kubernetes` builds it with Go"
)
@pytest.mark.parametrize("command", [["check", "rules", str(RULES)], ["test", "rules", str(CASES)]])
def test_promtool_accepts_the_rules_and_their_cases(command: list[str]) -> None:
    program = promtool()
    assert program is not None
    done = subprocess.run([program, *command], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
