"""All metrics are in use, are named in one way, and have few time series."""

from __future__ import annotations

import collections
import re

import pytest
from prometheus_client import REGISTRY, CollectorRegistry, Counter, Histogram, generate_latest
from prometheus_client.metrics import MetricWrapperBase

from penstock import telemetry
from readmes.metrics_table import metrics, name_of, series
from support.drive.repository import ROOT, files

NAME = re.compile(r"\bpenstock_[a-z_]+\b")
PACKAGES = {
    *(f"penstock_{path.name}" for path in (ROOT / "services").iterdir()),
    *("penstock_client", "penstock_replay"),
}
CONVENTION = "gen_ai_"  # metrics whose names are OpenTelemetry's
FREE = {"user", "user_id", "run", "run_id", "session", "session_id", "path", "url"}


@pytest.fixture
def named_agents(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(telemetry, "_agent_labels", set())
    telemetry.name_agents(["assistant", "reviewer"])


def test_each_metric_is_used_by_the_code() -> None:
    code = "\n".join(
        path.read_text("utf-8")
        for path in files()
        if path.suffix == ".py" and path.parts[len(ROOT.parts)] in ("shared", "services")
    )
    words = collections.Counter(re.findall(r"\w+", code))
    unused = [name for name in metrics() if words[name] < 2]
    assert not unused


def test_all_metrics_are_in_one_module() -> None:
    """The table of the documents has the metrics of this module."""
    registered = {
        each for each in REGISTRY._collector_to_names if isinstance(each, MetricWrapperBase)
    }
    ours = {each for each in registered if str(each._name).startswith(("penstock_", CONVENTION))}
    assert ours == set(metrics().values())


def test_names_say_the_unit_or_that_they_count() -> None:
    for metric in metrics().values():
        name = name_of(metric)
        if name.startswith(CONVENTION):
            continue
        assert name.startswith("penstock_")
        assert not isinstance(metric, Histogram) or name.endswith("_seconds"), name
        assert isinstance(metric, Counter) == name.endswith("_total"), name


def test_no_metric_has_a_label_whose_values_clients_choose() -> None:
    for name, labels in series().items():
        assert not labels & FREE, name


def test_each_metric_that_a_document_names_exists() -> None:
    known = series().keys() | {name_of(each) for each in metrics().values()} | PACKAGES
    for path in files():
        if path.suffix == ".md" and "decisions" not in path.parts and path.name != "CHANGELOG.md":
            text = path.read_text("utf-8")
            unknown = {name for name in NAME.findall(text) if not name.endswith("_")} - known
            wrong = {name for name in unknown if re.search(rf"`{name}[`{{]", text)}
            assert not wrong, f"{path.relative_to(ROOT)}: {wrong}"


def test_a_measured_gauge_has_no_value_before_it_is_measured() -> None:
    registry = CollectorRegistry()
    gauge = telemetry.MeasuredGauge("penstock_tried", "A gauge of this test", registry=registry)
    assert generate_latest(registry).decode().splitlines()[-1] == "# TYPE penstock_tried gauge"
    gauge.set(0)
    assert registry.get_sample_value("penstock_tried") == 0


@pytest.mark.usefixtures("named_agents")
def test_ten_thousand_unknown_agents_are_one_label() -> None:
    labels = {telemetry.agent_label(f"agent-{number}") for number in range(10_000)}
    assert labels == {"other"}
    assert telemetry.agent_label("reviewer") == "reviewer"


@pytest.mark.usefixtures("named_agents")
def test_of_ten_thousand_configured_agents_two_hundred_have_a_label() -> None:
    names = [f"agent-{number}" for number in range(10_000)]
    telemetry.name_agents(names)
    labels = {telemetry.agent_label(name) for name in (*names, "assistant", "reviewer")}
    assert len(labels) == telemetry.MAX_AGENT_LABELS + 1
